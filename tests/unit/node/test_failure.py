"""The same bug has the same signature, another bug another, and the user reads one plain sentence."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from outlast.node.diagnosis import failure, log_tracebacks
from outlast.node.protocol import Outcome


def _output_of(script: str, tmp_path: Path, name: str = "train.py") -> str:
    (tmp_path / name).write_text(script)
    done = subprocess.run(
        [sys.executable, name], cwd=tmp_path, stderr=subprocess.PIPE, text=True, check=False, timeout=60
    )
    return done.stderr


def _diagnose(
    text: str, code: int | None = 1, number: int | None = None, oom: bool = False
) -> failure.Failure:
    return failure.diagnose(text, code, number, oom)


def test_the_sentence_names_exception_message_and_the_users_own_line(tmp_path: Path) -> None:
    text = _output_of("import json\n\njson.loads('{')\n", tmp_path)
    found = _diagnose(text)
    assert found.outcome is Outcome.CRASHED
    assert found.detail.startswith("json.decoder.JSONDecodeError: Expecting property name")
    assert found.detail.endswith("(train.py line 3)")


def test_the_message_and_the_directory_do_not_change_the_signature_but_the_line_does(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    script = "import os\nraise ValueError('%s is bad' % os.getpid())\n"
    first = _diagnose(_output_of(script, tmp_path / "a"))
    second = _diagnose("an epoch went by\n" + _output_of(script, tmp_path / "b"))
    elsewhere = _diagnose(_output_of("\n" + script, tmp_path / "b"))
    other_type = _diagnose(_output_of(script.replace("ValueError", "TypeError"), tmp_path / "b"))
    assert first.signature == second.signature
    assert len({first.signature, elsewhere.signature, other_type.signature}) == 3


def test_the_last_of_chained_exceptions_counts(tmp_path: Path) -> None:
    script = "try:\n    {}['a']\nexcept KeyError as e:\n    raise RuntimeError('no config') from e\n"
    assert _diagnose(_output_of(script, tmp_path)).detail == "RuntimeError: no config (train.py line 4)"


def test_a_syntax_error_names_its_line(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("x = 1\ny = = 2\n")
    found = _diagnose(_output_of("import bad\n", tmp_path))
    assert found.detail == "SyntaxError: invalid syntax (bad.py line 2)"


def test_the_original_traceback_of_a_worker_and_rank_prefixes_are_parsed() -> None:
    text = (
        "[rank0]: Traceback (most recent call last):\n"
        '[rank0]:   File "train.py", line 7, in main\n'
        "[rank0]: ValueError: Caught ValueError in DataLoader worker process 0.\n"
        "[rank0]: Original Traceback (most recent call last):\n"
        '[rank0]:   File "data.py", line 3, in __getitem__\n'
        "[rank0]:     return self.items[i]\n"
        "[rank0]: IndexError: list index out of range\n"
    )
    assert _diagnose(text).detail == "IndexError: list index out of range (data.py line 3)"


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exception groups came with 3.11")
def test_an_exception_group_is_named_with_its_line(tmp_path: Path) -> None:
    script = "raise ExceptionGroup('both', [ValueError('a'), TypeError('b')])\n"
    found = _diagnose(_output_of(script, tmp_path))
    assert found.detail == "ExceptionGroup: both (2 sub-exceptions) (train.py line 1)"


@pytest.mark.parametrize(
    ("line", "outcome"),
    [
        ("MemoryError", Outcome.OUT_OF_MEMORY),
        ("numpy._core._exceptions._ArrayMemoryError: Unable to allocate 8 GiB", Outcome.OUT_OF_MEMORY),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", Outcome.OUT_OF_MEMORY),
        ("RuntimeError: CUDA out of memory.", Outcome.OUT_OF_MEMORY),
        ("OSError: [Errno 28] No space left on device", Outcome.OUT_OF_DISK),
        ("OSError: [Errno 122] Disk quota exceeded: 'x'", Outcome.OUT_OF_DISK),
        ("KeyError: 'out'", Outcome.CRASHED),
    ],
)
def test_memory_and_disk_are_distinguished_from_bugs_by_the_last_traceback(
    line: str, outcome: Outcome
) -> None:
    text = f'Traceback (most recent call last):\n  File "train.py", line 7, in main\n    f()\n{line}\n'
    assert _diagnose(text).outcome is outcome


def test_a_memory_error_that_was_survived_does_not_count() -> None:
    early = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\nMemoryError\n'
    late = 'Traceback (most recent call last):\n  File "a.py", line 2, in g\nKeyError: 1\n'
    assert _diagnose(early + late).outcome is Outcome.CRASHED


def test_without_a_traceback_code_and_last_line_without_numbers_make_the_signature() -> None:
    first = _diagnose("step 12\nfatal at 0xdeadbeef after 17 s\n\n", code=3)
    second = _diagnose("step 99\nfatal at 0x12 after 3 s\n", code=3)
    assert first.signature == second.signature
    assert first.signature != _diagnose("step 99\nfatal at 0x12 after 3 s\n", code=4).signature
    assert first.detail == "the training exited with 3; its last line: fatal at 0xdeadbeef after 17 s"
    assert _diagnose("", code=3).detail == "the training exited with 3; it wrote nothing"


def test_a_kill_is_not_blamed_on_an_exception_that_was_caught_long_before() -> None:
    text = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\nMemoryError\ncontinuing\n'
    found = _diagnose(text, code=None, number=signal.SIGKILL)
    assert found.outcome is Outcome.CRASHED
    assert "SIGKILL" in found.detail


def test_a_kill_by_the_kernel_for_lack_of_memory_is_out_of_memory() -> None:
    assert _diagnose("", None, signal.SIGKILL, oom=True).outcome is Outcome.OUT_OF_MEMORY
    assert _diagnose("", 137, None, oom=True).outcome is Outcome.OUT_OF_MEMORY
    assert _diagnose("", None, signal.SIGSEGV, oom=True).outcome is Outcome.CRASHED


def test_only_the_end_of_a_huge_log_and_nothing_of_an_earlier_attempt_is_read(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"old attempt\n" + b"x" * 300_000 + "\nnew é\n".encode())
    assert len(failure.read_end(str(log))) <= 256 * 1024
    assert failure.read_end(str(log), start=300_012) == "\nnew é\n"
    assert failure.read_end(str(tmp_path / "none")) == ""


def test_the_tail_is_twenty_lines_and_four_kibibytes_at_most() -> None:
    assert failure.tail("\n".join(str(n) for n in range(100))).splitlines() == [
        str(n) for n in range(80, 100)
    ]
    assert len(failure.tail("é" * 10_000).encode()) <= 4096


@pytest.mark.parametrize(
    "text", ["Traceback (most recent call last):", "Traceback (most recent call last):\n ;\n???\n"]
)
def test_an_incomplete_traceback_is_ignored(text: str) -> None:
    assert log_tracebacks.parse(text.splitlines()) == []


def test_a_full_disk_is_recognised_in_the_output_of_any_program() -> None:
    output = "dd: error writing '/scratch/x': No space left on device\n1+0 records in\n0 bytes copied\n"
    found = failure.diagnose(output, 1, None, False)
    assert found.outcome is Outcome.OUT_OF_DISK and "0 bytes copied" in found.detail
    assert failure.diagnose(output, None, 9, False).outcome is Outcome.CRASHED
