"""The node program as a scheduler starts it: real processes, real signals, real kills."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from outlast.exchange import zipapp
from outlast.node import claim, code_archive, main, process_cleanup
from outlast.node.environment import for_training
from outlast.node.order import WorkOrder
from outlast.node.output_rule import OutputRule
from outlast.node.outputs.delivery import deliver
from outlast.node.protocol import EXIT_BAD_ORDER, EXIT_NOT_CLAIMED, Phase
from outlast.node.scratch import Scratch


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


#: Seconds: longer than any step takes on a busy machine. A passing test never waits that long.
TIMEOUT = 60
#: The exit code for an attempt that is continued: no scheduler shows it as failed. The log has its outcome.
CONTINUED = 0


@pytest.fixture(scope="module")
def pyz(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("zipapp") / "outlast.pyz"
    zipapp.build(target)
    return target


class Bench:
    """The directories of an attempt, and the node program that runs it."""

    def __init__(self, top: Path, pyz: Path) -> None:
        self.top, self.pyz = top, pyz
        self.exchange, self.scratch = top / "exchange", top / "scratch"
        self.checkpoints, self.log = top / "checkpoints", top / "logs" / "log.txt"
        self.token = f"token-{os.getpid()}-{top.name}"
        self.exchange.mkdir()
        self._running: list[subprocess.Popen[str]] = []
        os.mkfifo(top / "ready")
        self._ready = os.open(top / "ready", os.O_RDWR | os.O_NONBLOCK)
        self.stderr = ""

    def start(
        self,
        *command: str,
        python: str = sys.executable,
        variables: dict[str, str] | None = None,
        stderr: int | IO[str] = subprocess.PIPE,
        **changes: Any,
    ) -> subprocess.Popen[str]:
        self.write_order(*command, **changes)
        process = subprocess.Popen(
            [python, str(self.pyz), str(self.top / "order.json")],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env={**os.environ, **(variables or {})},
        )
        self._running.append(process)
        return process

    def write_order(self, *command: str, **changes: Any) -> None:
        order = WorkOrder(
            token=self.token,
            experiment="e",
            run="digits",
            number=1,
            command=command,
            exchange=str(self.exchange),
            scratch=str(self.scratch),
            checkpoints=str(self.checkpoints),
            log=str(self.log),
            zipapp=str(self.pyz),
            environment={"READY": str(self.top / "ready")},
        )
        order = dataclasses.replace(order, **changes)
        (self.top / "order.json").write_text(order.to_json())

    def end(self, process: subprocess.Popen[str]) -> int:
        stdout, self.stderr = process.communicate(timeout=TIMEOUT)
        assert stdout == ""
        return process.returncode

    def run(self, *command: str, **changes: Any) -> int:
        return self.end(self.start(*command, **changes))

    def read_ready(self) -> str:
        """Wait until the training has written to $READY, or the node program has ended; return the text."""
        ended = os.pidfd_open(self._running[-1].pid) if self._running[-1].returncode is None else self._ready
        try:
            ready, _, _ = select.select([self._ready, ended], [], [], TIMEOUT)
        finally:
            if ended != self._ready:
                os.close(ended)
        assert self._ready in ready, f"the training never got there; see {self.top}"
        return os.read(self._ready, 4096).decode().strip()

    def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in (self.exchange / "events.jsonl").read_text().splitlines()]
        return [line for line in lines if kind in (None, line["event"])]

    @property
    def last(self) -> dict[str, Any]:
        last = self.events()[-1]
        assert last["event"] == "end"
        return last

    def close(self) -> None:
        os.close(self._ready)
        for process in self._running:
            if process.poll() is None:
                process.kill()
            process.wait(timeout=TIMEOUT)
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()


@pytest.fixture
def bench(tmp_path: Path, pyz: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path, pyz)
    yield bench
    bench.close()


def _is_gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def test_a_training_that_ends_well_is_delivered_and_every_phase_is_logged(bench: Bench) -> None:
    code = bench.run(
        "sh", "-c", "echo hello; echo 1 > $OUTLAST_OUTPUT_DIR/a", outputs=(OutputRule("a"),), environment={}
    )
    assert code == 0
    assert [event["phase"] for event in bench.events("phase")] == [phase.value for phase in Phase]
    (claimed,) = bench.events("claimed")
    assert set(claimed) == {"event", "at", "mono", "token", "host", "pid", "job", "leg", "python"}
    assert bench.events("exit")[0]["code"] == 0
    assert bench.last["outcome"] == "finished"
    assert bench.last["tail"] == "hello"
    assert bench.last["signature"] is None
    assert bench.last["progressed"] is False
    assert set(bench.last["delivered"]) == {"a"}
    assert (bench.exchange / "output" / "a").read_text() == "1\n"
    assert bench.log.read_text() == "hello\n"
    assert not bench.scratch.exists()
    times = [event["mono"] for event in bench.events()]
    assert times == sorted(times)


def test_a_second_job_for_the_same_attempt_touches_nothing(bench: Bench) -> None:
    assert claim.acquire(str(bench.exchange / "claim.json"), "other", "17", "alpha")
    assert bench.run("touch", str(bench.top / "touched")) == EXIT_NOT_CLAIMED
    assert "belongs to job 17 on alpha" in bench.stderr
    assert _names(bench.exchange) == ["claim.json"]
    assert not (bench.top / "touched").exists()
    assert not bench.scratch.exists()


def test_a_fenced_attempt_does_not_start(bench: Bench) -> None:
    assert claim.fence(str(bench.exchange / "claim.json"), "the controller")
    assert bench.run("touch", str(bench.top / "touched")) == EXIT_NOT_CLAIMED
    assert "given up by the controller" in bench.stderr
    assert not (bench.top / "touched").exists()


def test_the_job_id_comes_from_the_scheduler(bench: Bench) -> None:
    bench.run("true", variables={"OUTLAST_JOB": "4711", "OUTLAST_HOST": "beta"})
    holder = claim.read(str(bench.exchange / "claim.json"))
    assert holder is not None
    assert (holder.job, holder.host) == ("4711", "beta")


@pytest.mark.parametrize(
    "content",
    [
        *("", "{}", '{"version": 99}', '{"version": 1, "command": 3}'),
        '{"version": 1, "command": ["true"], "saving": []}',
    ],
)
def test_a_work_order_that_cannot_be_read_has_its_own_exit_code(bench: Bench, content: str) -> None:
    path = bench.top / "bad.json"
    path.write_text(content)
    done = subprocess.run(
        [sys.executable, str(bench.pyz), str(path)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert done.returncode == EXIT_BAD_ORDER
    assert str(path) in done.stderr
    assert "Traceback" not in done.stderr


def test_an_unknown_stop_signal_is_a_bad_order(bench: Bench) -> None:
    assert bench.run("true", signal="NONSENSE") == EXIT_BAD_ORDER
    assert _names(bench.exchange) == []


def test_a_directory_that_cannot_be_claimed_is_an_error_and_nothing_runs(bench: Bench) -> None:
    assert bench.run("touch", str(bench.top / "touched"), exchange=str(bench.top / "none")) == 1
    assert "cannot claim" in bench.stderr
    assert not (bench.top / "touched").exists()


def test_a_training_that_has_saved_and_asks_to_be_continued_is_continued(bench: Bench) -> None:
    script = "echo 1 > $OUTLAST_CHECKPOINT_DIR/step-1; echo part > $OUTLAST_OUTPUT_DIR/a; exit 85"
    assert bench.run("sh", "-c", script) == CONTINUED
    assert bench.last["outcome"] == "continue"
    assert bench.last["progressed"] is True
    assert len(bench.events("changed")) == 1
    assert bench.last["delivered"] is None
    assert _names(bench.scratch) == ["code.json", "ended", "job", "output"]
    assert not (bench.exchange / "output").exists()


def test_unfinished_outputs_are_carried_to_the_next_attempt(bench: Bench) -> None:
    before = bench.top / "before"
    (before / "output").mkdir(parents=True)
    (before / "output" / "history").write_text("epoch 1\n")
    script = "echo epoch 2 >> $OUTLAST_OUTPUT_DIR/history"
    assert bench.run("sh", "-c", script, previous_scratch=str(before)) == 0
    assert (bench.exchange / "output" / "history").read_text() == "epoch 1\nepoch 2\n"
    assert not before.exists()


@pytest.mark.parametrize("way", ["> $OUTLAST_OUTPUT_DIR/model", "> model"])
def test_new_outputs_take_precedence_over_outputs_that_were_carried_over(bench: Bench, way: str) -> None:
    before = bench.top / "before"
    (before / "output" / "plots").mkdir(parents=True)
    for name in ("model", "history", "plots/loss"):
        (before / "output" / name).write_text("epoch 3\n")
    rules = (OutputRule("model"), OutputRule("history"), OutputRule("plots"))
    script = f"mkdir plots; echo epoch 30 > plots/loss; echo epoch 30 {way}"
    assert bench.run("sh", "-c", script, previous_scratch=str(before), outputs=rules) == 0
    delivered = bench.exchange / "output"
    assert (delivered / "model").read_text() == "epoch 30\n"
    assert (delivered / "plots" / "loss").read_text() == "epoch 30\n"
    assert (delivered / "history").read_text() == "epoch 3\n"


def test_a_file_that_came_with_the_code_does_not_replace_what_was_carried_over(bench: Bench) -> None:
    before = bench.top / "before"
    (before / "output").mkdir(parents=True)
    (before / "output" / "model").write_text("epoch 3\n")
    (bench.top / "model").write_text("an example\n")
    code_archive.pack(bench.top, ["model"], bench.top / "code.tar")
    order = {"code": str(bench.top / "code.tar"), "previous_scratch": str(before)}
    assert bench.run("true", outputs=(OutputRule("model"),), **order) == 0
    assert (bench.exchange / "output" / "model").read_text() == "epoch 3\n"


def test_code_is_unpacked_into_the_working_directory(bench: Bench) -> None:
    (bench.top / "train.py").write_text("import os; open('model', 'w').write(os.getcwd())\n")
    digest = code_archive.pack(bench.top, ["train.py"], bench.top / "code.tar")
    code = bench.run(
        "python",
        "train.py",
        code=str(bench.top / "code.tar"),
        code_sha256=digest,
        outputs=(OutputRule("model"),),
    )
    assert code == 0
    assert (bench.exchange / "output" / "model").read_text() == str(bench.scratch / "job")


def test_code_that_is_not_what_was_packed_never_runs(bench: Bench) -> None:
    (bench.top / "code.tar").write_bytes(b"x" * 2000)
    assert (
        bench.run("touch", str(bench.top / "touched"), code=str(bench.top / "code.tar"), code_sha256="0" * 64)
        == 1
    )
    assert bench.last["outcome"] == "corrupt-input"
    assert not (bench.top / "touched").exists()


def test_a_missing_code_archive_is_not_found(bench: Bench) -> None:
    assert bench.run("true", code=str(bench.top / "code.tar"), code_sha256="0" * 64) == 1
    assert bench.last["outcome"] == "not-found"
    assert "code.tar" in bench.last["detail"]


def test_a_script_that_ignores_the_stop_signal_is_killed_at_the_deadline_which_is_no_failure(
    bench: Bench,
) -> None:
    script = "trap '' TERM; echo $$ > $READY; while :; do sleep 1; done"
    assert bench.run("sh", "-c", script, time=2.0, grace=0.3) == CONTINUED
    assert _is_gone(int(bench.read_ready()))
    (stop,) = bench.events("stop")
    assert stop["why"] == "limit"
    assert bench.events("exit")[0]["signal"] == signal.SIGKILL
    assert bench.last["outcome"] == "over-time"
    assert bench.last["signature"] is None


def test_a_script_without_outlast_is_stopped_at_the_limit_and_its_checkpoint_is_kept(
    bench: Bench,
) -> None:
    script = "echo 1 > $OUTLAST_CHECKPOINT_DIR/step; exec sleep 600"
    assert bench.run("sh", "-c", script, time=2.0) == CONTINUED
    assert bench.last["outcome"] == "over-time"
    assert bench.last["progressed"] is True
    assert bench.last["signal"] == signal.SIGTERM
    assert (bench.checkpoints / "step").exists()


def test_the_whole_process_group_gets_the_requested_stop_signal(bench: Bench) -> None:
    script = """
        trap 'wait; exit 85' USR2
        sh -c 'trap "echo child > $OUTLAST_CHECKPOINT_DIR/child; exit" USR2; echo up > $READY
               while :; do sleep 0.05; done' &
        while :; do sleep 0.05; done
    """
    process = bench.start("sh", "-c", script, signal="USR2", time=600.0)
    bench.read_ready()
    process.send_signal(signal.SIGTERM)
    assert bench.end(process) == CONTINUED
    assert bench.last["outcome"] == "continue"
    assert (bench.checkpoints / "child").read_text() == "child\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2])
def test_any_stop_signal_any_number_of_times_is_forwarded_as_one_stop(bench: Bench, number: int) -> None:
    script = "trap 'exit 85' TERM; echo up > $READY; while :; do sleep 0.05; done"
    process = bench.start("sh", "-c", script, time=600.0)
    bench.read_ready()
    for _ in range(5):
        process.send_signal(number)
    assert bench.end(process) == CONTINUED
    (stop,) = bench.events("stop")
    assert (stop["why"], stop["signal"]) == ("signal", number)
    assert bench.last["outcome"] == "continue"


def test_a_training_that_an_eviction_kills_was_evicted_and_did_not_crash(bench: Bench) -> None:
    process = bench.start("sh", "-c", "echo up > $READY; exec sleep 600", time=600.0)
    bench.read_ready()
    process.terminate()
    assert bench.end(process) == CONTINUED
    assert bench.last["outcome"] == "evicted"


def test_after_an_eviction_the_training_is_killed_when_the_grace_is_over(bench: Bench) -> None:
    script = "trap '' TERM; echo up > $READY; while :; do sleep 1; done"
    process = bench.start("sh", "-c", script, time=600.0, grace=0.3)
    bench.read_ready()
    process.terminate()
    assert bench.end(process) == CONTINUED
    assert bench.last["outcome"] == "evicted"
    assert "killed" in bench.last["detail"]


def test_exit_0_after_the_stop_is_finished_if_the_outputs_exist(bench: Bench) -> None:
    script = (
        "trap 'echo 1 > $OUTLAST_OUTPUT_DIR/a; exit 0' TERM; echo up > $READY; while :; do sleep 0.05; done"
    )
    process = bench.start("sh", "-c", script, time=600.0, outputs=(OutputRule("a"),))
    bench.read_ready()
    process.terminate()
    assert bench.end(process) == 0
    assert bench.last["outcome"] == "finished"


def test_exit_0_after_the_stop_without_the_outputs_is_an_eviction(bench: Bench) -> None:
    script = "trap 'exit 0' TERM; echo up > $READY; while :; do sleep 0.05; done"
    process = bench.start("sh", "-c", script, time=600.0, outputs=(OutputRule("a"),))
    bench.read_ready()
    process.terminate()
    assert bench.end(process) == CONTINUED
    assert bench.last["outcome"] == "evicted"


DAEMON = """
import os, time
if os.fork():
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
for name in list(os.environ):
    if name != "READY":
        del os.environ[name]
open(os.environ["READY"], "w").write("%d\\n" % os.getpid())
time.sleep(600)
"""


def test_a_grandchild_in_a_session_of_its_own_does_not_outlive_the_attempt(bench: Bench) -> None:
    (bench.top / "daemon.py").write_text(DAEMON)
    script = f"{sys.executable} {bench.top}/daemon.py; read line < $HELD; exit 85"
    os.mkfifo(bench.top / "held")
    process = bench.start(
        "sh", "-c", script, environment={"READY": str(bench.top / "ready"), "HELD": str(bench.top / "held")}
    )
    pid = int(bench.read_ready())
    assert not _is_gone(pid)
    (bench.top / "held").write_text("go\n")
    assert bench.end(process) == CONTINUED
    assert _is_gone(pid)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_training_killed_from_outside_has_crashed_with_the_signal_named(
    bench: Bench, number: signal.Signals
) -> None:
    process = bench.start("sh", "-c", "echo working; echo $$ > $READY; exec sleep 600")
    os.kill(int(bench.read_ready()), number)
    assert bench.end(process) == 1
    assert bench.last["outcome"] == "crashed"
    assert bench.last["signal"] == number
    assert number.name in bench.last["detail"]
    assert bench.last["signature"]


def test_a_node_program_killed_without_warning_takes_the_training_with_it(bench: Bench) -> None:
    process = bench.start("sh", "-c", "echo $$ > $READY; exec sleep 600")
    watched = os.pidfd_open(int(bench.read_ready()))
    try:
        process.kill()
        ready, _, _ = select.select([watched], [], [], TIMEOUT)
        assert ready
    finally:
        os.close(watched)
    assert bench.events()[-1]["event"] == "phase"


def test_a_traceback_is_the_reason_and_scratch_is_kept_for_inspection(bench: Bench) -> None:
    program = "print('epoch 1')\nraise ValueError('shapes do not match')\n"
    assert bench.run("python", "-c", program) == 1
    assert bench.last["outcome"] == "crashed"
    assert bench.last["detail"].startswith("ValueError: shapes do not match")
    assert bench.last["tail"].startswith("epoch 1\nTraceback")
    assert (bench.scratch / "job").is_dir()


def test_a_traceback_of_an_earlier_attempt_in_the_same_log_is_ignored(bench: Bench) -> None:
    bench.log.parent.mkdir()
    bench.log.write_text('Traceback (most recent call last):\n  File "a.py", line 1, in f\nMemoryError\n')
    assert bench.run("sh", "-c", "exit 3") == 1
    assert bench.last["outcome"] == "crashed"
    assert "exited with 3" in bench.last["detail"]
    assert bench.last["tail"] == ""


def test_a_command_that_cannot_be_started_is_reported(bench: Bench) -> None:
    assert bench.run("no-such-program") == 1
    assert bench.last["outcome"] == "crashed"
    assert "no program of that name" in bench.last["detail"]


def test_every_output_that_is_wrong_is_named_and_nothing_is_delivered(bench: Bench) -> None:
    rules = (
        OutputRule("model.npz"),
        OutputRule("metrics.json", key="accuracy", at_least=0.9),
        OutputRule("metrics.json", check=("sh", "-c", "echo looking; exit 4")),
    )
    assert bench.run("sh", "-c", """echo '{"accuracy": 0.5}' > metrics.json""", outputs=rules) == 1
    assert bench.last["outcome"] == "wrong-output"
    assert bench.last["signature"]
    for part in ("model.npz is missing", "accuracy = 0.5", "exited with 4"):
        assert part in bench.last["detail"]
    assert "looking" in bench.log.read_text()
    assert not (bench.exchange / "output").exists()
    assert (bench.scratch / "output" / "metrics.json").exists()


def test_a_check_that_never_ends_is_killed_with_its_descendants(bench: Bench) -> None:
    check = ("sh", "-c", "setsid sleep 600 & echo $! > $READY; sleep 600")
    assert bench.run("sh", "-c", "echo 1 > a", outputs=(OutputRule("a", check=check),), time=2.5) == 1
    assert "did not end" in bench.last["detail"]
    assert _is_gone(int(bench.read_ready()))


def test_a_check_finds_the_outputs_in_both_places(bench: Bench) -> None:
    check = ("sh", "-c", "cmp a $OUTLAST_OUTPUT_DIR/a")
    assert bench.run("sh", "-c", "echo 1 > a", outputs=(OutputRule("a", check=check),)) == 0


def test_an_event_log_that_was_replaced_by_a_link_does_not_stop_the_training_and_is_not_followed(
    bench: Bench,
) -> None:
    (bench.top / "diary").write_text("mine")
    (bench.exchange / "events.jsonl").symlink_to(bench.top / "diary")
    assert bench.run("sh", "-c", "echo 1 > $OUTLAST_OUTPUT_DIR/a", outputs=(OutputRule("a"),)) == 0
    assert bench.stderr.count("cannot write the event log") == 1
    assert (bench.exchange / "output" / "a").exists()
    assert (bench.top / "diary").read_text() == "mine"


def _forked(order: Path, damage: Callable[[], object]) -> int:
    """Run the node program in a fork of this process, as the local cluster does; call `damage` first."""
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            damage()
            code = main.run(str(order), "job-1")
        finally:
            os._exit(code)
    return os.WEXITSTATUS(os.waitpid(pid, 0)[1])


def _fill_event_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "outlast.node.event_log.open_to_append", lambda _: os.open("/dev/full", os.O_WRONLY | os.O_APPEND)
    )


def test_a_full_disk_for_the_event_log_does_not_stop_the_training(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    bench.write_order("sh", "-c", "echo 1 > $OUTLAST_OUTPUT_DIR/a", outputs=(OutputRule("a"),))
    assert _forked(bench.top / "order.json", lambda: _fill_event_log(monkeypatch)) == 0
    assert capfd.readouterr().err.count("cannot write the event log") == 1
    assert (bench.exchange / "output" / "a").exists()


def test_a_full_disk_for_event_log_and_stderr_does_not_stop_the_training(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill() -> None:
        _fill_event_log(monkeypatch)
        os.dup2(os.open("/dev/full", os.O_WRONLY), 2)

    bench.write_order(
        "sh", "-c", "ln -s nowhere $OUTLAST_OUTPUT_DIR/l; echo 1 > a", outputs=(OutputRule("a"),)
    )
    assert _forked(bench.top / "order.json", fill) == 0
    assert (bench.exchange / "output" / "a").exists()


def test_a_stop_signal_before_the_training_is_not_lost(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*arguments: Any) -> dict[str, str]:
        os.kill(os.getpid(), signal.SIGTERM)
        return for_training(*arguments)

    bench.write_order("touch", str(bench.top / "touched"), time=600.0)
    order = bench.top / "order.json"
    patch = "outlast.node.attempt.environment.for_training"
    assert _forked(order, lambda: monkeypatch.setattr(patch, stopped)) == CONTINUED
    assert bench.last["outcome"] == "evicted"
    assert not (bench.top / "touched").exists()


def test_forked_processes_run_one_attempt_after_the_other(bench: Bench) -> None:
    for number in range(5):
        bench.write_order("sh", "-c", f"echo {number} > $OUTLAST_OUTPUT_DIR/a")
        assert _forked(bench.top / "order.json", lambda: None) == 0
        assert (bench.exchange / "output" / "a").read_text() == f"{number}\n"
        assert bench.events("claimed")[0]["job"] == "job-1"
        shutil.rmtree(bench.exchange)
        bench.exchange.mkdir()


def _no_space(*args: object, **kwargs: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device", "/scratch/x")


@pytest.mark.parametrize(
    ("broken", "outcome"),
    [("code_archive.unpack", "out-of-disk"), ("deliver", "out-of-disk"), ("supervise", "crashed")],
)
def test_a_full_disk_for_the_node_program_has_its_own_outcome(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, broken: str, outcome: str
) -> None:
    (bench.top / "code").write_text("x")
    code_archive.pack(bench.top, ["code"], bench.top / "code.tar")
    bench.write_order("sh", "-c", "sleep 600 & exit 0", code=str(bench.top / "code.tar"))
    order = bench.top / "order.json"
    assert _forked(order, lambda: monkeypatch.setattr(f"outlast.node.attempt.{broken}", _no_space)) == 1
    assert bench.last["outcome"] == outcome
    assert "No space left on device" in bench.last["detail"]
    assert process_cleanup.kill_by_token(bench.token) == [], "the training was left behind"


def test_a_log_that_cannot_be_opened_does_not_stop_the_training(bench: Bench) -> None:
    bench.log.mkdir(parents=True)
    assert bench.run("sh", "-c", "echo hello") == 0
    assert "hello" in bench.stderr
    assert "cannot be opened" in bench.events("warning")[0]["text"]


def test_links_in_the_output_directory_are_removed_with_a_warning(bench: Bench) -> None:
    assert (
        bench.run(
            "sh", "-c", "ln -s /etc/hostname $OUTLAST_OUTPUT_DIR/secret; echo 1 > $OUTLAST_OUTPUT_DIR/a"
        )
        == 0
    )
    assert _names(bench.exchange / "output") == ["a"]
    assert "secret" in bench.events("files")[0]["text"]


def test_an_output_directory_that_was_replaced_by_a_link_is_delivered_as_files(bench: Bench) -> None:
    disk = bench.top / "disk"
    script = f"mkdir {disk}; echo 1 > {disk}/a; ln -s a {disk}/b; cd ..; rmdir output; ln -s {disk} output"
    assert bench.run("sh", "-c", script, outputs=(OutputRule("a"),)) == 0
    assert not (bench.exchange / "output").is_symlink()
    assert _names(bench.exchange / "output") == ["a", "b"]
    assert not (bench.exchange / "output" / "b").is_symlink()
    assert (disk / "b").is_symlink() and (disk / "a").read_text() == "1\n"
    assert str(disk) in bench.events("files")[0]["text"]


def test_an_output_directory_that_was_replaced_by_a_file_is_a_wrong_output(bench: Bench) -> None:
    assert bench.run("sh", "-c", "rmdir $OUTLAST_OUTPUT_DIR; echo 1 > $OUTLAST_OUTPUT_DIR") == 1
    assert bench.last["outcome"] == "wrong-output"
    assert "was replaced by a file; write the outputs into it instead" in bench.last["detail"]


def _states(top: Path) -> dict[Path, tuple[float, ...]]:
    """Return inode, mode, number of names, size and time of everything in a directory."""
    states = {path: path.lstat() for path in top.rglob("*")}
    return {
        path: (one.st_ino, one.st_mode, one.st_nlink, one.st_size, one.st_mtime_ns)
        for path, one in states.items()
    }


@pytest.mark.parametrize("code", [0, 1, 85])
@pytest.mark.parametrize("place", ["scratch", "node_scratch"])
def test_a_scratch_directory_that_was_replaced_by_a_link_is_not_touched(
    bench: Bench, place: str, code: int
) -> None:
    disk, node = bench.top / "disk", bench.top / "node"
    for path in (disk / "output", disk / "job", node):
        path.mkdir(parents=True)
    for path in (disk / "output" / "mine", disk / "job" / "mine"):
        path.write_text("mine")
        path.chmod(0o200)
    scratch = bench.scratch if place == "scratch" else node / f"outlast-{bench.token}"
    script = f"cd /; mv {scratch} {scratch}.moved; ln -s {disk} {scratch}; exit {code}"
    before = _states(disk)
    bench.run("sh", "-c", script, node_scratch=str(node) if place == "node_scratch" else None)
    assert _states(disk) == before
    if code == 0:
        assert bench.last["outcome"] == "wrong-output"
        assert f"was replaced by a link to {disk}; its files stay there" in bench.last["detail"]
    else:
        assert any(f"its files stay in {disk}" in line["text"] for line in bench.events("files"))


def test_a_log_that_was_replaced_by_a_link_is_not_followed(bench: Bench) -> None:
    bench.log.parent.mkdir(parents=True, exist_ok=True)
    (bench.top / "diary").write_text("mine")
    bench.log.symlink_to(bench.top / "diary")
    assert bench.run("sh", "-c", "echo hello") == 0
    assert "hello" in bench.stderr
    assert (bench.top / "diary").read_text() == "mine"


def test_scratch_that_cannot_be_created_is_reported_with_its_path(bench: Bench) -> None:
    (bench.top / "file").write_text("")
    assert bench.run("true", scratch=str(bench.top / "file" / "scratch")) == 1
    assert bench.last["outcome"] == "node-trouble"
    assert bench.last["signature"] is None
    assert str(bench.top / "file") in bench.last["detail"]


def test_a_bug_in_outlast_is_reported_as_one(bench: Bench) -> None:
    # `environment` must contain strings; a number in it is a bug in the code that wrote the order.
    assert bench.run("true", environment={"PYTHONPATH": 3}) == 1
    assert bench.last["outcome"] == "crashed"
    assert "error in Outlast itself" in bench.last["detail"]
    assert "Traceback" in bench.stderr


def test_a_directory_left_in_the_working_directory_is_delivered_without_its_links_and_pipes(
    bench: Bench,
) -> None:
    script = """
        mkdir out; echo weights > out/step-100; ln -s step-100 out/latest
        ln -s nothing out/dangling; mkfifo out/pipe
    """
    assert bench.run("sh", "-c", script, outputs=(OutputRule("out"),)) == 0
    assert bench.last["outcome"] == "finished"
    delivered = bench.exchange / "output"
    assert _names(delivered / "out") == ["latest", "step-100"]
    for name, facts in bench.last["delivered"].items():
        assert (delivered / name).lstat().st_size == facts["size"]
    assert len(bench.events("files")) == 1


def test_a_directory_with_nothing_but_a_dead_link_is_not_an_output(bench: Bench) -> None:
    assert bench.run("sh", "-c", "mkdir out; ln -s nothing out/x", outputs=(OutputRule("out"),)) == 1
    assert bench.last["outcome"] == "wrong-output"
    assert "empty directory" in bench.last["detail"]


def test_links_and_pipes_that_a_check_leaves_behind_are_not_delivered(bench: Bench) -> None:
    check = ("sh", "-c", "cd $OUTLAST_OUTPUT_DIR; mkfifo pipe; ln -s nothing dangling; ln -s a again")
    assert bench.run("sh", "-c", "echo 1 > a", outputs=(OutputRule("a", check=check),)) == 0
    assert _names(bench.exchange / "output") == ["a", "again"]
    assert set(bench.last["delivered"]) == {"a", "again"}


def test_an_output_that_is_a_link_to_the_working_directory_is_collected_from_there(bench: Bench) -> None:
    script = "echo 1 > a; ln -s $PWD/a $OUTLAST_OUTPUT_DIR/a"
    assert bench.run("sh", "-c", script, outputs=(OutputRule("a"),)) == 0
    assert (bench.exchange / "output" / "a").read_text() == "1\n"


def _signal_both(process: subprocess.Popen[str], child: int) -> None:
    """Signal both, as a signal to a whole job does: the node program sees it and the child's end at once."""
    process.send_signal(signal.SIGSTOP)
    os.kill(child, signal.SIGTERM)
    ended = os.pidfd_open(child)
    try:
        assert select.select([ended], [], [], TIMEOUT)[0]
    finally:
        os.close(ended)
    process.terminate()
    process.send_signal(signal.SIGCONT)


@pytest.mark.parametrize("script", ["exec sleep 600", "trap 'exit 143' TERM; while :; do sleep 0.05; done"])
def test_a_training_killed_by_a_signal_to_the_whole_job_was_evicted(bench: Bench, script: str) -> None:
    process = bench.start("sh", "-c", f"echo $$ > $READY; {script}", time=600.0)
    _signal_both(process, int(bench.read_ready()))
    assert bench.end(process) == CONTINUED
    assert bench.last["outcome"] == "evicted"
    assert bench.last["signature"] is None
    (stop,) = bench.events("stop")
    assert (stop["why"], stop["signal"]) == ("signal", signal.SIGTERM)


def test_a_check_killed_by_a_signal_to_the_whole_job_proves_nothing_about_the_output(bench: Bench) -> None:
    rule = OutputRule("a", check=("sh", "-c", "echo $$ > $READY; exec sleep 600"))
    process = bench.start("sh", "-c", "echo 1 > a", outputs=(rule,), time=600.0)
    _signal_both(process, int(bench.read_ready()))
    assert bench.end(process) == CONTINUED
    assert bench.last["outcome"] == "evicted"
    assert bench.last["signature"] is None
    assert (bench.scratch / "output" / "a").read_text() == "1\n"


def test_a_check_that_outlasts_the_grace_after_a_signal_ends_as_evicted(bench: Bench) -> None:
    rule = OutputRule("a", check=("sh", "-c", "echo $$ > $READY; exec sleep 600"))
    process = bench.start("sh", "-c", "echo 1 > a", outputs=(rule,), time=600.0, grace=0.1)
    check = int(bench.read_ready())
    process.terminate()
    assert bench.end(process) == CONTINUED
    assert bench.last["outcome"] == "evicted"
    assert "finished" in bench.last["detail"]
    assert _is_gone(check)
    assert (bench.scratch / "output" / "a").exists()


def test_a_stop_signal_after_the_training_has_finished_does_not_discard_its_outputs(bench: Bench) -> None:
    os.mkfifo(bench.top / "held")
    rule = OutputRule("a", check=("sh", "-c", f"echo up > $READY; read line < {bench.top}/held"))
    process = bench.start("sh", "-c", "echo 1 > a", outputs=(rule,), time=600.0, grace=60.0)
    bench.read_ready()
    process.terminate()
    (bench.top / "held").write_text("go\n")
    assert bench.end(process) == 0
    assert bench.last["outcome"] == "finished"
    assert (bench.exchange / "output" / "a").exists()


def _after_a_signal(function: Callable[..., Any]) -> Callable[..., Any]:
    def called(*args: Any, **kwargs: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return function(*args, **kwargs)

    return called


@pytest.mark.parametrize("during", ["code_archive.unpack", "Scratch.carry_over"])
def test_a_stop_signal_during_preparation_ends_it_and_earlier_outputs_are_kept(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, during: str
) -> None:
    (bench.top / "code").write_text("x")
    code_archive.pack(bench.top, ["code"], bench.top / "code.tar")
    before = bench.top / "before"
    (before / "output").mkdir(parents=True)
    (before / "output" / "history").write_text("epoch 1\n")
    order = {"code": str(bench.top / "code.tar"), "previous_scratch": str(before)}
    bench.write_order("touch", str(bench.top / "touched"), **order)
    place, _, name = during.partition(".")
    original = getattr({"code_archive": code_archive, "Scratch": Scratch}[place], name)
    patched = f"outlast.node.attempt.{during}"
    exit_code = _forked(
        bench.top / "order.json", lambda: monkeypatch.setattr(patched, _after_a_signal(original))
    )
    assert exit_code == CONTINUED
    assert bench.last["outcome"] == "evicted"
    assert "unpack" in bench.last["detail"]
    assert [event["phase"] for event in bench.events("phase")][-2:] == ["unpack", "clean-up"]
    assert bench.events("stop")[0]["signal"] == signal.SIGTERM
    assert (before / "output" / "history").read_text() == "epoch 1\n"
    assert _names(bench.scratch) == ["carried-from"]
    assert not (bench.top / "touched").exists()


def _never_done(output: str, target: str, pulse: Callable[[], None]) -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    while True:
        pulse()


@pytest.mark.parametrize(
    ("replacement", "outcome", "place"),
    [(_after_a_signal(deliver), "finished", "exchange"), (_never_done, "evicted", "scratch")],
)
def test_a_delivery_continues_after_a_stop_signal_while_there_is_time_and_no_longer(
    bench: Bench,
    monkeypatch: pytest.MonkeyPatch,
    replacement: Callable[..., Any],
    outcome: str,
    place: str,
) -> None:
    bench.write_order("sh", "-c", "echo 1 > a", outputs=(OutputRule("a"),), grace=0.1)
    _forked(
        bench.top / "order.json", lambda: monkeypatch.setattr("outlast.node.attempt.deliver", replacement)
    )
    assert bench.last["outcome"] == outcome
    assert (bench.top / place / "output" / "a").read_text() == "1\n"


def test_heartbeats_are_written_in_every_phase_that_may_take_long(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    (bench.top / "code").write_text("x")
    code_archive.pack(bench.top, ["code"], bench.top / "code.tar")
    check = OutputRule("a", check=("true",))
    bench.write_order("sh", "-c", "echo 1 > a", code=str(bench.top / "code.tar"), outputs=(check,))
    order = bench.top / "order.json"
    assert _forked(order, lambda: monkeypatch.setattr("outlast.node.pulse.HEARTBEAT_INTERVAL", 0.0)) == 0
    phase, with_heartbeat = "", set()
    for event in bench.events():
        phase = event.get("phase", phase)
        if event["event"] == "beat":
            with_heartbeat.add(phase)
    assert {"unpack", "validate", "deliver", "clean-up"} <= with_heartbeat


def _fail_with(number: int) -> Callable[..., None]:
    def fail(*args: object, **kwargs: object) -> None:
        raise OSError(number, os.strerror(number), "/scratch/x")

    return fail


@pytest.mark.parametrize(
    ("broken", "number", "outcome"),
    [
        ("Scratch.prepare", errno.EACCES, "node-trouble"),
        ("Scratch.prepare", errno.ENOENT, "node-trouble"),
        ("Scratch.carry_over", errno.EPERM, "node-trouble"),
        ("code_archive.unpack", errno.ENOENT, "node-trouble"),
        ("code_archive.unpack", errno.EDQUOT, "out-of-disk"),
        ("deliver", errno.EACCES, "crashed"),
        ("deliver", errno.EIO, "node-trouble"),
    ],
)
def test_errors_before_the_training_are_the_nodes_and_afterwards_only_those_of_a_broken_node(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, broken: str, number: int, outcome: str
) -> None:
    (bench.top / "code").write_text("x")
    code_archive.pack(bench.top, ["code"], bench.top / "code.tar")
    bench.write_order("true", code=str(bench.top / "code.tar"))
    patched = f"outlast.node.attempt.{broken}"
    _forked(bench.top / "order.json", lambda: monkeypatch.setattr(patched, _fail_with(number)))
    assert bench.last["outcome"] == outcome
    assert os.strerror(number) in bench.last["detail"]
    assert (bench.last["signature"] is None) == (outcome == "node-trouble")


def _old_python() -> str | None:
    """Return a Python 3.8 that runs, or None; a version manager's stub may start no interpreter."""
    candidates = [shutil.which("python3.8"), *Path.home().glob(".pyenv/versions/3.8.*/bin/python")]
    for path in map(str, filter(None, candidates)):
        version = subprocess.run(
            [path, "-c", "import sys; print(sys.version_info[:2])"],
            capture_output=True,
            text=True,
            check=False,
        )
        if version.stdout.strip() == "(3, 8)":
            return path
    return None


OLD_PYTHON = _old_python()


@pytest.mark.skipif(OLD_PYTHON is None, reason="no Python 3.8 on this machine")
def test_the_zipapp_runs_on_python_3_8(bench: Bench) -> None:
    rules = (OutputRule("m.json", key="a", at_least=1), OutputRule("m.json", check=("true",)))
    (bench.top / "make.sh").write_text(
        """#!/bin/sh\necho '{"a": 1}' > m.json\necho up > $READY\nexec sleep $1\n"""
    )
    (bench.top / "make.sh").chmod(0o755)
    digest = code_archive.pack(bench.top, ["make.sh"], bench.top / "code.tar")
    python, code = str(OLD_PYTHON), str(bench.top / "code.tar")
    process = bench.start("./make.sh", "600", python=python, code=code, code_sha256=digest, outputs=rules)
    bench.read_ready()
    process.terminate()
    assert bench.end(process) == CONTINUED, bench.stderr
    assert bench.events("claimed")[0]["python"].startswith("3.8.")
    assert bench.last["outcome"] == "evicted"
    (bench.exchange / "claim.json").unlink()
    bench.scratch.rename(bench.top / "before")
    previous = str(bench.top / "before")
    process = bench.start(
        "./make.sh",
        "0",
        python=python,
        code=code,
        code_sha256=digest,
        outputs=rules,
        previous_scratch=previous,
    )
    assert bench.end(process) == 0, bench.stderr
    assert bench.last["outcome"] == "finished"
