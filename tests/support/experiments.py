"""Whole experiments in tests: real commands, a private local cluster, nothing left behind.

`Lab` is the fixture `lab`. `assert_whole` is the check after every crash: it compares an experiment that has
ended with all promises.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from outlast.domain.fold import apply
from outlast.domain.ledger import book
from outlast.domain.model import ATTEMPT_KINDS, Attempt, EntryKind, JournalEntry, Run, RunState
from outlast.exchange.experiment import Experiment
from outlast.journal.codec import dump
from outlast.journal.journal import Journal
from outlast.journal.sqlite_file import is_blank
from outlast.local_cluster.processes import is_alive, start_ticks
from outlast.schedulers.base import JobPhase, JobView
from outlast.schedulers.local import LocalScheduler

#: Seconds. A timeout that only a failing test reaches, also on a busy machine.
PATIENCE = 90.0

#: A training script in shell. It counts its attempts in its checkpoint directory; its argument selects what
#: it does. It leaves a process behind that only the node program ends.
TRAINING = """\
set -e
kind=$1
count=$(cat "$OUTLAST_CHECKPOINT_DIR/count" 2>/dev/null || echo 0)
count=$((count + 1))
echo "$count" > "$OUTLAST_CHECKPOINT_DIR/.count"
mv "$OUTLAST_CHECKPOINT_DIR/.count" "$OUTLAST_CHECKPOINT_DIR/count"
echo "$kind: part $count"
sleep 600 &
case $kind in
    plain) [ "$count" -ge 3 ] || exit 85 ;;
    fluke) [ "$count" -ge 2 ] || { echo "out of luck"; exit 1; } ;;
    bug) echo "no such layer"; exit 1 ;;
    held) while :; do sleep 0.05; done ;;
esac
echo "$kind is done" > "$OUTLAST_OUTPUT_DIR/first.txt"
echo "$kind is done" > "$OUTLAST_OUTPUT_DIR/second.txt"
"""

#: A training script that prints a line and continues once the file named by its argument exists.
GATED = """\
echo "$0 waits for $1"
while [ ! -e "$1" ]; do sleep 0.02; done
echo passed > "$OUTLAST_OUTPUT_DIR/out.txt"
"""


class Ended(subprocess.CompletedProcess[str]):
    """A command that has ended."""

    @property
    def output(self) -> str:
        return self.stdout + self.stderr

    @property
    def json(self) -> Any:
        return json.loads(self.stdout)


class Lab:
    """A directory with experiments, a local cluster and the commands that were started."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.clusters = root / "c"
        self.clusters.mkdir()
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("OUTLAST_")},
            "OUTLAST_LOCAL_ROOT": str(self.clusters),
            "XDG_CONFIG_HOME": str(root / "config"),
            "XDG_STATE_HOME": str(root / "state"),
            "COLUMNS": "200",
        }
        # The same on every machine, however few cores it has.
        (root / "config" / "outlast").mkdir(parents=True)
        (root / "config" / "outlast" / "clusters.yaml").write_text("local: {hosts: {alpha: 4, beta: 4}}\n")
        self._started: list[subprocess.Popen[str]] = []

    # Experiments.

    def experiment(self, where: str, files: Mapping[str, str] | None = None, /, **params: Any) -> Path:
        """Create an experiment with these keys in `params.yaml` and these files as its code."""
        directory = self.root / where
        directory.mkdir()
        files = {"train.sh": TRAINING} if files is None else files
        for path, text in files.items():
            (directory / path).write_text(text, encoding="utf-8")
        self.params(directory, **{"name": directory.name, "code": list(files), **params})
        return directory

    def params(self, directory: Path, **params: Any) -> None:
        lines = ["%s: %s\n" % (key, json.dumps(value)) for key, value in params.items()]
        (directory / "params.yaml").write_text("".join(lines), encoding="utf-8")

    # Commands.

    def outlast(
        self,
        *words: str | Path,
        crash_at: str = "",
        cwd: Path | None = None,
        powers: Callable[[], None] | None = None,
        prelude: str = "",
        **variables: str,
    ) -> Ended:
        """Run a command until it ends."""
        process = self.start(*words, crash_at=crash_at, cwd=cwd, powers=powers, prelude=prelude, **variables)
        return self.finish(process)

    def start(
        self,
        *words: str | Path,
        crash_at: str = "",
        cwd: Path | None = None,
        powers: Callable[[], None] | None = None,
        prelude: str = "",
        **variables: str,
    ) -> subprocess.Popen[str]:
        """Start a command. `powers` is called in the new process first, then the Python code `prelude`."""
        program = ["-c", prelude + "\nfrom outlast.cli import main; main()"] if prelude else ["-m", "outlast"]
        environment = {**self.environment, **variables}
        if crash_at:
            environment["OUTLAST_CRASH_AT"] = crash_at
        process = subprocess.Popen(
            [sys.executable, *program, *map(str, words)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            env=environment,
            cwd=cwd or self.root,
            preexec_fn=powers,
        )
        self._started.append(process)
        return process

    def finish(self, process: subprocess.Popen[str], patience: float = PATIENCE) -> Ended:
        try:
            out, err = process.communicate(timeout=patience)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            text = "%r hangs\n%s%s\n%s" % (process.args, out, err, self.daemon_logs())
            raise AssertionError(text) from None
        return Ended(process.args, process.returncode, out, err)

    def daemon_logs(self) -> str:
        return "\n".join(path.read_text(errors="replace") for path in self.clusters.glob("*/daemon.log"))

    # Observation.

    def scheduler(self, directory: Path | None = None, name: str = "local") -> LocalScheduler:
        """Return the local cluster, as the experiment in `directory` sees it."""
        group = Experiment(directory).identity if directory is not None else "nobody"
        return LocalScheduler(group, name=name, root=self.clusters)

    def until(self, what: str, happened: Callable[[], Any]) -> Any:
        """Poll until `happened` returns something true and return that; fail with the logs after PATIENCE."""
        deadline = time.monotonic() + PATIENCE
        while not (found := happened()):
            if time.monotonic() > deadline:
                raise AssertionError("did not happen: %s\n%s" % (what, self.daemon_logs()))
            time.sleep(0.01)
        return found

    def running_job(self, directory: Path, run: str = "") -> JobView:
        """Return a running job whose training has begun, once there is one."""

        def find() -> JobView | None:
            if is_blank(directory / "journal.sqlite"):
                return None
            for view in self.scheduler(directory).poll().values():
                if view.phase is not JobPhase.RUNNING:
                    continue
                with open_journal(directory) as journal:
                    attempt = journal.attempt(view.token)
                if attempt is None or (run and attempt.run != run):
                    continue
                log = Experiment(directory).log(attempt.run, attempt.number)
                if log.exists() and log.stat().st_size:
                    return view
            return None

        found: JobView = self.until("a running training script", find)
        return found

    def close(self) -> None:
        """End what was started here: commands by their process, daemons and jobs by their clusters."""
        for process in self._started:
            if process.poll() is None:
                process.kill()
                process.communicate()
        for directory in self.clusters.iterdir():
            # A daemon that exited has removed its socket; a killed one may have left jobs.
            if (directory / "socket").exists():
                scheduler = LocalScheduler("nobody", name=directory.name, root=self.clusters)
                scheduler.daemon_pid()
                scheduler.stop(force=True)


@contextlib.contextmanager
def open_journal(directory: Path) -> Iterator[Journal]:
    journal = Journal(directory / "journal.sqlite")
    try:
        yield journal
    finally:
        journal.close()


def states(directory: Path) -> dict[str, str]:
    with open_journal(directory) as journal:
        return {run.name: run.state.value for run in journal.runs()}


def kill_at_once(pid: int) -> None:
    """Send SIGKILL, and wait until the process is gone, also if it is not a child of this one."""
    ticks = start_ticks(pid)
    if ticks is None:
        return
    os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + PATIENCE
    while is_alive(pid, ticks):
        assert time.monotonic() < deadline, "process %d survives SIGKILL" % pid
        time.sleep(0.001)


def assert_whole(directory: Path, scheduler: LocalScheduler, expected: Mapping[str, str]) -> None:
    """Assert that nothing was lost, accepted twice or left over, and that the ledger closes.

    `expected` has the state of every run.
    """
    experiment = Experiment(directory)
    with open_journal(directory) as journal:
        journal.check()
        runs = {run.name: run for run in journal.runs()}
        attempts = {attempt.token: attempt for attempt in journal.attempts()}
        entries = [row.entry for row in journal.entries()]
    assert {name: run.state.value for name, run in runs.items()} == dict(expected), _describe(entries)
    _assert_accepted_once(runs, attempts, entries)
    _assert_fold(runs, attempts, entries)
    for run in runs.values():
        _assert_ledger_closes(experiment, run, [a for a in attempts.values() if a.run == run.name])
        _assert_result(experiment, run)
    assert not list(experiment.inbox.glob("*.json")), "requests are left in the inbox"
    alive = [view for view in scheduler.poll().values() if view.phase is not JobPhase.ENDED]
    assert not alive, "jobs are left: %s" % alive
    assert not processes_of(attempts), "processes of attempts are left"


def _assert_accepted_once(
    runs: Mapping[str, Run], attempts: Mapping[str, Attempt], entries: list[JournalEntry]
) -> None:
    accepted = Counter(entry.run for entry in entries if entry.kind is EntryKind.ACCEPTED)
    finished = [name for name, run in runs.items() if run.state is RunState.FINISHED]
    assert accepted == Counter(finished), _describe(entries)
    assert Counter(entry.run for entry in entries if entry.kind is EntryKind.FINISHED) == Counter(finished)
    for name in finished:
        attempt = attempts[runs[name].accepted or ""]
        assert attempt.run == name and attempt.outcome is not None and attempt.outcome.value == "finished"
    for run in runs.values():
        numbers = [attempt.number for attempt in attempts.values() if attempt.run == run.name]
        assert sorted(numbers) == list(range(1, run.attempts + 1)), _describe(entries)


def _assert_fold(
    runs: Mapping[str, Run], attempts: Mapping[str, Attempt], entries: list[JournalEntry]
) -> None:
    """Assert that the tables of runs and attempts are the fold of all entries."""
    folded: dict[str, Run] = {}
    tried: dict[str, Attempt] = {}
    for entry in entries:
        token = entry.token if entry.kind in ATTEMPT_KINDS else None
        run, attempt = apply(folded.get(entry.run), tried.get(token or ""), entry)
        folded[run.name] = run
        if attempt is not None:
            tried[attempt.token] = attempt
    assert {name: dump(run) for name, run in folded.items()} == {n: dump(run) for n, run in runs.items()}
    assert {token: dump(one) for token, one in tried.items()} == {t: dump(one) for t, one in attempts.items()}


def _assert_ledger_closes(experiment: Experiment, run: Run, attempts: list[Attempt]) -> None:
    attempts.sort(key=lambda attempt: attempt.number)
    bookings = book(run, attempts)
    assert len(bookings) == len(attempts), "an attempt is not booked"
    for attempt, booking in zip(attempts, bookings, strict=True):
        assert abs(sum(booking.uses.values()) - booking.slot) <= 1.0, booking
        logged = _logged_seconds(experiment.exchange_of(attempt) / "events.jsonl")
        assert booking.slot >= logged - 1.0, "%s: the node logged %.1f s" % (booking, logged)


def _logged_seconds(events: Path) -> float:
    if not events.exists():
        return 0.0
    lines = events.read_bytes().split(b"\n")
    times = [json.loads(line)["mono"] for line in lines if line.endswith(b"}")]
    return float(max(times) - min(times)) if times else 0.0


def _assert_result(experiment: Experiment, run: Run) -> None:
    """Assert that only finished runs have results, and whole ones: the script writes two equal files."""
    folder = experiment.result(run.name)
    if run.state is not RunState.FINISHED:
        assert not folder.exists(), "%s is %s and has results" % (run.name, run.state.value)
        return
    contents = {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}
    assert sorted(contents) == ["first.txt", "second.txt"], contents
    assert contents["first.txt"] == contents["second.txt"] and contents["first.txt"].endswith(" is done\n")


def processes_of(tokens: Mapping[str, Any]) -> list[int]:
    """Return the processes that have one of these tokens in their environment."""
    marks = {b"OUTLAST_TOKEN=" + token.encode() for token in tokens}
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or belongs to another user
            if marks & set((folder / "environ").read_bytes().split(b"\0")):
                found.append(int(folder.name))
    return found


def processes_with(text: str) -> list[int]:
    """Return the processes that have `text` in their arguments or in their initial environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or belongs to another user
            if text.encode() in (folder / "cmdline").read_bytes() + (folder / "environ").read_bytes():
                found.append(int(folder.name))
    return found


def _describe(entries: list[JournalEntry]) -> str:
    return "\n".join("%.3f %s %s %s %s" % (e.at, e.run, e.kind.value, e.token, e.data) for e in entries)
