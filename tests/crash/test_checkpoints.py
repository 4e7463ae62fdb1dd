"""Checkpoints after every cut, every flipped bit, every failing call and kills at random moments."""

from __future__ import annotations

import errno
import functools
import itertools
import os
import random
import select
import shutil
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outlast.training.checkpoints import checkpoint_names, file_format
from outlast.training.checkpoints.checkpoint_store import CheckpointStore
from outlast.training.checkpoints.ranks import Ranks
from outlast.training.checkpoints.state_tree import flatten
from outlast.training.errors import CheckpointError
from outlast.training.training_session import SessionSettings, TrainingSession
from support.checkpoints import Waiting, content_of

STATE = file_format.part_name()
OLD: dict[str, Any] = {"step": 1, "w": [0.5, -1.5]}
NEW: dict[str, Any] = {"step": 2, "w": [0.25, -1.25], "b": b"bias"}
FAILING = (
    "open",
    "write",
    "fsync",
    "rename",
    "mkdir",
    "listdir",
    "close",
    "preadv",
    "fstat",
    "unlink",
    "rmdir",
)


def start(place: Path, keep: int = 3) -> Waiting:
    return Waiting(SessionSettings(directory=str(place), keep=keep))


def names_in(place: Path) -> list[str]:
    return [path.name for path in place.iterdir()]


def newest(place: Path) -> Path:
    return place / max(
        filter(checkpoint_names.is_checkpoint, names_in(place)), key=checkpoint_names.parse_age
    )


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """Return a directory with an old and a new checkpoint."""
    place = tmp_path / "checkpoints"
    session = start(place)
    assert session.save(OLD, step=1)
    assert session.save(NEW, step=2)
    return place


def spoilt_ones(place: Path, spoil: Callable[[bytes], Iterator[bytes]]) -> int:
    """Load with every spoilt form of the newest checkpoint's file; return how many there were."""
    checkpoint = newest(place)
    count = 0
    file = checkpoint / STATE
    whole = file.read_bytes()
    for content in spoil(whole):
        file.write_bytes(content)
        assert start(place).load() == OLD, content
        (aside,) = filter(checkpoint_names.is_bad, names_in(place))
        (place / aside).rename(checkpoint)
        count += 1
    file.write_bytes(whole)
    assert start(place).load() == NEW
    return count


def test_a_checkpoint_cut_at_any_byte_is_never_loaded_and_the_one_before_is(two: Path) -> None:
    count = spoilt_ones(two, lambda whole: (whole[:length] for length in range(len(whole))))
    assert count > 300


def flips(whole: bytes) -> Iterator[bytes]:
    for position, bit in itertools.product(range(len(whole)), range(8)):
        yield whole[:position] + bytes([whole[position] ^ (1 << bit)]) + whole[position + 1 :]


def test_a_checkpoint_with_any_bit_flipped_is_never_loaded_and_the_one_before_is(two: Path) -> None:
    assert spoilt_ones(two, flips) > 3000


class Pair(Ranks):
    """One of two processes that save and load together, as a thread of this test."""

    world = 2

    def __init__(self, rank: int, barrier: threading.Barrier, values: list[Any]) -> None:
        self.rank, self._barrier, self._values = rank, barrier, values

    def broadcast(self, make: Callable[[], Any]) -> Any:
        return self.gather(make() if self.rank == 0 else None)[0]

    def gather(self, value: Any) -> list[Any]:
        self._values[self.rank] = value
        self._barrier.wait(30)
        values = list(self._values)
        self._barrier.wait(30)
        return values


def in_both(place: Path, work: Callable[[CheckpointStore], Any]) -> list[Any]:
    """Return what `work` returns or raises in each of two processes, each with its own store."""
    barrier, values, results = threading.Barrier(2), [None, None], [None, None]

    def run(rank: int) -> None:
        pair = Pair(rank, barrier, values)
        try:
            store = CheckpointStore(
                str(place), 3, dict, lambda text: None, lambda name, why: None, "token", pair
            )
            results[rank] = work(store)
        except Exception as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_a_part_with_any_bit_flipped_or_cut_at_any_byte_makes_all_processes_load_the_one_before(
    tmp_path: Path,
) -> None:
    place = tmp_path / "checkpoints"
    content = content_of(flatten(None))

    def save(store: CheckpointStore) -> None:
        store.load()
        for step in (1, 2):
            pending = store._ranks.broadcast(functools.partial(store.begin, step))
            store.save(content, step, pending)

    assert in_both(place, save) == [None, None]
    checkpoint = newest(place)
    parts = sorted(checkpoint.iterdir())
    assert [part.name for part in parts] == [file_format.part_name(rank, 2) for rank in range(2)]

    def step(store: CheckpointStore) -> Any:
        loaded = store.load()
        return loaded[1].step if loaded else None

    for part in parts:
        whole = part.read_bytes()
        cuts = (whole[:length] for length in range(len(whole)))
        for spoilt in itertools.chain(flips(whole), cuts):
            part.write_bytes(spoilt)
            assert in_both(place, step) == [1, 1], (part.name, spoilt)
            (aside,) = filter(checkpoint_names.is_bad, names_in(place))
            (place / aside).rename(checkpoint)
        part.write_bytes(whole)
    assert in_both(place, step) == [2, 2]


@pytest.mark.parametrize("rank", [0, 1])
def test_an_error_of_one_process_while_loading_is_raised_by_all_and_none_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: int
) -> None:
    place = tmp_path / "checkpoints"
    content = content_of(flatten(None))

    def save(store: CheckpointStore) -> None:
        store.load()
        store.save(content, 1, store._ranks.broadcast(functools.partial(store.begin, 1)))

    assert in_both(place, save) == [None, None]
    real = file_format.read_state

    def refuse(path: str) -> Any:
        if path.endswith(file_format.part_name(rank, 2)):
            raise CheckpointError("a library is missing")
        return real(path)

    monkeypatch.setattr(file_format, "read_state", refuse)
    errors = in_both(place, CheckpointStore.load)
    assert str(errors[rank]) == "a library is missing"
    assert str(errors[1 - rank]) == "process %d of 2 has failed: CheckpointError: a library is missing" % rank
    monkeypatch.undo()
    assert [loaded[1].step for loaded in in_both(place, CheckpointStore.load)] == [1, 1]


def test_parts_of_different_checkpoints_are_never_loaded_together(tmp_path: Path) -> None:
    place = tmp_path / "checkpoints"
    content = content_of(flatten(None))

    def save(store: CheckpointStore) -> None:
        store.load()
        for step in (1, 2, 3):
            store.save(content, step, store._ranks.broadcast(functools.partial(store.begin, step)))

    assert in_both(place, save) == [None, None]
    _, middle, new = sorted(filter(checkpoint_names.is_checkpoint, names_in(place)))
    name = file_format.part_name(1, 2)
    shutil.copy(place / middle / name, place / new / name)
    assert [loaded[1].step for loaded in in_both(place, CheckpointStore.load)] == [2, 2]


def test_a_claim_with_any_bit_flipped_or_cut_at_any_byte_prevents_no_load(two: Path) -> None:
    (claim,) = two.glob(".generation-*")
    whole = claim.read_bytes()
    cuts = (whole[:length] for length in range(len(whole)))
    for spoilt in itertools.chain(flips(whole), cuts):
        claim.write_bytes(spoilt)
        assert start(two).load() == NEW, spoilt
        (made,) = two.glob(".generation-*")
        made.rename(claim)


def test_a_checkpoint_with_more_bytes_than_were_written_is_never_loaded(two: Path) -> None:
    spoilt_ones(two, lambda whole: iter((whole + b"\0", whole + whole, b"\n" + whole)))


def test_a_zeroed_page_in_the_middle_of_a_large_state_is_detected(two: Path) -> None:
    session = start(two)
    session.save(np.arange(400_000.0), step=3)
    with open(newest(two) / STATE, "r+b") as file:
        file.seek(2_000_000)
        file.write(bytes(4096))
    assert start(two).load() == NEW


def test_each_part_is_durable_before_the_next_depends_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = start(tmp_path)
    for step in range(4):
        session.save(OLD, step=step)
    calls: list[str] = []

    def recorded(name: str) -> None:
        real = getattr(os, name)

        def call(first: Any, *args: Any, **kwargs: Any) -> Any:
            path = str(Path("/proc/self/fd/%d" % first).readlink()) if isinstance(first, int) else str(first)
            calls.append("%s %s" % (name, "parent" if path == str(tmp_path) else Path(path).suffix))
            return real(first, *args, **kwargs)

        monkeypatch.setattr(os, name, call)

    for name in ("mkdir", "write", "fsync", "rename"):
        recorded(name)
    session.save(NEW, step=9)
    assert calls == [
        "mkdir .tmp",
        "write .outlast",
        "write .outlast",
        "fsync .outlast",
        "fsync .tmp",
        "rename .tmp",
        "fsync parent",
        "rename ",
    ]


class Faults:
    """Makes the n-th of the counted calls fail, or that one and all after it."""

    def __init__(self, patch: pytest.MonkeyPatch, code: int, at: int, lasting: bool) -> None:
        self.count = 0
        self._code, self._at, self._lasting = code, at, lasting
        for name in FAILING:
            patch.setattr(os, name, self._failing(getattr(os, name)))

    def _failing(self, real: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.count += 1
            if self.count == self._at or (self._lasting and self.count > self._at):
                if real is _CLOSE:
                    real(*args)
                raise OSError(self._code, os.strerror(self._code))
            return real(*args, **kwargs)

        return call


_CLOSE = os.close


@pytest.mark.parametrize("lasting", [False, True], ids=["once", "from then on"])
@pytest.mark.parametrize(
    "code", [errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS], ids=errno.errorcode.get
)
def test_a_save_that_fails_at_any_call_loses_nothing_and_the_training_continues(
    tmp_path: Path, code: int, lasting: bool
) -> None:
    pattern = tmp_path / "pattern"
    session = start(pattern, keep=2)
    session.save("older", step=0)
    session.save(OLD, step=1)
    failures = 0
    for at in itertools.count(1):
        place = tmp_path / "checkpoints"
        shutil.copytree(pattern, place)
        session = start(place, keep=2)
        assert session.load() == OLD
        with pytest.MonkeyPatch.context() as patch:
            faults = Faults(patch, code, at, lasting)
            saved = session.save(NEW, step=2)
        if saved:
            assert start(place).load() == NEW
        else:
            failures += 1
            assert start(place).load() in (OLD, NEW)
        session = start(place, keep=2)
        session.load()
        assert session.save({"step": 3}, step=3)
        assert start(place).load() == {"step": 3}
        assert not [name for name in names_in(place) if name.endswith(".tmp")]
        shutil.rmtree(place)
        if faults.count < at:
            break
    assert saved
    assert failures > 15


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_load_that_fails_at_any_call_gives_a_whole_state_or_a_clear_error(two: Path, code: int) -> None:
    for at in itertools.count(1):
        with pytest.MonkeyPatch.context() as patch:
            faults = Faults(patch, code, at, lasting=False)
            try:
                assert start(two).load() in (OLD, NEW)
            except CheckpointError as error:
                assert "cannot list the checkpoints" in str(error)
        assert start(two).load() == NEW
        if faults.count < at:
            break
    assert at > 10


@pytest.mark.parametrize(
    "code", [errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EIO], ids=errno.errorcode.get
)
def test_a_save_is_safe_where_directories_cannot_be_synced_and_not_where_syncing_them_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    real = os.fsync

    def fsync(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(code, os.strerror(code))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    place = tmp_path / "new" / "checkpoints"
    session = start(place)
    assert session.load() is None
    assert session.save(OLD, step=1) is (code != errno.EIO)
    assert start(place).load() == (OLD if code != errno.EIO else None)


SAVING = """
import sys, outlast
state = outlast.load()
step = 0 if state is None else state["step"]
while True:
    step += 1
    outlast.save({"step": step, "weights": bytes([step % 256]) * 500_000}, step=step, wait=True)
    sys.stdout.write("%d\\n" % step)
    sys.stdout.flush()
"""


def read_for(stream: Any, seconds: float) -> bytes:
    """Return what the process prints until a pause of `seconds`; the process is killed then."""
    printed = b""
    while select.select([stream], [], [], seconds)[0]:
        piece = os.read(stream.fileno(), 65536)
        printed += piece
        if not piece or printed.count(b"\n") > 3:
            break
    return printed


def test_a_process_killed_at_a_random_moment_of_saving_loses_nothing_it_reported(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    chance = random.Random(seed)
    place = tmp_path / "checkpoints"
    environment = {**os.environ, "OUTLAST_CHECKPOINT_DIR": str(place)}
    reported = 0
    for _ in range(30):
        process = subprocess.Popen([sys.executable, "-c", SAVING], env=environment, stdout=subprocess.PIPE)
        assert process.stdout is not None
        try:
            printed = process.stdout.readline() + read_for(process.stdout, chance.uniform(0, 0.01))
        finally:
            process.send_signal(signal.SIGKILL)
            printed += process.stdout.read()
            process.stdout.close()
            process.wait(30)
        reported = max([reported, *map(int, printed.split())])
        state = start(place).load()
        assert state["step"] >= reported
        assert state["weights"] == bytes([state["step"] % 256]) * 500_000
    assert not [name for name in names_in(place) if name.endswith(".tmp")]


ZOMBIE = """
import sys, outlast
outlast.load()
outlast.save({"by": "zombie"}, step=1, wait=True)
print("saved", flush=True)
sys.stdin.readline()
outlast.save({"by": "zombie"}, step=2, wait=True)
"""


def test_a_process_that_was_believed_dead_cannot_save_after_its_heir_has_started(tmp_path: Path) -> None:
    place = tmp_path / "checkpoints"
    environment = {**os.environ, "OUTLAST_CHECKPOINT_DIR": str(place)}
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", ZOMBIE]
    with subprocess.Popen(
        command, env=environment, text=True, stdin=pipe, stdout=pipe, stderr=pipe
    ) as zombie:
        try:
            assert zombie.stdout is not None
            assert zombie.stdout.readline() == "saved\n"
            heir = start(place)
            assert heir.load() == {"by": "zombie"}
            assert heir.save({"by": "heir"}, step=1)
            _, errors = zombie.communicate("go\n", timeout=30)
        finally:
            zombie.kill()
    assert zombie.returncode == 1
    assert "Superseded: another process (process %d on" % os.getpid() in errors
    assert start(place).load() == {"by": "heir"}


RANK = """
import sys, outlast
outlast.load()
print("loaded", flush=True)
sys.stdin.readline()
for step in range(1, 21):
    outlast.save({"step": step, "rank": int(sys.argv[1]), "weights": bytes(100_000)}, step=step, wait=True)
print("saved", flush=True)
sys.stdin.readline()
outlast.save({}, step=99, wait=True)
"""


def test_all_processes_of_an_attempt_may_save_at_once_and_none_after_its_heir_has_started(
    tmp_path: Path,
) -> None:
    place = tmp_path / "checkpoints"
    environment = {**os.environ, "OUTLAST_CHECKPOINT_DIR": str(place), "OUTLAST_TOKEN": "t1"}
    pipe = subprocess.PIPE
    ranks: list[subprocess.Popen[str]] = []
    try:
        for number in range(4):
            command = [sys.executable, "-c", RANK, str(number)]
            ranks.append(
                subprocess.Popen(command, env=environment, text=True, stdin=pipe, stdout=pipe, stderr=pipe)
            )
        for line in ("loaded\n", "saved\n"):
            for rank in ranks:
                assert rank.stdout is not None and rank.stdin is not None
                assert rank.stdout.readline() == line, rank.communicate(timeout=30)
            if line == "saved\n":
                heir = TrainingSession(SessionSettings(directory=str(place), token="t2"))
                assert heir.load()["step"] == 20
            for rank in ranks:
                assert rank.stdin is not None
                rank.stdin.write("go on\n")
                rank.stdin.flush()
        errors = [rank.communicate(timeout=30)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
    assert [rank.returncode for rank in ranks] == [1] * 4
    for error in errors:
        assert error.startswith("Traceback") and "Superseded: another process" in error, error
    found = [name for name in names_in(place) if not name.startswith(".generation-")]
    assert len(found) >= 3 and all(map(checkpoint_names.is_checkpoint, found)), found


def train(place: Path, steps: int, stops: Iterator[int]) -> Any:
    """Train a small regression; each number of `stops` is the number of steps of one attempt."""
    while True:
        session = start(place)
        state = session.load()
        generator = np.random.default_rng(11)
        if state is None:
            weights, momentum, step = generator.normal(size=8), np.zeros(8), 0
        else:
            weights, momentum, step = state["weights"], state["momentum"], state["step"]
            generator.bit_generator.state = state["generator"]
        last = step + next(stops)
        while step < steps and step < last:
            inputs = generator.normal(size=(16, 8))
            gradient = inputs.T @ (inputs @ weights - inputs.sum(axis=1)) / 16
            momentum = 0.9 * momentum + gradient
            weights = weights - 0.01 * momentum
            step += 1
            if step % 3 == 0 or step == steps:
                state = {"weights": weights, "momentum": momentum, "step": step}
                session.save({**state, "generator": generator.bit_generator.state}, step=step)
        if step == steps:
            return weights


def test_a_run_interrupted_at_random_places_ends_with_the_same_weights(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    chance = random.Random(seed)
    undisturbed = train(tmp_path / "a", 60, itertools.repeat(60))
    disturbed = train(tmp_path / "b", 60, iter(lambda: chance.randint(3, 17), 0))
    assert undisturbed.tobytes() == disturbed.tobytes()
