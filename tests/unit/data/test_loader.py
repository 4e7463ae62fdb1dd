"""A loader resumes from any saved position with the same samples, bit for bit."""

from __future__ import annotations

import os
import random
import signal
from typing import Any

import numpy as np
import pytest

from outlast.data import Loader

if "CI" in os.environ:
    import torch  # in CI nothing may be skipped
else:
    torch = pytest.importorskip("torch")


class Noisy:
    """A dataset whose samples use all three random generators."""

    def __len__(self) -> int:
        return 23

    def __getitem__(self, index: int) -> Any:
        return torch.tensor(
            [index, random.random(), np.random.rand(), torch.rand(()).item()], dtype=torch.float64
        )


def loader(workers: int = 0, **options: Any) -> Loader:
    return Loader(Noisy(), batch_size=4, shuffle=True, seed=7, num_workers=workers, **options)


def epochs(count: int, workers: int = 0, **options: Any) -> list[list[Any]]:
    one = loader(workers, **options)
    return [list(one) for _ in range(count)]


def same(left: list[Any], right: list[Any]) -> bool:
    return len(left) == len(right) and all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def test_each_epoch_has_every_sample_once_in_another_order() -> None:
    first, second = epochs(2)
    for epoch in (first, second):
        assert sorted(torch.cat(epoch)[:, 0].int().tolist()) == list(range(23))
    assert not same(first, second)
    assert len(loader()) == len(first) == 6


def test_the_number_of_workers_does_not_change_the_samples() -> None:
    for alone, with_workers in zip(epochs(2), epochs(2, workers=2), strict=True):
        assert same(alone, with_workers)
    for alone, with_workers in zip(epochs(2), epochs(2, workers=2, persistent_workers=True), strict=True):
        assert same(alone, with_workers)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("given", [0, 1, 4, 6])
def test_it_resumes_from_any_batch(workers: int, given: int) -> None:
    whole = epochs(3)
    first = loader(workers)
    list(first)
    batches = iter(first)
    seen = [next(batches) for _ in range(given)]
    state = first.state_dict()
    resumed = loader(workers)
    resumed.load_state_dict(state)
    assert same(seen + list(resumed), whole[1])
    assert same(list(resumed), whole[2])


def test_an_epoch_that_was_left_early_is_not_resumed() -> None:
    one = loader()
    for _ in one:
        break
    assert same(list(one), epochs(2)[1])


def test_fetching_does_not_change_the_generators_of_the_training_process() -> None:
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    expected = random.random(), np.random.rand(), torch.rand(())
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    list(loader())
    assert (random.random(), np.random.rand(), torch.rand(())) == expected


def test_a_position_of_a_loader_with_other_batches_is_refused() -> None:
    state = Loader(Noisy(), batch_size=5, shuffle=True, seed=7).state_dict()
    with pytest.raises(ValueError, match="batch_size 5, and this one has 4"):
        loader().load_state_dict(state)


def test_the_processes_of_a_group_share_an_epoch_and_have_equally_many_steps() -> None:
    parts = [list(loader(rank=rank, world=3)) for rank in range(3)]
    assert {len(part) for part in parts} == {2}
    indices = [torch.cat(part)[:, 0].int().tolist() for part in parts]
    assert set().union(*map(set, indices)) == set(range(23))
    assert sum(map(len, indices)) == 24


def test_workers_survive_the_stop_signal() -> None:
    before = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        batches = iter(loader(2))
        seen = [next(batches)]
        for worker in torch.multiprocessing.active_children():
            os.kill(worker.pid, signal.SIGTERM)
        assert same(seen + list(batches), epochs(1)[0])
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGUSR1])
def test_workers_survive_the_stop_signal_while_they_start(
    stop: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch.utils.data._utils import signal_handling

    prepare = signal_handling._set_worker_signal_handlers

    def prepare_and_signal() -> None:
        prepare()
        os.kill(os.getpid(), stop)

    monkeypatch.setattr(signal_handling, "_set_worker_signal_handlers", prepare_and_signal)
    assert same(list(loader(2)), epochs(1)[0])
    assert stop not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
