"""A data loader whose position can be saved, exact with any number of workers.

The batches of an epoch depend on (seed, epoch) only, so a position is two numbers. Before each sample the
random generators are seeded from (seed, epoch, index): the random numbers of a sample do not depend on the
worker that fetches it, on what was fetched before, or on whether the training run was interrupted.
"""

from __future__ import annotations

import contextlib
import random
import signal
import sys
import zlib
from typing import Any, Iterator

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


class Loader:
    """A `torch.utils.data.DataLoader` with `state_dict()` and `load_state_dict()`.

    dataset        a map-style dataset: it has a length, and an item for each index
    batch_size     samples in a batch
    shuffle        if true, a new random order in each epoch
    seed           determines the order and the random numbers of each sample
    num_workers    processes that fetch samples; 0 fetches in this process
    drop_last      if true, leave out an incomplete last batch
    rank, world    the number of this process and of all processes that share the samples; taken from
                   torch.distributed if it is initialised, else one process
    options        passed to DataLoader

    Each iteration is one epoch. The first iteration after `load_state_dict` yields the batches of the epoch
    that were left, which may be none. Batches are the same with any number of workers. Raises ValueError if
    batch_size is less than 1.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int = 1,
        shuffle: bool = False,
        seed: int = 0,
        num_workers: int = 0,
        drop_last: bool = False,
        rank: int | None = None,
        world: int | None = None,
        **options: Any,
    ) -> None:
        import torch
        from torch.utils.data import DataLoader

        if batch_size < 1:
            raise ValueError("batch_size is %d; it must be at least 1" % batch_size)
        if rank is None or world is None:
            rank, world = _rank_and_world(torch)
        self._size = len(dataset)
        self._batches = _BatchSampler(self._size, batch_size, shuffle, seed, drop_last, rank, world)
        worker_init = options.pop("worker_init_fn", None)
        seeded: Any = _SeededDataset(dataset, seed)
        self._loader: Any = DataLoader(
            seeded,
            batch_sampler=self._batches,
            num_workers=num_workers,
            worker_init_fn=_WorkerInit(worker_init),
            # DataLoader draws a seed for its workers; without this, from the training process's generator.
            generator=torch.Generator().manual_seed(seed),
            **options,
        )
        self._is_iterating = False

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        return len(self._batches)

    @property
    def epoch(self) -> int:
        """The number of the current epoch, from 0; between two iterations, of the next one."""
        return self._batches.epoch

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of an epoch; if the last iteration was left early, of the next epoch."""
        batches = self._batches
        self.end_epoch()
        self._is_iterating = True
        with _block_stop_signals():  # workers ignore them only once _WorkerInit has run
            iterator = iter(self._loader)
        for batch in iterator:
            batches.given += 1
            yield batch
        batches.epoch, batches.given = batches.epoch + 1, 0
        self._is_iterating = False

    def state_dict(self) -> dict[str, Any]:
        """Return the position: the epoch, the batches given out, and the settings they depend on."""
        return {**self._batches.settings(), "epoch": self._batches.epoch, "given": self._batches.given}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at a position that `state_dict` returned.

        Raises ValueError if this loader's settings lead to other batches.
        """
        settings = self._batches.settings()
        different = {name: value for name, value in settings.items() if state.get(name) != value}
        if different:
            name, value = next(iter(different.items()))
            raise ValueError(
                "the position was saved by a loader with %s %s, and this one has %s: the batches differ"
                % (name, state.get(name), value)
            )
        self._batches.epoch, self._batches.given = state["epoch"], state["given"]
        self._is_iterating = False

    def end_epoch(self) -> None:
        """Make the next iteration yield a whole new epoch, if the last one was left early."""
        if self._is_iterating:
            self._batches.epoch, self._batches.given = self._batches.epoch + 1, 0
            self._is_iterating = False

    def step_back(self) -> None:
        """Go back by one batch, at the end of an epoch: the next iteration yields its last batch again."""
        batches = self._batches
        if batches.given == 0:
            batches.epoch, batches.given = batches.epoch - 1, len(batches)
        batches.given -= 1
        self._is_iterating = False


class _BatchSampler:
    """Yields the batches of an epoch that have not been given out, each a list of (epoch, index)."""

    def __init__(
        self, size: int, batch_size: int, shuffle: bool, seed: int, drop_last: bool, rank: int, world: int
    ) -> None:
        self._size, self._batch_size = size, batch_size
        self._shuffle, self._seed, self._drop_last = shuffle, seed, drop_last
        self._rank, self._world = rank, world
        self.epoch = 0
        self.given = 0

    def settings(self) -> dict[str, Any]:
        return {
            "size": self._size,
            "batch_size": self._batch_size,
            "shuffle": self._shuffle,
            "seed": self._seed,
            "drop_last": self._drop_last,
            "world": self._world,
        }

    def __len__(self) -> int:
        share = -(-self._size // self._world)
        return share // self._batch_size if self._drop_last else -(-share // self._batch_size)

    def _order(self) -> list[int]:
        if self._shuffle:
            import torch

            generator = torch.Generator().manual_seed(_mix(self._seed, self.epoch, -1))
            order = torch.randperm(self._size, generator=generator).tolist()
        else:
            order = list(range(self._size))
        # All processes must have the same number of steps, so some samples are repeated.
        total = -(-self._size // self._world) * self._world
        order += order[: total - self._size]
        return list(order[self._rank :: self._world])

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        order, epoch = self._order(), self.epoch
        for number in range(self.given, len(self)):
            indices = order[number * self._batch_size : (number + 1) * self._batch_size]
            yield [(epoch, index) for index in indices]


class _SeededDataset:
    """A dataset whose samples get the same random numbers in whichever process they are fetched."""

    def __init__(self, dataset: Any, seed: int) -> None:
        self._dataset = dataset
        self._seed = seed

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, key: tuple[int, int]) -> Any:
        return self.__getitems__([key])[0]

    def __getitems__(self, keys: list[tuple[int, int]]) -> list[Any]:
        """Return the samples of a batch, given as (epoch, index); called by DataLoader."""
        from torch.utils.data import get_worker_info

        if get_worker_info() is not None:
            return self._fetch(keys)
        # The training process's own generators must stay as they were.
        before = _get_generator_states()
        try:
            return self._fetch(keys)
        finally:
            _set_generator_states(before)

    def _fetch(self, keys: list[tuple[int, int]]) -> list[Any]:
        samples = []
        for epoch, index in keys:
            _seed_all(_mix(self._seed, epoch, index))
            samples.append(self._dataset[index])
        return samples


class _WorkerInit:
    """Makes a new worker ignore stop signals: the training process handles them and still needs it."""

    def __init__(self, worker_init: Any) -> None:
        self._worker_init = worker_init

    def __call__(self, number: int) -> None:
        for stop in _STOP_SIGNALS:
            signal.signal(stop, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOP_SIGNALS)
        if self._worker_init is not None:
            self._worker_init(number)


@contextlib.contextmanager
def _block_stop_signals() -> Iterator[None]:
    """Defer stop signals; a process that is started meanwhile gets none until it unblocks them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _rank_and_world(torch: Any) -> tuple[int, int]:
    """Return the rank and the number of processes in torch.distributed; (0, 1) if it is not in use."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1


def _mix(seed: int, epoch: int, index: int) -> int:
    """Return a 64-bit seed; neighbouring arguments give unrelated seeds."""
    text = b"%d %d %d" % (seed, epoch, index)
    return zlib.crc32(text) << 32 | zlib.crc32(text[::-1], 0x5EED)


def _seed_all(seed: int) -> None:
    import torch

    random.seed(seed)
    torch.default_generator.manual_seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed & 0xFFFFFFFF)


def _get_generator_states() -> tuple[Any, Any, Any]:
    import torch

    numpy = sys.modules.get("numpy")
    return random.getstate(), torch.get_rng_state(), numpy.random.get_state() if numpy is not None else None


def _set_generator_states(states: tuple[Any, Any, Any]) -> None:
    import torch

    python_state, torch_state, numpy_state = states
    random.setstate(python_state)
    torch.set_rng_state(torch_state)
    if numpy_state is not None:
        sys.modules["numpy"].random.set_state(numpy_state)
