"""Wrong input leads to a clear message, exit code 2 and no traceback, and loses nothing."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.experiments import TRAINING, Ended, Lab, states
from support.privileges import without_privileges


def assert_refused(ended: Ended, *parts: str) -> None:
    assert ended.returncode == 2, ended.output
    assert "Traceback" not in ended.output and "internal error in Outlast" not in ended.output, ended.output
    for part in parts:
        assert part in ended.stderr, ended.stderr


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


# params.yaml


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("comand: sh train.sh", ("params.yaml:3: ", 'did you mean "command"?')),
        ("parallel: many", ("params.yaml:3: ", "parallel")),
        ("resources: {time: soonish}", ("params.yaml:3: ", "soonish")),
        ("sweep: {lr: []}", ("params.yaml:3: ", "lr")),
        ("sweep: {lr: [1, 1]}", ("params.yaml:3: ", "twice")),
        ("code: [train.sh, nowhere.py]", ("params.yaml:3: ", "nowhere.py")),
        ("cluster: moon", ("params.yaml:3: ", "moon")),
        ("outputs: [/etc/passwd]", ("params.yaml:3: ", "/etc/passwd")),
        ("runs: [", ("params.yaml:", "")),
    ],
)
def test_a_mistake_in_params_yaml_is_named_with_its_line_and_nothing_is_submitted(
    lab: Lab, line: str, parts: tuple[str, ...]
) -> None:
    wrong = lab.root / "wrong"
    wrong.mkdir()
    (wrong / "train.sh").write_text(TRAINING)
    (wrong / "params.yaml").write_text("name: wrong\ncommand: sh train.sh plain\n%s\n" % line)
    before = contents(wrong)
    assert_refused(lab.outlast("run", wrong), *parts)
    assert contents(wrong) == before


def test_all_mistakes_are_reported_at_once(lab: Lab) -> None:
    wrong = lab.root / "wrong"
    wrong.mkdir()
    (wrong / "params.yaml").write_text("name: wrong\nparalel: 3\nruns: -1\nresources: {time: soonish}\n")
    for command in ("check", "submit"):
        parts = ("params.yaml:2:", "params.yaml:3:", "params.yaml:4:", "command: is missing")
        assert_refused(lab.outlast(command, wrong), *parts)


@pytest.mark.parametrize("command", ["check", "submit", "run", "up", "tick", "status", "report"])
def test_a_directory_that_is_no_experiment_is_named_with_what_to_type(lab: Lab, command: str) -> None:
    (lab.root / "empty").mkdir()
    (lab.root / "file").touch()
    assert_refused(lab.outlast(command, "empty"), "empty", "outlast init")
    assert_refused(lab.outlast(command, "nowhere"), "nowhere", "outlast init")
    assert_refused(lab.outlast(command, "file"), "file")


def test_the_error_for_an_unknown_run_or_command_suggests_the_nearest_one(lab: Lab) -> None:
    known = lab.experiment("known", command="sh train.sh {kind}", sweep={"kind": ["fluke", "bug"]})
    assert_refused(lab.outlast("status", known), "nothing has been submitted here yet", "outlast run")
    lab.outlast("submit", known)
    for command in ("explain", "logs", "cancel", "retry"):
        assert_refused(
            lab.outlast(command, "known-kind=flook", "-C", known), "did you mean known-kind=fluke?"
        )
    assert_refused(
        lab.outlast("explain", "-C", known), "which run? There are 2: known-kind=fluke, known-kind=bug"
    )
    assert_refused(lab.outlast("cancel", "-C", known), "--all")
    assert_refused(lab.outlast("statsu"), "did you mean `outlast status`?")
    assert_refused(lab.outlast("logs", "fluke", "-C", known, "--attempt", "x"), "--attempt")


# The journal


def cut(journal: Path) -> None:
    journal.write_bytes(journal.read_bytes()[: journal.stat().st_size // 2 // 4096 * 4096 + 100])


def overwrite(journal: Path) -> None:
    journal.write_bytes(b"These are not the pages you are looking for. " * 999)


def scramble(journal: Path) -> None:
    data = bytearray(journal.read_bytes())
    data[4096:] = bytes(255 - byte for byte in data[4096:])
    journal.write_bytes(data)


def empty(journal: Path) -> None:
    journal.write_bytes(b"")


def replace_by_a_directory(journal: Path) -> None:
    journal.unlink()
    journal.mkdir()


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of an experiment with one run that has finished, by their relative names."""
    lab = Lab(tmp_path_factory.mktemp("j"))
    try:
        done = lab.experiment("done", command="sh train.sh fluke", outputs=["first.txt"])
        assert lab.outlast("run", done).returncode == 0
        return {str(path.relative_to(done)): path.read_bytes() for path in done.rglob("*") if path.is_file()}
    finally:
        lab.close()


@pytest.mark.parametrize("damage", [cut, overwrite, scramble, empty, replace_by_a_directory])
def test_a_damaged_journal_is_refused_and_left_as_it_is(
    lab: Lab, ended: dict[str, bytes], damage: Callable[[Path], None]
) -> None:
    done = lab.root / "done"
    for name, data in ended.items():
        (done / name).parent.mkdir(parents=True, exist_ok=True)
        (done / name).write_bytes(data)
    damage(done / "journal.sqlite")
    before = contents(done)
    for command in ("up", "tick", "submit", "run"):
        assert_refused(
            lab.outlast(command, done), "journal.sqlite", "mv journal.sqlite journal.sqlite.damaged"
        )
    if damage is not scramble:  # these may not read the damaged page
        for command in ("status", "report"):
            assert_refused(lab.outlast(command, done), "journal.sqlite")
    assert {name: data for name, data in contents(done).items() if name in before} == before
    if damage is replace_by_a_directory:
        (done / "journal.sqlite").rmdir()
    else:
        (done / "journal.sqlite").rename(done / "journal.sqlite.damaged")
    again = lab.outlast("run", done)
    assert again.returncode == 0, "following the message does not help:\n%s" % again.output
    assert len(list((done / "results").iterdir())) == 2, "the earlier results are gone"


def test_an_empty_journal_file_counts_as_none(lab: Lab) -> None:
    """A controller that was killed at its start leaves an empty file."""
    fresh = lab.experiment("fresh", command="sh train.sh fluke", outputs=["first.txt"])
    (fresh / "journal.sqlite").touch()
    for command in ("status", "up", "report"):
        assert_refused(lab.outlast(command, fresh), "nothing has been submitted here yet", "outlast run")
    ended = lab.outlast("run", fresh)
    assert ended.returncode == 0, ended.output


# Requests


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff\xfe", b"[]", b'{"kind": "explode"}', b'{"kind": "cancel", "runs": [1], "reason": ""}'],
)
def test_an_unreadable_request_is_put_aside_and_the_others_are_processed(lab: Lab, content: bytes) -> None:
    odd = lab.experiment("odd", command="sh train.sh fluke", outputs=["first.txt"])
    inbox = odd / "params" / "inbox"
    inbox.mkdir(parents=True)
    (inbox / "1-odd.json").write_bytes(content)
    ended = lab.outlast("run", odd)
    assert ended.returncode == 0, ended.output
    assert "1-odd.json.unreadable could not be read as a request" in ended.stdout
    assert (inbox / "1-odd.json.unreadable").read_bytes() == content
    assert states(odd) == {"odd": "finished"}


def test_a_directory_among_the_requests_is_put_aside_too(lab: Lab) -> None:
    odd = lab.experiment("odd", command="sh train.sh fluke")
    (odd / "params" / "inbox" / "1-odd.json").mkdir(parents=True)
    ended = lab.outlast("run", odd)
    assert ended.returncode == 0, ended.output
    assert (odd / "params" / "inbox" / "1-odd.json.unreadable").is_dir()


# Permission and space


@pytest.fixture
def locked(lab: Lab) -> Iterator[Path]:
    """An experiment in a read-only directory."""
    directory = lab.experiment("locked", command="sh train.sh plain", outputs=["first.txt"])
    directory.chmod(0o555)
    yield directory
    for path in (directory, *directory.rglob("*")):
        if path.is_dir():
            path.chmod(0o755)


def test_a_read_only_experiment_is_refused_and_named(lab: Lab, locked: Path) -> None:
    before = contents(locked)
    for command in ("check", "submit", "run"):
        assert_refused(lab.outlast(command, locked, powers=without_privileges), str(locked))
    for command in ("up", "status"):
        assert_refused(lab.outlast(command, locked, powers=without_privileges), "nothing has been submitted")
    assert_refused(lab.outlast("init", locked / "new", powers=without_privileges), str(locked / "new"))
    assert contents(locked) == before


def test_an_experiment_that_became_read_only_continues_when_it_is_writable_again(
    lab: Lab, locked: Path
) -> None:
    locked.chmod(0o755)
    assert lab.outlast("submit", locked, powers=without_privileges).returncode == 0
    locked.chmod(0o555)
    (locked / "journal.sqlite").chmod(0o444)
    for words in (("up", locked), ("tick", locked)):
        assert_refused(lab.outlast(*words, powers=without_privileges), "journal.sqlite")
    locked.chmod(0o755)
    (locked / "journal.sqlite").chmod(0o644)
    assert lab.outlast("up", locked, powers=without_privileges).returncode == 0


def test_all_views_work_with_read_permission_only(lab: Lab, locked: Path) -> None:
    locked.chmod(0o755)
    assert lab.outlast("run", locked, powers=without_privileges).returncode == 0
    (locked / "journal.sqlite").chmod(0o444)
    locked.chmod(0o555)
    before = contents(locked)
    for words in (("status", locked), ("report", locked), ("explain", locked), ("logs", locked)):
        seen = lab.outlast(*words, powers=without_privileges)
        assert seen.returncode == 0, seen.output
    assert contents(locked) == before


class Scarce:
    """A directory that can be filled to the last byte; a mount of its own if that is possible."""

    def __init__(self, place: Path) -> None:
        self.place = place
        place.mkdir()
        mount = [shutil.which("mount") or "false", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(place)]
        self.mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
        self.full = False

    def fill(self) -> None:
        self.full = True
        if self.mounted:
            with (self.place / "ballast").open("wb", buffering=0) as file:
                for size in (65536, 4096, 1):
                    while self._wrote(file.fileno(), bytes(size)):
                        pass

    @staticmethod
    def _wrote(descriptor: int, data: bytes) -> bool:
        try:
            return os.write(descriptor, data) > 0
        except OSError:
            return False

    def powers(self) -> None:
        """Forbid the process to write if nothing can be mounted: the same to it as a full disk."""
        if self.full and not self.mounted:
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

    def free(self) -> None:
        self.full = False
        (self.place / "ballast").unlink(missing_ok=True)

    def close(self) -> None:
        if self.mounted:
            subprocess.run(["umount", "-l", str(self.place)], check=True)


@pytest.fixture
def scarce(lab: Lab) -> Iterator[Scarce]:
    scarce = Scarce(lab.root / "s")
    yield scarce
    lab.close()  # no process may use the directory any more
    scarce.close()


def test_a_submission_fails_on_a_full_disk_and_succeeds_when_there_is_space(lab: Lab, scarce: Scarce) -> None:
    crowded = lab.experiment("s/crowded", command="sh train.sh plain", outputs=["first.txt"])
    scarce.fill()
    for command in ("submit", "run"):
        assert_refused(lab.outlast(command, crowded, powers=scarce.powers), str(crowded))
    scarce.free()
    assert_refused(lab.outlast("status", crowded), "nothing has been submitted here yet")
    ended = lab.outlast("run", crowded)
    assert ended.returncode == 0, ended.output


def test_a_disk_that_fills_up_in_mid_run_stops_the_controller_and_loses_nothing(
    lab: Lab, scarce: Scarce
) -> None:
    crowded = lab.experiment("s/crowded", command="sh train.sh plain", outputs=["first.txt"], runs=2)
    assert lab.outlast("submit", crowded).returncode == 0
    lab.until("attempts end", lambda: all(v.ended for v in lab.scheduler(crowded).poll().values()))
    scarce.fill()
    assert_refused(lab.outlast("up", crowded, powers=scarce.powers), "journal.sqlite", "nothing was lost")
    scarce.free()
    ended = lab.outlast("up", crowded)
    assert ended.returncode == 0, ended.output
    assert set(states(crowded).values()) == {"finished"}
