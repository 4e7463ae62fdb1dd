"""Batches of a map-style dataset with a position that can be saved, exact with any number of workers.

Which samples make which batch follows from (seed, epoch) alone, so a position is two numbers. Before each
sample the random generators are seeded from (seed, epoch, index): what a dataset draws for a sample does not
depend on the worker that fetches it, on what was fetched before, or on whether the training was interrupted.
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
    """`torch.utils.data.DataLoader` with `state_dict()` and `load_state_dict()`.

    Each iteration is one epoch. After `load_state_dict` the next one gives out what was left of it, which may
    be nothing. The options are those of DataLoader; where torch.distributed is in use each process gets its
    share of the samples.
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
            raise ValueError("batch_size is %d; a batch has one sample at least" % batch_size)
        if rank is None or world is None:
            rank, world = _place_in_group(torch)
        self._size = len(dataset)
        self._batches = _Batches(self._size, batch_size, shuffle, seed, drop_last, rank, world)
        initialise = options.pop("worker_init_fn", None)
        seeded: Any = _Seeded(dataset, seed)
        self._loader: Any = DataLoader(
            seeded,
            batch_sampler=self._batches,
            num_workers=num_workers,
            worker_init_fn=_Worker(initialise),
            # It draws a seed for its workers from here, and leaves the training's generator alone.
            generator=torch.Generator().manual_seed(seed),
            **options,
        )
        self._under_way = False

    def __len__(self) -> int:
        """Batches in an epoch."""
        return len(self._batches)

    @property
    def epoch(self) -> int:
        return self._batches.epoch

    def __iter__(self) -> Iterator[Any]:
        batches = self._batches
        if self._under_way:  # the last one was left before its end
            batches.epoch, batches.given = batches.epoch + 1, 0
        self._under_way = True
        with _stop_signals_held():  # workers that start are without their own handling of them for a while
            given_out = iter(self._loader)
        for batch in given_out:
            batches.given += 1
            yield batch
        batches.epoch, batches.given = batches.epoch + 1, 0
        self._under_way = False

    def state_dict(self) -> dict[str, Any]:
        return {**self._batches.identity(), "epoch": self._batches.epoch, "given": self._batches.given}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        ours = self._batches.identity()
        other = {name: value for name, value in ours.items() if state.get(name) != value}
        if other:
            name, value = next(iter(other.items()))
            raise ValueError(
                "the position is that of a loader with %s %s, and this one has %s: its batches are others"
                % (name, state.get(name), value)
            )
        self._batches.epoch, self._batches.given = state["epoch"], state["given"]
        self._under_way = False


class _Batches:
    """The batches of an epoch that have not been given out, each a list of (epoch, index)."""

    def __init__(
        self, size: int, batch_size: int, shuffle: bool, seed: int, drop_last: bool, rank: int, world: int
    ) -> None:
        self._size, self._batch_size = size, batch_size
        self._shuffle, self._seed, self._drop_last = shuffle, seed, drop_last
        self._rank, self._world = rank, world
        self.epoch = 0
        self.given = 0

    def identity(self) -> dict[str, Any]:
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

            generator = torch.Generator().manual_seed(_mixed(self._seed, self.epoch, -1))
            order = torch.randperm(self._size, generator=generator).tolist()
        else:
            order = list(range(self._size))
        # All processes have the same number of steps: some samples are there twice.
        whole = -(-self._size // self._world) * self._world
        order += order[: whole - self._size]
        return list(order[self._rank :: self._world])

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        order, epoch = self._order(), self.epoch
        for number in range(self.given, len(self)):
            indices = order[number * self._batch_size : (number + 1) * self._batch_size]
            yield [(epoch, index) for index in indices]


class _Seeded:
    """The dataset, whose samples draw the same random numbers wherever they are fetched."""

    def __init__(self, dataset: Any, seed: int) -> None:
        self._dataset = dataset
        self._seed = seed

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, place: tuple[int, int]) -> Any:
        return self.__getitems__([place])[0]

    def __getitems__(self, places: list[tuple[int, int]]) -> list[Any]:
        """All samples of a batch; this is what DataLoader asks for."""
        from torch.utils.data import get_worker_info

        if get_worker_info() is not None:
            return self._fetch(places)
        # In the training's own process its generators must be as they were.
        before = _generators()
        try:
            return self._fetch(places)
        finally:
            _restore(before)

    def _fetch(self, places: list[tuple[int, int]]) -> list[Any]:
        samples = []
        for epoch, index in places:
            _seed_all(_mixed(self._seed, epoch, index))
            samples.append(self._dataset[index])
        return samples


class _Worker:
    """What a worker does first: the stop signals are for the training, which still needs its workers."""

    def __init__(self, then: Any) -> None:
        self._then = then

    def __call__(self, number: int) -> None:
        for stop in _STOP_SIGNALS:
            signal.signal(stop, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOP_SIGNALS)
        if self._then is not None:
            self._then(number)


@contextlib.contextmanager
def _stop_signals_held() -> Iterator[None]:
    """They come afterwards; a process that is started meanwhile gets none until it asks for them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _place_in_group(torch: Any) -> tuple[int, int]:
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1


def _mixed(seed: int, epoch: int, index: int) -> int:
    """Neighbouring numbers give seeds that have nothing in common."""
    text = b"%d %d %d" % (seed, epoch, index)
    return zlib.crc32(text) << 32 | zlib.crc32(text[::-1], 0x5EED)


def _seed_all(seed: int) -> None:
    import torch

    random.seed(seed)
    torch.default_generator.manual_seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed & 0xFFFFFFFF)


def _generators() -> tuple[Any, Any, Any]:
    import torch

    numpy = sys.modules.get("numpy")
    return random.getstate(), torch.get_rng_state(), numpy.random.get_state() if numpy is not None else None


def _restore(before: tuple[Any, Any, Any]) -> None:
    import torch

    python, torchs, numpys = before
    random.setstate(python)
    torch.set_rng_state(torchs)
    if numpys is not None:
        sys.modules["numpy"].random.set_state(numpys)
