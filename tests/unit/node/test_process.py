"""Environment, event log, signals and process cleanup of the node program."""

from __future__ import annotations

import errno
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import ClassVar

import pytest

from outlast.domain.model import Checkpoints
from outlast.node import environment, process, process_cleanup, pulse, supervise, time_limits
from outlast.node.event_log import EventLog
from outlast.node.order import SaveSettings, WorkOrder
from outlast.node.signals import STOP_SIGNALS, Signals
from outlast.node.snapshots.checkpoint_watch import CheckpointWatch
from outlast.training.save_interval import SavePlan, read_plan


def _order(**changes: object) -> WorkOrder:
    fields: dict[str, object] = {
        "token": "tok",
        "experiment": "e",
        "run": "digits",
        "number": 3,
        "command": ("true",),
        "exchange": "/x",
        "scratch": "/s",
        "checkpoints": "/c",
        "log": "/l",
    }
    return WorkOrder(**{**fields, **changes})  # type: ignore[arg-type]


def _environment(order: WorkOrder, own: dict[str, str]) -> dict[str, str]:
    limits = replace(time_limits.limits_for(100, 5, time.monotonic(), 0), deadline_epoch=12.3456)
    return environment.for_training(order, limits, "/s/data", "/s/output", "/x/progress.jsonl", own)


def test_staging_uses_the_proxies_and_certificates_of_the_training_unless_the_node_has_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    submitted = {"https_proxy": "http://p:1", "NO_PROXY": "a", "SSL_CERT_FILE": "/mine", "PATH": "/there"}
    monkeypatch.setattr(os, "environ", {"NO_PROXY": "of the node"})
    environment.adopt_network_settings(_order(environment=submitted))
    assert os.environ == {"https_proxy": "http://p:1", "NO_PROXY": "of the node", "SSL_CERT_FILE": "/mine"}


def test_the_environment_of_the_training_has_its_directories_and_its_deadline() -> None:
    found = _environment(
        _order(cpus=3, memory=400_000_000, zipapp="/z.pyz", environment={"LR": "1"}), {"HOME": "/h"}
    )
    assert 0 < float(found.pop("OUTLAST_TIME_LEFT")) <= 91
    boot, reading = found.pop("OUTLAST_CLOCK").split(" ")
    assert boot == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert 0 < float(reading) <= time.monotonic() + 1
    expected = {
        "HOME": "/h",
        "LR": "1",
        "OUTLAST_TOKEN": "tok",
        "OUTLAST_RUN": "digits",
        "OUTLAST_ATTEMPT": "3",
        "OUTLAST_DEADLINE": "12.346",
        "OUTLAST_GRACE": "5.000",
        "OUTLAST_MEMORY": "400000000",
        "OUTLAST_CHECKPOINT_DIR": "/c",
        "OUTLAST_CHECKPOINT_KEEP": "3",
        "OUTLAST_DATA_DIR": "/s/data",
        "OUTLAST_OUTPUT_DIR": "/s/output",
        "OUTLAST_PROGRESS_FILE": "/x/progress.jsonl",
        "OUTLAST_SAVE_EVERY": "auto",
        "OUTLAST_SAVE_SHORTEST": "10.000",
        "OUTLAST_SAVE_LONGEST": "3600.000",
        "OUTLAST_SAVE_BLOCKED": "",
        "OUTLAST_SAVE_DURABLE": "",
        "OUTLAST_OBSERVED": "0.000",
        "OUTLAST_INTERRUPTIONS": "0",
        "OMP_NUM_THREADS": "3",
        "OPENBLAS_NUM_THREADS": "3",
        "MKL_NUM_THREADS": "3",
        "PYTHONUNBUFFERED": "1",
        "PYTHONPATH": "/z.pyz",
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "30",
    }
    assert found == expected


def test_torchrun_gives_its_workers_the_whole_grace_unless_the_user_sets_a_timeout() -> None:
    name = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
    assert _environment(_order(grace=90.2), {})[name] == "91"
    assert _environment(_order(grace=90.2), {name: "7"})[name] == "7"
    assert _environment(_order(grace=90.2, environment={name: "8"}), {name: "7"})[name] == "8"


def test_the_training_reads_the_save_settings_of_the_order_from_its_environment() -> None:
    """Read them with `outlast.training`, which shares only the variable names with the node program."""
    saving = SaveSettings(None, 5.0, 600.0, 7200.0, 3, 0.25, 4.0)
    for settings in (saving, replace(saving, every=90.0), replace(saving, blocked=None, durable=None)):
        found = _environment(
            _order(saving=settings), {"OUTLAST_SAVE_DURABLE": "17", "OUTLAST_SAVE_BLOCKED": "1"}
        )

        def number(name: str, found: dict[str, str] = found) -> float | None:
            return float(found[name]) if found.get(name) else None

        assert asdict(read_plan(found, number)) == asdict(settings)


def test_default_save_settings_are_the_same_in_all_packages() -> None:
    assert asdict(SavePlan()) == asdict(SaveSettings())
    bounds = Checkpoints.every, Checkpoints.shortest, Checkpoints.longest
    assert bounds == (SavePlan.every, SavePlan.shortest, SavePlan.longest)


def test_settings_of_the_user_take_precedence_and_the_thread_count_of_the_node_does_not() -> None:
    order = _order(cpus=2, environment={"OMP_NUM_THREADS": "1", "PYTHONPATH": "/own"}, zipapp="/z.pyz")
    found = _environment(order, {"MKL_NUM_THREADS": "64", "PYTHONPATH": "/node", "PYTHONFAULTHANDLER": "1"})
    assert found["OMP_NUM_THREADS"] == "1"
    assert found["MKL_NUM_THREADS"] == "2"
    assert found["PYTHONPATH"] == "/z.pyz:/own"
    assert "PYTHONFAULTHANDLER" not in found


def test_python_is_resolved_to_a_python_3_that_exists(tmp_path: Path) -> None:
    path = {"PATH": str(tmp_path)}
    assert environment.resolve_python(["python", "x"], path) == (sys.executable, "x")
    (tmp_path / "python3").symlink_to(sys.executable)
    assert environment.resolve_python(["python", "x"], path) == ("python3", "x")
    (tmp_path / "python").symlink_to(sys.executable)
    assert environment.resolve_python(["python", "x"], path) == ("python", "x")
    assert environment.resolve_python(["bash", "python"], path) == ("bash", "python")


@pytest.mark.parametrize(
    ("word", "replaced"),
    [
        ("--out_dir=$OUTLAST_CHECKPOINT_DIR", "--out_dir=/a b/ckpt"),
        ("${OUTLAST_CHECKPOINT_DIR}/last.pt", "/a b/ckpt/last.pt"),
        ("$OUTLAST_RUN", "mine"),
        *((word, word) for word in ("$HOME", "$OUTLAST_NONE", "out", "$", "", "--lr=1e-3")),
        # For a shell, which has the variables itself.
        *(
            (word, word)
            for word in ("train --out $OUTLAST_CHECKPOINT_DIR", "cat<$OUTLAST_RUN", "'$OUTLAST_RUN'")
        ),
    ],
)
def test_outlasts_variables_are_replaced_in_words_that_are_options_or_paths(word: str, replaced: str) -> None:
    values = {"OUTLAST_CHECKPOINT_DIR": "/a b/ckpt", "OUTLAST_RUN": "mine", "HOME": "/root"}
    assert environment.replace_variables(["x", word], values) == ("x", replaced)


def test_a_full_disk_for_the_event_log_is_reported_once_and_raises_nothing(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "outlast.node.event_log.open_to_append", lambda path: os.open(path, os.O_WRONLY | os.O_APPEND)
    )
    events = EventLog("/dev/full")
    for _ in range(3):
        events.write("beat")
    events.sync()
    events.close()
    events.write("beat")
    printed = capfd.readouterr().err
    assert printed.count("cannot write the event log") == 1
    assert "No space left" in printed


def test_a_line_torn_by_a_full_disk_damages_no_other_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "events.jsonl"
    events = EventLog(str(path))
    write = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:9]))
        events.write("torn")
    events.write("beat", text="für dich\n")
    events.close()
    torn, whole = path.read_bytes().splitlines()
    assert torn == b'{"event":'
    assert json.loads(whole)["text"] == "für dich\n"
    assert {"event", "at", "mono"} <= set(json.loads(whole))


def test_heartbeats_are_written_while_the_training_computes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "go")
    (tmp_path / "checkpoints").mkdir()

    class RecordingLog(EventLog):
        """An event log that lets the training end after the second heartbeat."""

        written: ClassVar[list[str]] = []

        def write(self, event: str, **fields: object) -> None:
            self.written.append(event)
            if event == "beat" and self.written.count("beat") == 2:
                (tmp_path / "go").write_text("\n")

    monkeypatch.setattr(pulse, "HEARTBEAT_INTERVAL", 0.01)
    with Signals() as signals:
        child = process.start(["sh", "-c", "read line < go"], dict(os.environ), str(tmp_path), 2)
        limits = time_limits.limits_for(60, 1, time.monotonic(), time.time())
        beats = pulse.Pulse(signals, RecordingLog(str(tmp_path / "events")), limits.last_moment, 1)
        watch = CheckpointWatch(str(tmp_path / "checkpoints"))
        ended = supervise.supervise(child, limits, supervise.StopSignals(signal.SIGTERM), 1, beats, watch)
    assert (ended.code, ended.stopped) == (0, None)
    assert RecordingLog.written[:2] == ["beat", "beat"]
    assert RecordingLog.written[-1] == "exit"


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_stop_signal_is_kept_until_it_is_read_and_repeats_are_harmless(number: int) -> None:
    before = signal.getsignal(number)
    with Signals() as signals:
        assert signals.pending_stop() is None
        for _ in range(100):
            os.kill(os.getpid(), number)
        os.kill(os.getpid(), signal.SIGUSR1)
        assert signals.pending_stop() == number
        assert signals.pending_stop() == number
    assert signal.getsignal(number) is before


def test_waiting_ends_when_a_child_ends_even_if_sigchld_was_ignored_before() -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with Signals() as signals:
            child = process.start(["sh", "-c", "exit 7"], dict(os.environ), "/", 2)
            while not child.reap():
                signals.wait(30)
            assert child.code == 7
    finally:
        signal.signal(signal.SIGCHLD, before)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["no-such-program"], "no program of that name is on PATH"),
        (["./no-such-file"], "no such file"),
        (["./plain"], "not executable"),
        (["./nonsense"], "without a #! line"),
        (["a\0b"], "cannot be started"),
        ([], "no command"),
    ],
)
def test_the_error_for_a_command_that_cannot_start_gives_the_cause(
    tmp_path: Path, command: list[str], message: str
) -> None:
    (tmp_path / "plain").write_text("#!/bin/sh\n")
    (tmp_path / "nonsense").write_text("echo hi\n")
    (tmp_path / "nonsense").chmod(0o755)
    with pytest.raises(process.CannotStart, match=message):
        process.start(command, dict(os.environ), str(tmp_path), 2)


def test_a_closed_directory_on_path_does_not_hide_that_a_program_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:  # what a directory that cannot be entered leads to
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    with pytest.raises(process.CannotStart, match="no program of that name"):
        process.start(["no-such-program"], {"PATH": "/closed:/bin"}, str(tmp_path), 2)
    (tmp_path / "tool").write_text("#!/bin/sh\n")
    with pytest.raises(process.CannotStart, match="not executable"):
        process.start(["tool"], {"PATH": str(tmp_path)}, str(tmp_path), 2)


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for one in started:
        one.kill()
        one.wait(timeout=10)


def test_only_processes_with_the_token_are_killed(
    processes: list[subprocess.Popen[bytes]],
) -> None:
    for token in ("node-test-a", "node-test-a", "node-test-ab"):
        env = {**os.environ, "OUTLAST_TOKEN": token}
        processes.append(subprocess.Popen(["sleep", "60"], env=env, start_new_session=True))
    victims = {processes[0].pid, processes[1].pid}
    assert set(process_cleanup.kill_by_token("node-test-a")) == victims
    assert [one.wait(timeout=10) for one in processes[:2]] == [-signal.SIGKILL, -signal.SIGKILL]
    assert processes[2].poll() is None
    assert process_cleanup.kill_by_token("node-test-a") == []


FAMILY = r"""
import os, sys, time
from outlast.node import process_cleanup

assert process_cleanup.become_subreaper()
reader, writer = os.pipe()
for depth in range(6):
    if os.fork() == 0:
        os.setsid()
        for _ in range(depth):
            if os.fork():
                os._exit(0)
            os.setsid()
        os.write(writer, b"%d " % os.getpid())
        time.sleep(600)
pids = b""
while pids.count(b" ") < 6:
    pids += os.read(reader, 1000)
assert process_cleanup.kill_descendants("unused") == []
alive = [pid for pid in map(int, pids.split()) if os.path.exists("/proc/%d" % pid)]
print(len(pids.split()), alive)
"""


def test_descendants_in_their_own_sessions_are_killed_and_reaped() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FAMILY], stdout=subprocess.PIPE, text=True, timeout=60, check=True
    )
    assert done.stdout.split(maxsplit=1) == ["6", "[]\n"]


PARENT = r"""
import os, sys
from outlast.node import process
child = process.start(["sleep", "600"], dict(os.environ), "/", 2)
print(child.pid, flush=True)
sys.stdin.read()
"""


def test_a_training_dies_with_its_node_program() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        watched = os.pidfd_open(pid)
        try:
            parent.kill()
            ready, _, _ = select.select([watched], [], [], 20)
            assert ready, "the training outlived its node program"
        finally:
            os.close(watched)


def test_a_wait_until_a_time_in_the_past_returns() -> None:
    with Signals() as signals:
        signals.wait_until(time.monotonic() - 5)
