"""The controller keeps working after any attack of a compute node: a table of hostile files that it reads."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from outlast.cli import training_progress
from outlast.cli.commands import explain, report, status
from outlast.controller.controller import Controller, Pass
from outlast.domain.describe import of_entry
from outlast.domain.model import Attempt, EntryKind, JournalEntry, Outcome, RunState, Spec
from outlast.domain.observation import JobPhase, JobView, Patience
from outlast.exchange import sandbox_results
from outlast.exchange.experiment import Experiment
from outlast.exchange.sandbox_exchange import SandboxExchange
from outlast.exchange.shared_files import SharedFilesExchange
from outlast.journal.journal import Journal
from outlast.journal.lease import Lease
from outlast.node.sandbox import layout, manifest
from outlast.schedulers.base import JobRef, JobRequest, Scheduler, Submission, SubmitStatus
from outlast.training.checkpoints import file_format
from outlast.training.checkpoints.checkpoint_store import CheckpointStore
from outlast.training.checkpoints.state_tree import flatten
from outlast.training.errors import CheckpointError
from outlast.untrusted_files import remove
from support.checkpoints import content_of

#: Each case has a journal of its own on disk.
pytestmark = pytest.mark.slow

#: Seconds after which a pass of the controller counts as hanging.
HANGS = 60
#: A user without rights.
NOBODY = 65534
#: Deeper than Python may recurse.
DEEP = 2500
NESTED = "[" * 900 + "]" * 900
HUGE = 10**4000
LOST = "ended without logging an outcome, with exit code 0"
CONTINUED = "left at the limit"

Attack = Callable[[Path], None]


class Hangs(BaseException):
    """Raised if a call does not return. It is no OSError, because the controller retries those."""


@contextmanager
def within(seconds: int) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise Hangs

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


class Cluster(Scheduler):
    patience = Patience(missing=60.0, heartbeat=30.0, pause=10.0)

    def __init__(self) -> None:
        self.jobs: dict[str, JobView] = {}
        self.requests: list[JobRequest] = []
        self.answer = Submission(SubmitStatus.ACCEPTED, job="17")

    def render(self, requests: Sequence[JobRequest]) -> str:
        return ""

    def submit(self, requests: Sequence[JobRequest]) -> Mapping[str, Submission]:
        self.requests += requests
        return {request.token: self.answer for request in requests}

    def poll(self, expected: Sequence[JobRef] = ()) -> Mapping[str, JobView]:
        return dict(self.jobs)

    def cancel(self, views: Sequence[JobView]) -> None:
        pass


class Scene:
    """A real journal, controller and exchange with an imaginary cluster."""

    def __init__(self, root: Path, sandbox: bool = True) -> None:
        self.experiment = Experiment(root / "experiment")
        self.experiment.params.mkdir(parents=True)
        self.experiment.params_file.write_text("name: run\n")
        program = self.experiment.zipapp("0" * 64)
        program.write_bytes(b"")
        self.exchange = (SandboxExchange if sandbox else SharedFilesExchange)(self.experiment, program)
        self.is_sandbox = sandbox
        self.journal = Journal(self.experiment.journal, create=True)
        self.journal._db.execute("PRAGMA synchronous=OFF")
        Lease(self.journal, "up").acquire()
        self.now = time.time()
        self.cluster = Cluster()
        spec = self.journal.add_spec(Spec("run", "train"))
        self.journal.append(
            [JournalEntry(self.now, "run", EntryKind.ADDED, None, {"position": 0, "spec": spec})]
        )
        self.controller = Controller(
            self.journal, self.cluster, self.exchange, clock=lambda: self.now, listener=self._listen
        )

    def _listen(self, entries: Sequence[JournalEntry]) -> None:
        for entry in entries:
            of_entry(entry, self.journal.attempt(entry.token or "")).encode()

    def step(self) -> Pass:
        with within(HANGS):
            done = self.controller.step()
        self.now += 20.0
        return done

    def begin(self, seen: bool = True) -> Path:
        """Submit the next attempt and return its exchange directory."""
        for _ in range(20):
            self.step()
            attempt = self._current()
            if attempt is not None:
                if seen:
                    view = JobView(attempt.token, "17", JobPhase.RUNNING, started=self.now)
                    self.cluster.jobs = {attempt.token: view}
                    self.step()
                return self.experiment.exchange_of(attempt)
        raise AssertionError("no attempt was submitted: %s" % self.journal.run("run"))

    def _current(self) -> Attempt | None:
        run = self.journal.run("run")
        assert run is not None
        return self.journal.attempt(run.current) if run.current else None

    def end(self, seen: bool = True) -> Attempt:
        """End the job of the current attempt, step until the attempt has an outcome, and return it.

        If it was never `seen`, the scheduler does not list the job: only its files are left.
        """
        attempt = self._current()
        assert attempt is not None
        with within(HANGS):
            training_progress.show_progress(self.experiment, attempt).encode()
        self.show()
        if seen:
            times = {"started": self.now, "ended": self.now, "elapsed": 50.0}
            self.cluster.jobs[attempt.token] = JobView(
                attempt.token, "17", JobPhase.ENDED, exit_code=0, **times
            )
        notes: list[str] = []
        for _ in range(20):
            notes += self.step().notes
            ended = self.journal.attempt(attempt.token)
            assert ended is not None
            if ended.outcome is not None:
                self.cluster.jobs.clear()
                self.show()
                return ended
        raise AssertionError("the attempt got no outcome: %s" % notes)

    def show(self) -> None:
        """Run every command that shows reports of nodes."""
        for command in (status.command, explain.command, report.command):
            with within(HANGS):
                result = CliRunner().invoke(command, [str(self.experiment.root)])
            if result.exception is not None:
                raise result.exception

    def finish(self) -> None:
        """Let the next attempt deliver a good result, and check that it is published."""
        home = self.begin()
        place = home / layout.TRAVEL if self.is_sandbox else home
        (place / "output").mkdir(parents=True)
        (place / "output/model").write_text("abc")
        write_logs(place, outcome="finished", detail="done", delivered={"model": {"size": 3}})
        assert self.end().outcome is Outcome.FINISHED
        for _ in range(3):
            self.step()
        run = self.journal.run("run")
        assert run is not None and run.state is RunState.FINISHED
        assert (self.experiment.result("run") / "model").read_text() == "abc"

    def loaded(self) -> Any:
        """Return the state that the next attempt would load, or the text of its error."""
        store = CheckpointStore(
            str(self.experiment.checkpoints("run")), 3, dict, print, lambda name, why: None, "next"
        )
        try:
            loaded = store.load()
        except CheckpointError as error:
            return str(error)
        return loaded[0][0] if loaded else None


def write_logs(place: Path, *more: Mapping[str, Any] | bytes, **end: Any) -> None:
    """Write the claim and the event log of a leg; `more` comes just before the last line."""
    place.mkdir(parents=True, exist_ok=True)
    (place / "claim.json").write_text('{"job": "17", "host": "node1", "at": 1.0}')
    last = {"event": "end", "mono": 9.0, "outcome": "continue", "detail": CONTINUED, **end}
    lines: list[Mapping[str, Any] | bytes] = [
        {"event": "phase", "phase": "claim", "mono": 1.0},
        {"event": "claimed", "host": "node1", "mono": 1.0, "at": 1.0},
        {"event": "phase", "phase": "compute", "mono": 2.0},
        *more,
        last,
    ]
    texts = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
    (place / "events.jsonl").write_bytes(b"".join(text + b"\n" for text in texts))


def save(directory: Path, step: int, token: str) -> Path:
    store = CheckpointStore(str(directory), 9, dict, print, lambda name, why: None, token)
    store.save(content_of(flatten({"step": step})), step)
    (found,) = directory.glob("step-%012d-*" % step)
    return found


def come_back(home: Path) -> None:
    """Write the files that a good job brings back, with one more checkpoint."""
    write_logs(home / layout.TRAVEL)
    (home / layout.TRAVEL / "training.log").write_text("epoch 1\n")
    (home / sandbox_results.JOB_LOG).write_text("")
    save(home / layout.TRAVEL / layout.CHECKPOINTS, 2, "other")
    layout.write_serial(str(home), 1)
    layout.pack(str(home))


def newest(home: Path) -> Path:
    return next((home / "travel/checkpoints").glob("step-*2-g*"))


# Things in the place of a file.


def as_directory(path: Path) -> None:
    path.mkdir()


def as_file(path: Path) -> None:
    path.write_text("x")


def as_pipe(path: Path) -> None:
    os.mkfifo(path)


def as_socket(path: Path) -> None:
    # The name of a socket is short: it is made elsewhere and moved.
    with tempfile.TemporaryDirectory(dir=path.parent.parent, prefix="s") as short:
        here = Path.cwd()
        os.chdir(short)
        try:
            with socket.socket(socket.AF_UNIX) as made:
                made.bind("s")
            Path("s").rename(path)
        finally:
            os.chdir(here)


def as_device(path: Path) -> None:
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 5))  # endless zeros
    except PermissionError:
        pytest.skip("only root makes devices")


def as_link_to_itself(path: Path) -> None:
    path.symlink_to(path.name)


def as_link_to_zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


def as_deep_directory(path: Path) -> None:
    """Make directories deeper than a path can name, from the inside out."""
    path.mkdir()
    top = path / "top"
    top.mkdir()
    for _ in range(DEEP):
        outer = path / "outer"
        outer.mkdir()
        top.rename(outer / "d")
        outer.rename(top)


ODD = [
    as_directory,
    as_file,
    as_pipe,
    as_socket,
    as_device,
    as_link_to_itself,
    as_link_to_zeros,
]


def instead(name: str, odd: Attack) -> Attack:
    """Return an attack that replaces the returned file of this name by something odd."""

    def attack(home: Path) -> None:
        path = home / name
        remove(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        odd(path)

    return attack


def content(name: str, data: bytes | str) -> Attack:
    def attack(home: Path) -> None:
        path = home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data if isinstance(data, bytes) else data.encode("utf-8", "surrogatepass"))

    return attack


def without_manifest(attack: Attack) -> Attack:
    """Return the attack without a manifest, as after a cut transfer: only whole checkpoints count."""

    def both(home: Path) -> None:
        attack(home)
        remove(home / "travel/manifest.json")

    return both


# Checkpoints.


def flip_format(home: Path) -> None:
    file = newest(home) / file_format.part_name()
    whole = file.read_bytes()
    file.write_bytes(whole[:7] + b"\3" + whole[8:])


def write_newer_format(home: Path) -> None:
    file = newest(home) / file_format.part_name()
    known = file_format.read_manifest(str(file))
    changed = file.read_bytes()[:7] + b"\3" + file.read_bytes()[8 : known.size]
    head = {key: getattr(known, key) for key in ("step", "generation", "sequence", "rank", "world")}
    file.unlink()
    file_format.write(str(file), head, memoryview(changed))
    layout.pack(str(home))


def seal(**changes: Any) -> Attack:
    """Return an attack that writes a wrong trailer with a valid checksum."""

    def attack(home: Path) -> None:
        file = newest(home) / file_format.part_name()
        known = file_format.read_manifest(str(file))
        described = {**vars(known), "crc32": list(known.crcs), "block": 1 << 20, **changes}
        file.write_bytes(
            file.read_bytes()[: known.size] + file_format.make_trailer({**described, "crcs": None})
        )
        layout.pack(str(home))

    return attack


def give_longest_name(home: Path) -> None:
    checkpoint = newest(home)
    checkpoint.rename(checkpoint.with_name("step-%s2-g000009-s000009" % ("0" * (255 - 22))))


def spoil_part(odd: Attack) -> Attack:
    def attack(home: Path) -> None:
        part = newest(home) / file_format.part_name()
        part.unlink()
        odd(part)

    return attack


def spoil_checkpoint(odd: Attack) -> Attack:
    def attack(home: Path) -> None:
        path = newest(home)
        remove(path)
        odd(path)

    return attack


def lay_beside_part(odd: Attack) -> Attack:
    def attack(home: Path) -> None:
        odd(newest(home) / "zzz.outlast")

    return attack


CHECKPOINTS: dict[str, Attack] = {
    "a flipped format byte": flip_format,
    "a newer format": write_newer_format,
    "a name that leaves no room for a temporary one": give_longest_name,
    "more parts than there can be": seal(world=10**20),
    "a size too large": seal(size=10**20),
    "steps too large": seal(step=10**20, generation=10**20, sequence=10**20),
    "text for a number": seal(step="two"),
    "a list for a number": seal(rank=[1]),
    "a number for the checksums": seal(crc32=7),
    "text for the checksums": seal(crc32="7" * 100),
    "a deep checkpoint": spoil_checkpoint(as_deep_directory),
    "something deep beside a part": lay_beside_part(as_deep_directory),
    "deep checkpoints": instead("travel/checkpoints", as_deep_directory),
    "a name in no encoding": content("travel/checkpoints/" + os.fsdecode(b"\xff"), "x"),
    **{"a part %s" % odd.__name__: spoil_part(odd) for odd in ODD},
    **{"a checkpoint %s" % odd.__name__: spoil_checkpoint(odd) for odd in ODD},
    **{"beside a part %s" % odd.__name__: lay_beside_part(odd) for odd in ODD},
    **{"all checkpoints %s" % odd.__name__: instead("travel/checkpoints", odd) for odd in ODD},
}


# Manifests.


def claims(files: Any = None, links: Any = None, **more: Any) -> Attack:
    """Return an attack that writes a manifest of the files that exist, and of more."""

    def attack(home: Path) -> None:
        holds = manifest.list_files(str(home / "travel"), ["checkpoints"], 5)
        raw = {
            "version": 1,
            "serial": 5,
            "files": {**holds.files, **files} if isinstance(files, dict) else files or holds.files,
            "links": {} if links is None else links,
            **more,
        }
        (home / "travel/manifest.json").write_text(json.dumps(raw))

    return attack


def put(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("x")
    return path


def claim_link_in_the_place_of_a_file(home: Path) -> None:
    put(home / "travel/checkpoints/x")
    claims(links={"checkpoints/x": "y", "checkpoints/x/y": "z"})(home)


def claim_link_in_the_place_of_a_directory(home: Path) -> None:
    put(home / "travel/checkpoints/x/y")
    claims(links={"checkpoints/x": "y"})(home)


def claim_link_that_leads_out_through_another(home: Path) -> None:
    put(home / "travel/checkpoints/s/t/file")
    put(home / "travel/checkpoints/u/file")
    claims(links={"checkpoints/s/t/a": "../../u", "checkpoints/l": "s/t/a/../../../secret"})(home)


MANIFESTS: dict[str, Attack] = {
    "nested JSON": content("travel/manifest.json", "[" * 100_000),
    "JSON as deep as can be read": content("travel/manifest.json", '{"files":%s}' % NESTED),
    "no JSON": content("travel/manifest.json", b"\xff\x00\xfe"),
    "nothing": content("travel/manifest.json", ""),
    "NaN for a number": content("travel/manifest.json", '{"version":1,"serial":NaN,"files":{},"links":{}}'),
    "a number too large": claims(serial=HUGE),
    "a negative number": claims(serial=-1),
    "a list for files": claims(files=["checkpoints/x"]),
    "a list for links": claims(links=["checkpoints/x"]),
    "a name with NUL": claims(files={"checkpoints/a\0b": 1}),
    "a directory with NUL": claims(files={"checkpoints/a\0b/c": 1}),
    "a lone surrogate in a name": claims(files={"checkpoints/\ud800": 1}),
    "a lone surrogate in a directory": claims(files={"checkpoints/\ud800/c": 1}),
    "a long name": claims(files={"checkpoints/" + "n" * 100_000: 1}),
    "a long path": claims(files={"checkpoints" + "/n" * 100_000: 1}),
    "a name above": claims(files={"checkpoints/../../order.json": 1}),
    "an absolute name": claims(files={"/etc/passwd": 1}),
    "a size too large": claims(files={"checkpoints/x": HUGE}),
    "text for a size": claims(files={"checkpoints/x": "1"}),
    "a link to NUL": claims(links={"checkpoints/l": "a\0b"}),
    "a link named with NUL": claims(links={"checkpoints/l\0": "x"}),
    "a link to a lone surrogate": claims(links={"checkpoints/l": "\ud800"}),
    "a link named with a lone surrogate": claims(links={"checkpoints/\ud800": "x"}),
    "a link to nothing": claims(links={"checkpoints/d/l": ""}),
    "a link too long": claims(links={"checkpoints/l": "n" * 100_000}),
    "a link with a long name": claims(links={"checkpoints/" + "n" * 300: "x"}),
    "a link with a long path": claims(links={"checkpoints" + "/n" * 3000: "x"}),
    "a link to itself": claims(links={"checkpoints/l": "l"}),
    "a link to a number": claims(links={"checkpoints/l": 7}),
    "a link in the place of a file": claim_link_in_the_place_of_a_file,
    "a link in the place of a directory": claim_link_in_the_place_of_a_directory,
    "a link that leads out through another": claim_link_that_leads_out_through_another,
    "a link below a link": claims(links={"checkpoints/l": "m", "checkpoints/l/n": "o"}),
    **{"a manifest %s" % odd.__name__: instead("travel/manifest.json", odd) for odd in ODD},
}


# Logs, claims and other files.


def line(**fields: Any) -> Attack:
    """Return an attack that adds one hostile line to a good event log."""
    return lambda home: write_logs(home / "travel", {"mono": 5.0, **fields})


def raw_line(text: str) -> Attack:
    return lambda home: write_logs(home / "travel", text.encode("utf-8", "surrogatepass"))


def progress_line(**fields: Any) -> Attack:
    """Return an attack that writes one hostile line of the training."""
    return content("travel/progress.jsonl", json.dumps({"mono": 5.0, **fields}) + "\n")


def newest_progress(text: str) -> Attack:
    return content("travel/progress.json", text)


LOGS: dict[str, Attack] = {
    "a deep host": raw_line('{"event":"claimed","mono":5,"host":%s}' % NESTED),
    "a deep phase": raw_line('{"event":"phase","mono":5,"phase":%s}' % NESTED),
    "a deep outcome": raw_line('{"event":"end","mono":5,"outcome":%s}' % NESTED),
    "a deep detail": raw_line('{"event":"end","mono":5,"outcome":"continue","detail":%s}' % NESTED),
    "deep data": raw_line('{"event":"data","mono":5,"name":%s,"sources":%s}' % (NESTED, NESTED)),
    "a deep reason to stop": raw_line('{"event":"stop","mono":5,"why":%s}' % NESTED),
    "a line too deep": raw_line('{"event":%s' % ("[" * 100_000)),
    "bytes": lambda home: write_logs(home / "travel", b"\x00\xff\xfe" * 1000),
    "times too large": line(event="claimed", at=1e300, mono=1e300, host="node1"),
    "times before all time": line(event="phase", phase="stage", mono=-1e308),
    "a moment too large": line(event="claimed", at=1e300, host="node1"),
    "a number too large for a moment": line(event="claimed", at=HUGE, host="node1"),
    "NaN": line(event="claimed", at=float("nan"), mono=float("nan")),
    "data too large": line(event="data", name="x", waited=HUGE, seconds=HUGE, bytes=HUGE, carried=True),
    "troubles too large": line(
        event="data", troubles={"stalled": {"count": HUGE, "seconds": HUGE}, "x": 1, "timeout": [1]}
    ),
    "seconds too large": line(event="data", name="x", waited=1e308),
    "fetching too large": line(event="fetching", mono=-1e308, name=HUGE),
    "a host with NUL": line(event="claimed", host="a\0b"),
    "a host with a lone surrogate": line(event="claimed", host="\ud800"),
    "a host of two lines": line(event="claimed", host='a\n#$ -l "x"'),
    "a host too large": line(event="claimed", host="n" * 1_000_000),
    "a host that is a number": line(event="claimed", host=HUGE),
    "a step too large": progress_line(event="saved", step=HUGE, seconds=1.0),
    "a step below zero": progress_line(event="saved", step=-HUGE, seconds=1.0),
    "a step that is NaN": progress_line(event="saved", step=float("nan"), seconds=1.0),
    "a load too large": progress_line(event="loaded", step=HUGE),
    "a save too large": progress_line(event="saved", step=2, seconds=HUGE, blocked=1e308, why=["x"]),
    "saves that took for ever": progress_line(
        event="saved", step=2, seconds=1e308, blocked=1e308, mono=-1e308
    ),
    "notes too large": progress_line(event="aside", name="n" * 1_000_000, why="\ud800"),
    "a deep note": content(
        "travel/progress.jsonl", '{"event":"aside","name":%s,"why":%s}' % (NESTED, NESTED)
    ),
    "progress that is NaN": newest_progress('{"event":"progress","step":NaN,"total":NaN}'),
    "progress of NaN": newest_progress('{"event":"progress","step":NaN,"total":5}'),
    "progress too large": newest_progress('{"event":"progress","step":1e999,"total":5}'),
    "progress of a number too large": newest_progress(
        '{"event":"progress","step":%d,"total":0.5,"metrics":{"x":%d}}' % (HUGE, HUGE)
    ),
    "progress of a fraction": newest_progress('{"event":"progress","step":%d,"total":1e-300}' % HUGE),
    "deep progress": newest_progress('{"event":"progress","step":%s,"metrics":{"x":%s}}' % (NESTED, NESTED)),
    "progress in lone surrogates": newest_progress(
        '{"event":"progress","step":"\\ud800","metrics":{"\\ud800":"\\ud800"}}'
    ),
    "fetching of numbers too large": content(
        "travel/fetching.json", '{"name":%d,"done":%d,"total":3,"rate":%d}' % (HUGE, 10**4299, HUGE)
    ),
    "fetching without an end": content("travel/fetching.json", '{"name":"x","done":%d}' % 10**4299),
    "fetching with times too large": content(
        "travel/fetching.json",
        '{"name":"x","trouble":%s,"next_try_at":1e999,"gives_up_at":%d}' % (NESTED, HUGE),
    ),
    "deep fetching": content("travel/fetching.json", '{"waits_for":%s}' % NESTED),
    "a log too large": lambda home: write_logs(home / "travel", b"x" * 10_000_000),
    "a log from the future": lambda home: os.utime(home / "travel/events.jsonl", (2.0**40, 2.0**40)),
    "deep claims": content("travel/claim.json", "[" * 100_000),
    "a claim as deep as can be read": content(
        "travel/claim.json", '{"host":%s,"token":%s}' % (NESTED, NESTED)
    ),
    "a claim of NaN": content("travel/claim.json", '{"at":NaN,"pid":NaN,"host":{}}'),
    "a claim too large": content("travel/claim.json", '{"at":%d,"pid":%d}' % (HUGE, HUGE)),
    "a claim of bytes": content("travel/claim.json", b"\xff\x00"),
    "a claim of nothing": content("travel/claim.json", b""),
    "a claim of a list": content("travel/claim.json", "[]"),
    "a host too large in the claim": content("travel/claim.json", '{"host":"%s"}' % ("n\\n" * 9999)),
    "a fence": content("travel/claim.json", '{"fenced":true,"by":"controller"}'),
}
#: Something odd under every name that the controller looks for.
ODD_NAMES: dict[str, Attack] = {
    "a deep claim": instead("travel/claim.json", as_deep_directory),
    "a deep leg": instead("travel/leg-2", as_deep_directory),
    "a deep log": instead("job.log", as_deep_directory),
    "deep outputs": instead("travel/unfinished/output", as_deep_directory),
    "something deep": instead("travel/something", as_deep_directory),
    "deep commits": instead("committed", as_deep_directory),
    "deep news": instead("committed/news", as_deep_directory),
    **{"the next leg %s" % odd.__name__: instead("travel/leg-2", odd) for odd in ODD},
    **{"the next claim %s" % odd.__name__: instead("travel/leg-2/claim.json", odd) for odd in ODD},
    **{"a claim %s" % odd.__name__: instead("travel/claim.json", odd) for odd in ODD},
    **{"progress %s" % odd.__name__: instead("travel/progress.jsonl", odd) for odd in ODD},
    **{"newest progress %s" % odd.__name__: instead("travel/progress.json", odd) for odd in ODD},
    **{"fetching %s" % odd.__name__: instead("travel/fetching.json", odd) for odd in ODD},
    **{"a training log %s" % odd.__name__: instead("travel/training.log", odd) for odd in ODD},
    **{"a job log %s" % odd.__name__: instead("job.log", odd) for odd in ODD},
    **{"a serial %s" % odd.__name__: instead("travel/serial.json", odd) for odd in ODD},
    **{"unfinished %s" % odd.__name__: instead("travel/unfinished", odd) for odd in ODD},
    **{"something %s" % odd.__name__: instead("travel/something", odd) for odd in ODD},
    **{"a commit %s" % odd.__name__: instead("committed/commit-000007", odd) for odd in ODD},
    **{
        "a commit's manifest %s" % odd.__name__: instead("committed/commit-000007/manifest.json", odd)
        for odd in ODD
    },
    **{"news %s" % odd.__name__: instead("committed/news", odd) for odd in ODD},
    **{"commits %s" % odd.__name__: instead("committed", odd) for odd in ODD},
    "a commit with the longest number": lambda home: (home / ("committed/commit-" + "9" * 240)).mkdir(),
}

#: Attacks that leave no report of how the job ended.
SILENT: dict[str, Attack] = {
    "something deep that came back": instead("travel", as_deep_directory),
    **{"events %s" % odd.__name__: instead("travel/events.jsonl", odd) for odd in ODD},
    **{"travel %s" % odd.__name__: instead("travel", odd) for odd in ODD},
    "an outcome of another version": lambda home: write_logs(home / "travel", outcome="splendid"),
    "a deep outcome": lambda home: write_logs(home / "travel", outcome=json.loads(NESTED)),
    "an outcome that is a number": lambda home: write_logs(home / "travel", outcome=HUGE),
    "events of bytes": content("travel/events.jsonl", b"\xff\x00" * 1000),
    "deep events": content("travel/events.jsonl", "[" * 100_000),
}


# Deliveries.


def leave_model(output: Path) -> None:
    put(output / "model")


def delivery(delivered: Any, leave: Attack = leave_model) -> Attack:
    def attack(home: Path) -> None:
        write_logs(home / "travel", outcome="finished", detail="done", delivered=delivered)
        leave(home / "travel/output")

    return attack


def leave_directory_of_that_size(output: Path) -> None:
    (output / "model").mkdir(parents=True)


def leave_odd(odd: Attack) -> Attack:
    def leave(output: Path) -> None:
        output.mkdir()
        odd(output / "model")

    return leave


DELIVERIES: dict[str, Attack] = {
    "nothing": delivery({"model": {"size": 1}}, lambda output: None),
    "nothing listed": delivery({}, lambda output: None),
    "a name with NUL": delivery({"a\0b": {"size": 1}}),
    "a lone surrogate": delivery({"\ud800": {"size": 1}}),
    "a long name": delivery({"n" * 1_000_000: {"size": 1}}),
    "a long path": delivery({"n/" * 100_000: {"size": 1}}),
    "a name above": delivery({"../claim.json": {"size": 1}}),
    "an absolute name": delivery({"/etc/passwd": {"size": 1}}),
    "a size too large": delivery({"model": {"size": HUGE}}),
    "a size that is NaN": delivery({"model": {"size": float("nan")}}),
    "a deep size": delivery({"model": {"size": json.loads(NESTED)}}),
    "text too large for a size": delivery({"model": {"size": "n" * 1_000_000}}),
    "a directory for a file": delivery({"model": {"size": 4096}}, leave_directory_of_that_size),
    "a deep output": delivery({"model": {"size": 1}}, as_deep_directory),
    **{"an output %s" % odd.__name__: delivery({"model": {"size": 1}}, odd) for odd in ODD},
    **{"a result %s" % odd.__name__: delivery({"model": {"size": 100}}, leave_odd(odd)) for odd in ODD},
}


@contextmanager
def staged(sandbox: bool = True, restricted: bool = False) -> Iterator[Scene]:
    """Make a scene in a directory that pytest does not remove: it may be too deep for that.

    A restricted one has no rights of root, so that permissions count.
    """
    root = Path(tempfile.mkdtemp(prefix="ol-"))
    drops = restricted and os.geteuid() == 0
    try:
        if drops:
            os.chown(root, NOBODY, NOBODY)
            os.seteuid(NOBODY)
        made = Scene(root, sandbox)
        try:
            yield made
        finally:
            made.journal.close()
    finally:
        if drops:
            os.seteuid(0)
        remove(root)


@pytest.fixture
def scene() -> Iterator[Scene]:
    with staged() as made:
        yield made


@pytest.fixture
def shared() -> Iterator[Scene]:
    with staged(sandbox=False) as made:
        yield made


@pytest.fixture
def restricted() -> Iterator[Scene]:
    with staged(restricted=True) as made:
        yield made


def open_files() -> list[str]:
    found = []
    for entry in os.scandir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            found.append(str(Path(entry.path).readlink()))
    return found


def attacked(scene: Scene, attack: Attack, seen: bool = True) -> Attempt:
    """Attack one attempt and return it. Earlier checkpoints must stay, and the next attempt must finish."""
    save(scene.experiment.checkpoints("run"), 1, "first")
    home = scene.begin(seen)
    come_back(home)
    attack(home)
    ended = scene.end(seen)
    assert not [path for path in open_files() if path.startswith(str(home))]
    assert len(ended.detail) < 3000 and len(ended.host) < 300
    loaded = scene.loaded()
    if isinstance(loaded, str):  # a valid checkpoint of another kind: the user has to decide
        assert attack in (write_newer_format, CHECKPOINTS["more parts than there can be"]), loaded
    else:
        assert loaded in ({"step": 1}, {"step": 2})
    scene.finish()
    return ended


@pytest.mark.parametrize("attack", CHECKPOINTS.values(), ids=CHECKPOINTS)
@pytest.mark.parametrize("cut", [False, True], ids=["listed", "cut"])
def test_hostile_checkpoints_do_not_change_the_reported_outcome(
    scene: Scene, attack: Attack, cut: bool
) -> None:
    ended = attacked(scene, without_manifest(attack) if cut else attack)
    assert (ended.outcome, ended.detail) == (Outcome.CONTINUE, CONTINUED)


@pytest.mark.parametrize("attack", MANIFESTS.values(), ids=MANIFESTS)
def test_a_hostile_manifest_does_not_change_the_reported_outcome(scene: Scene, attack: Attack) -> None:
    secret = put(scene.experiment.root / "params/runs/secret")
    ended = attacked(scene, attack)
    assert (ended.outcome, ended.detail) == (Outcome.CONTINUE, CONTINUED)
    for path in scene.experiment.checkpoints("run").rglob("*"):
        assert not path.exists() or not path.samefile(secret)


@pytest.mark.parametrize("attack", {**LOGS, **ODD_NAMES}.values(), ids={**LOGS, **ODD_NAMES})
def test_hostile_files_beside_the_event_log_do_not_keep_an_attempt_from_its_outcome(
    scene: Scene, attack: Attack
) -> None:
    ended = attacked(scene, attack)
    assert (ended.outcome, ended.detail) in [(Outcome.CONTINUE, CONTINUED), (Outcome.LOST, LOST)]


@pytest.mark.parametrize("attack", LOGS.values(), ids=LOGS)
def test_hostile_logs_of_a_job_that_the_scheduler_does_not_list_do_not_keep_an_attempt_from_its_outcome(
    scene: Scene, attack: Attack
) -> None:
    ended = attacked(scene, attack, seen=False)
    assert ended.outcome in (Outcome.CONTINUE, Outcome.LOST) and ended.detail


def plant_bytes(content: bytes) -> Attack:
    return lambda path: (path.write_bytes(content), None)[1]


@pytest.mark.parametrize("name", ("claim.json", "events.jsonl", "progress.jsonl", "fetching.json"))
@pytest.mark.parametrize(
    "plant",
    (
        as_directory,
        as_pipe,
        as_socket,
        *map(plant_bytes, (b"", b"\0" * 4096, b"[" * 60_000, b'{"fenced":"no"}')),
    ),
)
@pytest.mark.parametrize("sandbox", (True, False))
def test_files_planted_for_a_job_that_never_reached_the_queue_do_not_keep_an_attempt_from_its_outcome(
    tmp_path: Path, plant: Attack, name: str, sandbox: bool
) -> None:
    scene = Scene(tmp_path, sandbox)
    scene.cluster.patience = Patience(missing=60.0, heartbeat=86400.0 if sandbox else 30.0, pause=10.0)
    scene.cluster.answer = Submission(SubmitStatus.UNKNOWN)
    home = scene.begin(seen=False)
    with suppress(FileNotFoundError):
        (home / name).unlink()
    plant(home / name)
    assert scene.end(seen=False).outcome is Outcome.LOST
    scene.cluster.answer = Submission(SubmitStatus.ACCEPTED, job="17")
    scene.finish()


def test_an_attempt_with_a_thousand_legs_gets_its_outcome(scene: Scene) -> None:
    home = scene.begin()
    come_back(home)
    for number in range(2, 1001):
        write_logs(home / "travel" / ("leg-%d" % number))
    assert scene.end().outcome is Outcome.CONTINUE


@pytest.mark.parametrize("attack", SILENT.values(), ids=SILENT)
def test_an_attempt_without_a_readable_report_is_lost(scene: Scene, attack: Attack) -> None:
    ended = attacked(scene, attack)
    assert (ended.outcome, ended.detail) == (Outcome.LOST, LOST)


@pytest.mark.parametrize("attack", DELIVERIES.values(), ids=DELIVERIES)
def test_a_hostile_delivery_is_a_wrong_output(scene: Scene, attack: Attack) -> None:
    ended = attacked(scene, attack)
    assert ended.outcome is Outcome.WRONG_OUTPUT
    assert "deliver" in ended.detail


# Links to directories of the user.


def lay_out_valuables(scene: Scene) -> Path:
    """Make a directory of the user that looks like one of an attempt, with entries that clean-up removes."""
    valuables = scene.experiment.root / "valuables"
    write_logs(valuables, host="secret")
    for step in (7, 8):
        save(valuables / "checkpoints", step, "user")
    (valuables / "link").symlink_to("claim.json")
    os.mkfifo(valuables / "pipe")
    put(valuables / "deep" / "/".join("d" * 250) / "file")
    manifest.write(str(valuables), manifest.list_files(str(valuables), ["checkpoints"], 7))
    return valuables


def names_below(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*"))


@pytest.mark.parametrize(
    "name",
    [
        "travel",
        "travel/checkpoints",
        "travel/leg-2",
        "committed",
        "committed/news",
        "committed/commit-000007",
    ],
)
def test_a_link_to_a_directory_of_the_user_is_neither_followed_nor_emptied(scene: Scene, name: str) -> None:
    valuables = lay_out_valuables(scene)
    before = names_below(valuables)
    attacked(scene, instead(name, lambda path: path.symlink_to(valuables)))
    assert names_below(valuables) == before
    assert scene.loaded() in ({"step": 1}, {"step": 2})


# Permissions.


def forbid(name: str, mode: int) -> Attack:
    def attack(home: Path) -> None:
        (home / name).chmod(mode)

    return attack


def forbid_all(home: Path) -> None:
    for place, names, files in os.walk(home / "travel", topdown=False):
        for name in [*names, *files]:
            (Path(place) / name).chmod(0)
    (home / "travel").chmod(0)


FORBIDDEN: dict[str, Attack] = {
    "all": forbid_all,
    "travel": forbid("travel", 0),
    "travel to be written": forbid("travel", 0o500),
    "committed": forbid("committed", 0),
    "committed to be written": forbid("committed", 0o500),
    "checkpoints": forbid("travel/checkpoints", 0),
    "checkpoints to be written": forbid("travel/checkpoints", 0o500),
    "a checkpoint": lambda home: newest(home).chmod(0),
    "a part": lambda home: (newest(home) / file_format.part_name()).chmod(0),
    "a manifest": forbid("travel/manifest.json", 0),
    "a log": forbid("travel/training.log", 0),
    "a claim": forbid("travel/claim.json", 0),
    "events": forbid("travel/events.jsonl", 0),
}


@pytest.mark.parametrize("attack", FORBIDDEN.values(), ids=FORBIDDEN)
def test_files_and_directories_without_permissions_are_made_readable(
    restricted: Scene, attack: Attack
) -> None:
    ended = attacked(restricted, attack)
    assert (ended.outcome, ended.detail) in [(Outcome.CONTINUE, CONTINUED), (Outcome.LOST, LOST)]
    assert restricted.loaded() == {"step": 2}


# Unforeseen errors.


def fail(*_: object) -> None:
    raise ZeroDivisionError("unforeseen")


def test_an_unforeseen_error_while_settling_sets_the_files_aside_and_the_attempt_gets_its_outcome(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(scene.experiment.checkpoints("run"), 1, "first")
    home = scene.begin()
    come_back(home)
    with monkeypatch.context() as patch:
        patch.setattr(manifest, "read", fail)
        ended = scene.end()
    assert (ended.outcome, ended.detail) == (Outcome.CONTINUE, CONTINUED)
    assert list((home / "unusable/checkpoints").glob("step-*2-g*"))
    log = scene.experiment.log("run", 1).read_text()
    assert "epoch 1" in log and "ZeroDivisionError: unforeseen" in log and str(home / "unusable") in log
    assert scene.loaded() == {"step": 1}
    scene.finish()


def test_an_unforeseen_error_while_settling_loses_no_result(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest, "read", fail)
    scene.finish()


def test_an_unforeseen_error_while_reading_a_report_is_like_no_report(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    come_back(scene.begin())
    with monkeypatch.context() as patch:
        patch.setattr("outlast.exchange.shared_files.read_attempt", fail)
        ended = scene.end()
    assert (ended.outcome, ended.detail) == (Outcome.LOST, LOST)


# A shared file system.

SHARED: dict[str, Attack] = {
    "a deep leg": instead("leg-2", as_deep_directory),
    "a deep output": instead("output", as_deep_directory),
    **{"the next leg %s" % odd.__name__: instead("leg-2", odd) for odd in ODD},
    **{"the next claim %s" % odd.__name__: instead("leg-2/claim.json", odd) for odd in ODD},
    **{"a claim %s" % odd.__name__: instead("claim.json", odd) for odd in ODD},
    **{"events %s" % odd.__name__: instead("events.jsonl", odd) for odd in ODD},
    **{"progress %s" % odd.__name__: instead("progress.jsonl", odd) for odd in ODD},
    **{"an output %s" % odd.__name__: instead("output", odd) for odd in ODD},
    "deep claims": content("claim.json", "[" * 100_000),
    "a claim too large": content("claim.json", '{"at":%d,"pid":%d,"host":%s}' % (HUGE, HUGE, NESTED)),
}


@pytest.mark.parametrize("attack", SHARED.values(), ids=SHARED)
def test_hostile_files_in_a_shared_directory_do_not_keep_an_attempt_from_its_outcome(
    shared: Scene, attack: Attack
) -> None:
    home = shared.begin()
    write_logs(home)
    attack(home)
    ended = shared.end()
    assert (ended.outcome, ended.detail) in [(Outcome.CONTINUE, CONTINUED), (Outcome.LOST, LOST)]
    shared.finish()


def test_a_scratch_directory_nested_too_deep_to_be_removed_does_not_stop_the_controller(
    shared: Scene,
) -> None:
    scratch = shared.experiment.workdir / "run" / "001-token"
    scratch.parent.mkdir(parents=True)
    as_deep_directory(scratch)
    shared.finish()


@pytest.mark.parametrize("odd", ["link", "pipe"])
def test_a_log_that_is_a_link_or_a_pipe_is_not_written_to_when_files_are_set_aside(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, odd: str
) -> None:
    victim = scene.experiment.root / "victim"
    victim.write_text("mine")
    come_back(scene.begin())
    log = scene.experiment.log("run", 1)
    log.parent.mkdir(parents=True, exist_ok=True)
    log.unlink(missing_ok=True)
    if odd == "link":
        log.symlink_to(victim)
    else:
        os.mkfifo(log)
    with monkeypatch.context() as patch:
        patch.setattr(manifest, "read", fail)
        patch.setattr(sandbox_results, "_bring_log", lambda *_: None)
        scene.end()
    assert victim.read_text() == "mine"
