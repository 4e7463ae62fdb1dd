"""A whole gateway in tests: its directory, `outlast gateway up` as a process to kill, an application.

The training of its templates counts its own starts, so that a test can see what was computed twice.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from outlast.domain.model import EntryKind, Outcome
from outlast.gateway.gateway_directory import GatewayDirectory
from outlast.gateway.record.record import Record
from outlast.gateway.requests import RequestState
from outlast.journal.sqlite_file import is_blank
from support.broker import Broker, until
from support.experiments import Ended, Lab, open_journal
from support.gateway_application import REPLIES, REQUESTS, Application

#: Seconds for an orderly end of a gateway: a pass over an experiment may be under way.
STOPPING = 60.0

#: It writes a line when it starts, sleeps for a while or until it is released, and writes a result that
#: follows from its parameter.
TRAIN = """\
import json, os, sys, time

number, seconds = int(sys.argv[1]), float(sys.argv[2])
line = "%d %s %s\\n" % (number, os.environ["OUTLAST_RUN"], os.environ["OUTLAST_TOKEN"])
starts = os.open({starts!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
os.write(starts, line.encode())
os.close(starts)
end = time.monotonic() + seconds
while time.monotonic() < end and not os.path.exists({release!r}):
    time.sleep(0.05)
if number < 0:
    sys.exit("no such number")
with open(os.path.join(os.environ["OUTLAST_OUTPUT_DIR"], "result.json"), "w") as file:
    json.dump({{"number": number, "square": number * number}}, file)
"""
TEMPLATE = {
    "parameters": {
        "number": {"type": "integer", "at_least": -1000000, "at_most": 1000000},
        "seconds": {"type": "number", "at_least": 0, "at_most": 600, "default": 0},
    },
    "ceilings": {"cpus": 1, "memory": "200MB", "disk": "200MB", "time": "10m", "total": "1h"},
    "answer": {"result.json": "result.json"},
}
PARAMS = {
    "command": "python3 train.py {number} {seconds}",
    "code": ["train.py"],
    "resources": {"cpus": 1, "memory": "100MB", "disk": "100MB", "time": "10m"},
    "outputs": ["result.json"],
    "checkpoints": {"grace": "1s"},
}


class GatewayLab:
    """A gateway directory below a short temporary path, and everything that was started for it."""

    def __init__(
        self,
        root: Path,
        broker: Broker,
        templates: Sequence[str] = ("fast",),
        on_directory: Callable[[Path], object] = lambda _: None,
    ) -> None:
        self.broker = broker
        self.lab = Lab(root)
        self.directory = GatewayDirectory(root / "gw")
        self.directory.root.mkdir()
        on_directory(self.directory.root)
        self.starts = root / "starts"
        #: When this file exists, trainings end.
        self.release = root / "release"
        self._log = root / "up.log"
        self._ups: list[subprocess.Popen[bytes]] = []
        self._applications: list[Application] = []
        self.templates = tuple(templates)
        self.write_settings()
        for name in self.templates:
            self.write_template(name)

    # --- the directory ------------------------------------------------------------------------------------

    def write_settings(self, **changes: Any) -> None:
        credentials = self.directory.credentials
        credentials.mkdir(mode=0o700, exist_ok=True)
        settings = self.broker.settings(credentials)
        assert settings.credentials is not None
        broker = {
            "host": "127.0.0.1",
            "port": settings.port,
            "virtual_host": settings.virtual_host,
            "credentials": str(settings.credentials.relative_to(self.directory.root)),
            "heartbeat": "5s",
            "connect_timeout": "5s",
        }
        queue = {"name": REQUESTS, "reply_to": [REPLIES, REPLIES + ".*"]}
        plain = {"broker": broker, "queues": [queue], "templates": list(self.templates)}
        _write_yaml(self.directory.settings, {**plain, **changes})

    def write_template(
        self,
        name: str,
        params: Mapping[str, Any] = {},
        clusters: Mapping[str, Any] | None = None,
        **changes: Any,
    ) -> None:
        """Write a template whose training is `TRAIN`; `clusters` are the profiles beside it."""
        place = self.directory.template(name)
        place.mkdir(parents=True, exist_ok=True)
        (place / "train.py").write_text(
            TRAIN.format(starts=str(self.starts), release=str(self.release)), encoding="utf-8"
        )
        _write_yaml(place / "template.yaml", {"title": name, **TEMPLATE, **changes})
        _write_yaml(place / "params.yaml", {"name": name, **PARAMS, **params})
        if clusters is not None:
            _write_yaml(place / "clusters.yaml", clusters)

    # --- the gateway --------------------------------------------------------------------------------------

    def up(
        self, crash_at: str = "", powers: Callable[[], None] | None = None, prelude: str = ""
    ) -> subprocess.Popen[bytes]:
        """Start `outlast gateway up`. `powers` is called in the new process, then the code `prelude`."""
        program = ["-c", prelude + "\nfrom outlast.cli import main; main()"] if prelude else ["-m", "outlast"]
        environment = {**self.lab.environment, **({"OUTLAST_CRASH_AT": crash_at} if crash_at else {})}
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, *program, "gateway", "up", str(self.directory.root)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                cwd=self.lab.root,
                start_new_session=True,
                preexec_fn=powers,
            )
        self._ups.append(process)
        return process

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """Kill a gateway without warning; jobs and their cluster go on."""
        process.kill()
        process.wait(STOPPING)

    def stop(self, process: subprocess.Popen[bytes]) -> None:
        """End a gateway with SIGTERM, once it catches that, and wait for it."""
        until(lambda: _catches_sigterm(process.pid), "it does not catch SIGTERM")
        process.send_signal(signal.SIGTERM)
        code = process.wait(STOPPING)
        assert code == 130, self.log()

    def await_crash(self, process: subprocess.Popen[bytes], point: str, seconds: float = 60.0) -> None:
        """Wait until a gateway has killed itself at its crash point."""
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError("%s was not reached\n%s" % (point, self.log())) from None
        assert code == -signal.SIGKILL, "%s: exit code %d\n%s" % (point, code, self.log())

    def outlast(self, *words: str) -> Ended:
        return self.lab.outlast(*words)

    def status(self) -> Any:
        """Return what `outlast gateway status --json` prints."""
        ended = self.outlast("gateway", "status", str(self.directory.root), "--json")
        assert ended.returncode == 0, ended.output
        return ended.json

    def _has_record(self) -> bool:
        return self.directory.record.exists() and self.directory.heartbeat.exists()

    def until_status(self, what: str, condition: Callable[[Any], Any], seconds: float = 30.0) -> Any:
        """Wait until the status has it; the promise is that this takes at most 30 seconds."""
        seen: list[Any] = []
        until(self._has_record, self.log)

        def look() -> bool:
            seen[:] = [self.status()]
            return bool(condition(seen[0]))

        until(look, lambda: "not in the status: %s\n%s\n%s" % (what, seen, self.log()), seconds)
        return seen[0]

    def until_ready(self) -> None:
        """Wait until the gateway takes requests."""
        until(lambda: self.broker.queue(REQUESTS) is not None, self.log)

    def log(self) -> str:
        return self._log.read_text(errors="replace")[-8000:] if self._log.exists() else ""

    def application(self, *arguments: Any, **more: Any) -> Application:
        """Start an application; it ends with this laboratory."""
        self._applications.append(Application(self.broker, *arguments, **more))
        return self._applications[-1]

    @contextlib.contextmanager
    def record(self) -> Iterator[Record]:
        record = Record(self.directory.record)
        try:
            yield record
        finally:
            record.close()

    def count_attempts(self, template: str = "fast") -> int:
        """Return how many jobs were submitted."""
        journal = self.directory.experiment(template) / "journal.sqlite"
        if not journal.exists() or is_blank(journal):
            return 0
        with open_journal(journal.parent) as opened:
            return sum(bool(one.job) for one in opened.attempts())

    # --- checks -------------------------------------------------------------------------------------------

    def computed_twice(self) -> list[str]:
        """Return what was computed more than once for a result, in sentences."""
        found = []
        runs: dict[str, set[str]] = defaultdict(set)
        tokens: Counter[str] = Counter()
        for line in self.starts.read_text().splitlines() if self.starts.exists() else ():
            number, run, token = line.split()
            runs[number].add(run)
            tokens[token] += 1
        found += [
            "number %s was trained by %s" % (n, sorted(each)) for n, each in runs.items() if len(each) > 1
        ]
        found += ["attempt %s was started %d times" % pair for pair in tokens.items() if pair[1] > 1]
        for template in self.templates:
            experiment = self.directory.experiment(template)
            if not (experiment / "journal.sqlite").exists() or is_blank(experiment / "journal.sqlite"):
                continue
            with open_journal(experiment) as journal:
                journal.check()
                ends = Counter(one.run for one in journal.attempts() if one.outcome is Outcome.FINISHED)
                accepted = Counter(
                    row.entry.run for row in journal.entries() if row.entry.kind is EntryKind.ACCEPTED
                )
            found += ["run %s finished %d times" % pair for pair in ends.items() if pair[1] > 1]
            found += ["run %s was accepted %d times" % pair for pair in accepted.items() if pair[1] > 1]
        return found

    def assert_answered_once(
        self, application: Application, numbers: Mapping[str, int], doubled: int
    ) -> None:
        """Assert that each id has the result of its number, computed once; at most `doubled` came twice."""
        assert set(application.answers) == set(numbers)
        for id, number in numbers.items():
            bodies = {each.body for each in application.answers[id]}
            assert len(bodies) == 1, "different answers to %s: %s" % (id, bodies)
            assert application.answers[id][0].result == {"number": number, "square": number * number}
        assert not self.computed_twice()
        twice = application.doubled()
        assert len(twice) <= doubled, "answered twice: %s" % twice

    def until_all_answered(self, seconds: float = 30.0) -> None:
        """Wait until the record says that nothing is under way."""
        open_states = [state for state in RequestState if not state.over]

        def is_done() -> bool:
            with self.record() as record:
                waiting, _ = record.waiting_answers()
                return not waiting and next(record.requests(open_states, most=1), None) is None

        until(is_done, self.log, seconds)

    def pause(self, seconds: float) -> None:
        """Let time pass, so that what follows happens at a moment that nothing has prepared."""
        time.sleep(seconds)

    def jobs(self) -> list[Mapping[str, Any]]:
        """Return the jobs of the local cluster."""
        ended = self.outlast("local", "status", "--json")
        return list(ended.json["jobs"]) if ended.returncode == 0 else []

    def close(self) -> None:
        for application in self._applications:
            application.close()
        for process in self._ups:
            if process.poll() is None:
                process.kill()
                process.wait(STOPPING)
        self.lab.close()


@contextlib.contextmanager
def gateway_lab(
    broker: Broker,
    templates: Sequence[str] = ("fast",),
    on_directory: Callable[[Path], object] = lambda _: None,
) -> Iterator[GatewayLab]:
    """Yield a laboratory with a gateway for this broker, which is not started yet.

    `on_directory` is called with the directory of the gateway while it is empty.
    """
    # Short: the name of a Unix socket in it has at most 107 bytes.
    root = Path(tempfile.mkdtemp(prefix="ol-"))
    laboratory = GatewayLab(root, broker, templates, on_directory)
    try:
        yield laboratory
    finally:
        laboratory.close()
        shutil.rmtree(root, ignore_errors=True)


def _write_yaml(path: Path, content: Mapping[str, Any]) -> None:
    # JSON is YAML, and needs no library.
    lines = ["%s: %s\n" % (key, json.dumps(value)) for key, value in content.items()]
    path.write_text("".join(lines), encoding="utf-8")


def _catches_sigterm(pid: int) -> bool:
    status = Path("/proc/%d/status" % pid).read_text(encoding="ascii")
    caught = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)
