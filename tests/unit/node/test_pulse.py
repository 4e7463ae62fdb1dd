"""Long work writes heartbeats when they are due, and is interrupted when the job must end."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from outlast.node import code_archive, files, process, pulse, supervise, time_limits
from outlast.node.event_log import EventLog
from outlast.node.outputs import output_tree
from outlast.node.outputs.delivery import deliver
from outlast.node.scratch import Scratch
from outlast.node.signals import Signals
from outlast.node.snapshots.checkpoint_watch import CheckpointWatch
from outlast.node.supervise import StopSignals

FAR = 1e9
LARGE = 3 * (1 << 20)


@pytest.fixture
def signals() -> Iterator[Signals]:
    with Signals() as signals:
        yield signals


def _pulse(tmp_path: Path, signals: Signals, left: float = FAR, grace: float = FAR) -> pulse.Pulse:
    return pulse.Pulse(signals, EventLog(str(tmp_path / "events")), time.monotonic() + left, grace)


def test_a_heartbeat_is_written_when_it_is_due_and_not_before(
    tmp_path: Path, signals: Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    work_pulse = _pulse(tmp_path, signals)
    for now in (1000.0, 1014.9, 1015.0, 1016.0, 1029.9, 1030.1):  # noqa: B007 the clock reads it
        work_pulse()
    assert (tmp_path / "events").read_text().count('"beat"') == 2


def test_a_stop_signal_before_the_training_interrupts_at_once(tmp_path: Path, signals: Signals) -> None:
    work_pulse = _pulse(tmp_path, signals)
    work_pulse()
    os.kill(os.getpid(), signal.SIGUSR1)
    with pytest.raises(pulse.Interrupted) as caught:
        work_pulse()
    assert (caught.value.why, caught.value.signal) == ("signal", signal.SIGUSR1)


def test_after_the_training_a_stop_signal_leaves_the_grace_period_and_no_more(
    tmp_path: Path, signals: Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    work_pulse = _pulse(tmp_path, signals, grace=30)
    work_pulse.begin_handover()
    os.kill(os.getpid(), signal.SIGTERM)
    work_pulse()
    now = 1029.0
    work_pulse()
    now = 1030.0
    with pytest.raises(pulse.Interrupted) as caught:
        work_pulse()
    assert caught.value.why == "signal"


def test_the_limit_interrupts_too_but_small_outputs_always_get_one_second(
    tmp_path: Path, signals: Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    work_pulse = _pulse(tmp_path, signals, left=5)
    now = 1004.9
    work_pulse()
    work_pulse.begin_handover(at_least=1.0)
    now = 1005.8
    work_pulse()
    now = 1006.0
    with pytest.raises(pulse.Interrupted) as caught:
        work_pulse()
    assert (caught.value.why, caught.value.signal) == ("limit", None)


class _Stop(Exception):
    """Raised by the pulses of these tests."""


def _stop_at_call(count: int) -> Callable[[], None]:
    """Return a pulse that raises at its `count`-th call."""
    calls = 0

    def call() -> None:
        nonlocal calls
        calls += 1
        if calls >= count:
            raise _Stop

    return call


def _copy(top: Path, pulse_call: Callable[[], None]) -> None:
    files.copy_tree(str(top / "output"), str(top / "copy"), pulse_call)


def _carry_over(top: Path, pulse_call: Callable[[], None]) -> None:
    scratch = Scratch(str(top / "next"))
    scratch.prepare(str(top))
    scratch.carry_over(str(top), pulse=pulse_call)


def _deliver(top: Path, pulse_call: Callable[[], None]) -> None:
    deliver(str(top / "output"), str(top / "delivered"), pulse_call)


def _unpack(top: Path, pulse_call: Callable[[], None]) -> None:
    digest = code_archive.pack(top / "output", ["large"], top / "code.tar")
    (top / "job").mkdir()
    code_archive.unpack(str(top / "code.tar"), digest, str(top / "job"), pulse_call)


def _normalize(top: Path, pulse_call: Callable[[], None]) -> None:
    (top / "elsewhere").mkdir()
    (top / "output" / "large").rename(top / "elsewhere" / "large")
    (top / "output").rmdir()
    (top / "output").symlink_to("elsewhere")
    output_tree.normalize_output(str(top / "output"), pulse_call)


@pytest.mark.parametrize("work", [_copy, _carry_over, _deliver, _unpack, _normalize])
def test_work_on_large_files_can_be_interrupted_at_each_block_and_leaves_the_source_unchanged(
    tmp_path: Path, work: Callable[[Path, Callable[[], None]], None]
) -> None:
    output = tmp_path / "output"
    output.mkdir()
    (output / "large").write_bytes(os.urandom(LARGE))
    content = (output / "large").read_bytes()
    with pytest.raises(_Stop):
        work(tmp_path, _stop_at_call(3))
    assert (output / "large").read_bytes() == content
    assert not (tmp_path / "job" / "large").exists()
    assert not (tmp_path / "delivered").exists()
    assert not (tmp_path / "next" / "output").exists()
    assert not (output / "link.outlast-link").exists()


def test_unpacking_can_be_interrupted_within_a_large_file(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(bytes(LARGE))
    code_archive.pack(tmp_path, ["large"], tmp_path / "code.tar")
    (tmp_path / "job").mkdir()
    with pytest.raises(_Stop):
        code_archive.unpack(str(tmp_path / "code.tar"), None, str(tmp_path / "job"), _stop_at_call(3))
    assert (tmp_path / "job" / "large").stat().st_size < LARGE


def test_removing_many_files_can_be_interrupted(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    for number in range(5):
        (tmp_path / "job" / str(number)).touch()
    with pytest.raises(_Stop):
        Scratch(str(tmp_path)).clear(False, FAR, _stop_at_call(3))
    assert len(list((tmp_path / "job").iterdir())) == 3


def test_a_pipe_or_a_link_is_never_read_as_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to("file")
    for name in ("pipe", "link"):
        with pytest.raises(OSError, match=name):
            files.open_file(str(tmp_path / name))
    with pytest.raises(OSError, match="not a regular file"):
        files.open_file("/dev/zero")


@pytest.mark.parametrize("name", ["pipe", "link"])
def test_a_delivery_with_a_pipe_or_a_link_fails_and_does_not_hang(tmp_path: Path, name: str) -> None:
    (tmp_path / "output").mkdir()
    if name == "pipe":
        os.mkfifo(tmp_path / "output" / name)
    else:
        (tmp_path / "output" / name).symlink_to("/etc/hostname")
    with pytest.raises(OSError, match=name):
        deliver(str(tmp_path / "output"), str(tmp_path / "delivered"))
    assert not (tmp_path / "delivered").exists()


def test_a_copy_keeps_mode_and_times_and_omits_pipes(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "run.sh").write_text("x")
    (source / "run.sh").chmod(0o750)
    os.utime(source / "run.sh", (5, 7))
    (source / "link").symlink_to("run.sh")
    os.mkfifo(source / "pipe")
    files.copy_tree(str(source), str(tmp_path / "copy"))
    status = (tmp_path / "copy" / "run.sh").stat()
    assert (status.st_mode & 0o777, status.st_mtime) == (0o750, 7)
    assert (tmp_path / "copy" / "link").readlink() == Path("run.sh")
    assert not (tmp_path / "copy" / "pipe").exists()


class _LateSignals(Signals):
    """Signals of a node program that gets the stop signal only after its child has ended."""

    child: process.Child

    def wait_until(self, moment: float) -> None:
        if self.child.ended:
            os.kill(os.getpid(), signal.SIGTERM)
        super().wait_until(moment)


@pytest.mark.parametrize("script", ["kill -TERM $$", "kill -USR1 $$", "exit 143", "exit 130"])
def test_a_signal_to_the_whole_job_may_reach_the_child_first(tmp_path: Path, script: str) -> None:
    limits = time_limits.limits_for(60, 1, time.monotonic(), time.time())
    (tmp_path / "checkpoints").mkdir()
    with _LateSignals() as signals:
        work_pulse = _pulse(tmp_path, signals)
        signals.child = process.start(["sh", "-c", script], dict(os.environ), str(tmp_path), 2)
        watch = CheckpointWatch(str(tmp_path / "checkpoints"))
        ended = supervise.supervise(signals.child, limits, StopSignals(signal.SIGTERM), 1, work_pulse, watch)
    assert ended.stopped == "signal"
    with _LateSignals() as signals:
        work_pulse = _pulse(tmp_path, signals)
        work_pulse.begin_handover()
        signals.child = process.start(["sh", "-c", script], dict(os.environ), str(tmp_path), 2)
        with pytest.raises(pulse.Interrupted):
            supervise.run_bounded(signals.child, work_pulse)


def test_an_ordinary_failure_of_a_check_is_reported_without_waiting_for_a_signal(tmp_path: Path) -> None:
    with _LateSignals() as signals:
        signals.child = process.start(["sh", "-c", "exit 3"], dict(os.environ), str(tmp_path), 2)
        assert supervise.run_bounded(signals.child, _pulse(tmp_path, signals)) == "exited with 3"
        assert signals.pending_stop() is None
