"""Under a launcher the failure of the first rank counts, not that of the launcher or of the other ranks."""

from __future__ import annotations

import signal

import pytest

from outlast.node.diagnosis import failure
from outlast.node.failure_streak import FailureStreak
from outlast.node.protocol import Outcome

LOST_PEER = "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:36505."
DISK_FULL = "OSError: [Errno 28] No space left on device: 'x'"


def traceback(last: str, line: int = 7, prefix: str = "") -> str:
    """Return a traceback as a rank writes it."""
    lines = (
        "Traceback (most recent call last):",
        '  File "/home/me/train.py", line 25, in <module>',
        "    step()",
        f'  File "/home/me/train.py", line {line}, in step',
        "    fail()",
        last,
    )
    return "".join(f"{prefix}{one}\n" for one in lines)


def report(root: tuple[int, int], *others: tuple[int, int], recorded: str = "") -> str:
    """Return the end of torchrun's log: ranks and exit codes, negative for signals."""

    def one(number: int, rank: int, code: int, text: str = "To enable traceback see: https://…") -> str:
        name = f" ({signal.Signals(-code).name})" if code < 0 else ""
        if code < 0:
            text = f"Signal {-code} ({signal.Signals(-code).name}) received by PID {100 + rank}"
        return (
            f"[{number}]:\n  time      : 2026-01-01_00:00:00\n  host      : localhost\n"
            f"  rank      : {rank} (local_rank: {rank})\n  exitcode  : {code} (pid: {100 + rank}) {name}\n"
            f"  error_file: <N/A>\n  traceback : {text}\n"
        )

    listed = (
        "".join(one(number, *other) for number, other in enumerate(others, 1)) or "  <NO_OTHER_FAILURES>\n"
    )
    text = recorded.replace("\n", "\n  ") if recorded else "To enable traceback see: https://…"
    return (
        "W0101 00:00:00.741000 1 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 100 "
        "closing signal SIGTERM\n"
        "Traceback (most recent call last):\n"
        '  File "/usr/lib/python3/site-packages/torch/distributed/run.py", line 383, in launch_agent\n'
        "    raise ChildFailedError(\n"
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
        f"{'=' * 60}\ntrain.py FAILED\n{'-' * 60}\nFailures:\n{listed}{'-' * 60}\n"
        f"Root Cause (first observed failure):\n{one(0, *root, text)}{'=' * 60}\n"
    )


def diagnose(text: str, oom: bool = False) -> failure.Failure:
    """Diagnose a log of torchrun, which always exits with 1."""
    return failure.diagnose(text, 1, None, oom)


@pytest.mark.parametrize(
    ("last", "outcome"),
    [
        ("ValueError: bad", Outcome.CRASHED),
        ("MemoryError", Outcome.OUT_OF_MEMORY),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", Outcome.OUT_OF_MEMORY),
        (DISK_FULL, Outcome.OUT_OF_DISK),
    ],
)
@pytest.mark.parametrize(
    "prefix", ["[rank%d]: ", "[default%d]:[rank%d]: ", "%d: ", "[1,%d]<stderr>:", "[%d] ", ""]
)
def test_the_first_ranks_traceback_is_the_cause_whatever_the_others_wrote(
    prefix: str, last: str, outcome: Outcome
) -> None:
    first, second = (prefix.replace("%d", str(rank)) for rank in (1, 0))
    text = "step 5\n" + traceback(last, prefix=first) + traceback(LOST_PEER, 9, second)
    alone = failure.diagnose(traceback(last), 1, None, False)
    assert alone.outcome is outcome
    assert diagnose(text + report((1, 1), (0, -15))) == alone


def test_two_different_errors_under_torchrun_have_different_signatures() -> None:
    texts = [traceback("ValueError: a", line, "[rank1]: ") + report((1, 1), (0, -15)) for line in (7, 8, 7)]
    one, other, same = (diagnose(text).signature for text in texts)
    assert one == same != other


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
@pytest.mark.parametrize("prefix", ["[rank0]: ", ""])
def test_a_rank_that_was_killed_is_the_cause_even_if_another_failure_was_seen_first(
    number: signal.Signals, prefix: str
) -> None:
    text = traceback(LOST_PEER, 9, prefix)
    for reported in (report((1, -number), (0, -15)), report((0, 1), (1, -number))):
        found = diagnose(text + reported)
        assert found.outcome is Outcome.CRASHED and found.signal == number
        assert (
            found.detail == f"rank 1 of the training was ended by {number.name}, which Outlast did not send"
        )


def test_two_kills_of_a_rank_with_saves_in_between_do_not_stop_the_run() -> None:
    streak = FailureStreak()
    for _ in range(3):
        found = diagnose(traceback(LOST_PEER, 9, "[rank0]: ") + report((1, -9), (0, -15)))
        streak = streak.after(found.outcome, found.signature, progressed=True, signal=found.signal)
    assert not streak.is_hopeless


def test_a_rank_that_the_kernel_killed_for_its_memory_is_out_of_memory() -> None:
    for reported in (report((1, -9), (0, -15)), report((0, 1), (1, -9)), report((0, 1))):
        text = traceback(LOST_PEER, 9, "[rank0]: ") + reported
        assert diagnose(text, oom=True).outcome is Outcome.OUT_OF_MEMORY
    bug = traceback("ValueError: a", 7, "[rank1]: ") + report((1, 1), (0, -15))
    assert diagnose(bug, oom=True).outcome is Outcome.CRASHED


def test_a_rank_that_the_launcher_had_to_kill_is_not_the_cause() -> None:
    forced = (
        "W0101 00:00:30.741000 1 torch/api.py:889] Unable to shutdown process 100 via SIGTERM, forcefully\n"
    )
    text = traceback(LOST_PEER, 9, "[rank1]: ") + forced + report((1, 1), (0, -9))
    found = diagnose(text)
    assert found.signal is None and "Connection closed by peer" in found.detail


def test_a_rank_that_exited_is_the_cause_although_another_wrote_a_traceback() -> None:
    for prefix in ("[rank0]: ", ""):
        found = diagnose(traceback(LOST_PEER, 9, prefix) + report((1, 3), (0, -15)))
        assert (found.outcome, found.detail) == (Outcome.CRASHED, "rank 1 of the training exited with 3")


def test_a_full_disk_that_a_rank_only_printed_is_recognised() -> None:
    found = diagnose("cp: error writing 'x': No space left on device\n" + report((1, 2), (0, -15)))
    assert found.outcome is Outcome.OUT_OF_DISK


def test_the_traceback_in_torchruns_report_is_used_where_the_log_has_no_other() -> None:
    found = diagnose(report((1, 1), (0, -15), recorded=traceback(DISK_FULL)))
    assert found == failure.diagnose(traceback(DISK_FULL), 1, None, False)


def test_a_survived_traceback_long_before_is_not_the_cause() -> None:
    old = traceback("MemoryError", 3) + "".join(f"step {n}\n" for n in range(100))
    found = diagnose(old + report((1, 1), (0, -15)))
    assert (found.outcome, found.detail) == (Outcome.CRASHED, "rank 1 of the training exited with 1")


def test_a_kill_that_was_survived_long_before_is_not_the_cause() -> None:
    old = "srun: error: node1: task 1: Killed\n" + "".join(f"step {n}\n" for n in range(300))
    found = diagnose(old + traceback("ValueError: a"))
    assert found.signal is None and found.detail.startswith("ValueError: a")


def test_mixed_tracebacks_have_one_signature_however_their_lines_follow_one_another() -> None:
    one, other = (
        traceback(last, line).splitlines(True) for last, line in (("ValueError: a", 7), (LOST_PEER, 9))
    )
    turns = [line for pair in zip(one, other) for line in pair]  # noqa: B905 - Python 3.8
    halves = [*one[:2], *other[:3], *one[2:], *other[3:]]
    found = [diagnose("".join(lines) + report((1, 1), (0, -15))) for lines in (turns, halves)]
    assert found[0].signature == found[1].signature
    assert found[0].detail.startswith("ValueError: a")


def test_ranks_without_a_launchers_report_are_reported_apart_by_their_prefix() -> None:
    text = traceback(DISK_FULL, 7, "1: ") + traceback(LOST_PEER, 9, "0: ")
    assert diagnose(text).outcome is Outcome.OUT_OF_DISK


@pytest.mark.parametrize(
    ("log", "code", "number"),
    [
        ("[INFO] [launch.py:319:sigkill_handler] ['python'] exits with return code = -9\n", 247, 9),
        ("srun: error: node1: task 1: Killed\nsrun: Terminating StepId=7.0\n", 137, 9),
        ("srun: error: node1: task 1: Segmentation fault (core dumped)\n", 139, 11),
        ("mpirun noticed that process rank 1 with PID 7 on node a exited on signal 9 (Killed).\n", 137, 9),
        ("YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)\n", 9, 9),
        ("train.sh: line 2: 7 Killed      python train.py\n", 137, 9),
        (
            traceback(
                "torch.distributed.elastic.multiprocessing.api.SignalException: Process 7 got signal: 15"
            ),
            1,
            15,
        ),
        (
            traceback(
                "torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with signal SIGKILL"
            ),
            1,
            9,
        ),
        (
            traceback(
                "subprocess.CalledProcessError: Command '['x']' died with <Signals.SIGKILL: 9>."
            ).replace("/home/me/train.py", "/lib/accelerate/commands/launch.py"),
            1,
            9,
        ),
    ],
)
def test_a_kill_is_recognised_in_the_log_of_every_launcher(log: str, code: int, number: int) -> None:
    found = failure.diagnose(traceback(LOST_PEER, 9) + log, code, None, False)
    assert (found.outcome, found.signal) == (Outcome.CRASHED, number)
    expected = Outcome.OUT_OF_MEMORY if number == signal.SIGKILL else Outcome.CRASHED
    assert failure.diagnose(log, code, None, True).outcome is expected


@pytest.mark.parametrize(
    "log",
    [
        "[ERROR] [launch.py:322:sigkill_handler] ['python'] exits with return code = 1\n",
        "srun: error: node1: task 1: Exited with exit code 1\n",
        "The first process to do so was:\n\n  Process name: [[61557,1],1]\n  Exit code:    1\n",
        traceback("subprocess.CalledProcessError: Command '['x']' returned non-zero exit status 1.").replace(
            "/home/me/train.py", "/lib/accelerate/commands/launch.py"
        ),
    ],
)
def test_a_bug_is_recognised_in_the_log_of_every_launcher(log: str) -> None:
    text = traceback("ValueError: a", 7) + traceback(LOST_PEER, 9) + log
    assert diagnose(text) == failure.diagnose(traceback("ValueError: a", 7), 1, None, False)


def test_a_command_that_fails_in_the_users_code_is_the_users_error() -> None:
    last = "subprocess.CalledProcessError: Command 'x' returned non-zero exit status 2."
    found = diagnose(traceback("KeyError: 1", 3) + traceback(last))
    assert found.detail.startswith("subprocess.CalledProcessError") and "line 7" in found.detail


def test_a_bug_under_lightning_which_kills_its_first_process_is_not_taken_for_a_kill() -> None:
    reported = (
        "[rank: 1] Child process with PID 7 terminated with code 1. Forcefully terminating all others\n"
    )
    found = failure.diagnose(traceback("ValueError: a", 7, "[rank1]: ") + reported, None, 9, False)
    assert found == failure.diagnose(traceback("ValueError: a", 7), 1, None, False)
    assert failure.diagnose("step 3\n", None, 9, False).signal == 9


def test_memory_that_slurm_found_used_up_is_out_of_memory() -> None:
    log = "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some tasks were OOM Killed.\n"
    text = traceback(LOST_PEER, 9) + log + "srun: error: node1: task 1: Out Of Memory\n"
    assert failure.diagnose(text, 1, None, False).outcome is Outcome.OUT_OF_MEMORY


def test_a_process_that_loads_data_and_was_killed_for_its_memory_is_out_of_memory() -> None:
    text = traceback("RuntimeError: DataLoader worker (pid 17) is killed by signal: Killed. ")
    assert diagnose(text, oom=True).outcome is Outcome.OUT_OF_MEMORY
    found = diagnose(text)
    assert (found.outcome, found.signal) == (Outcome.CRASHED, signal.SIGKILL)


@pytest.mark.parametrize(
    "line",
    [
        '  File "a", line ' + "9" * 5000 + ", in f",
        "  exitcode  : " + "9" * 5000 + " (pid: 1)",
        "[a" + "1" * 200_000,
        "CalledProcessError: " * 10_000,
        "[" * 200_000,
        "Traceback (most recent call last):\n" * 5_000,
    ],
)
def test_a_hostile_log_is_diagnosed(line: str) -> None:
    found = diagnose("Traceback (most recent call last):\n" + line + "\nValueError: x\n")
    assert found.signature
