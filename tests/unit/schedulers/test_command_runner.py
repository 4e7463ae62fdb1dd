"""A scheduler's program is run with a timeout, and is ended if it only waits."""

from __future__ import annotations

import pytest

from outlast.schedulers.command_runner import CommandNotRun, CommandTimeout, run_command


def test_output_and_exit_code_are_returned() -> None:
    output = run_command(["sh", "-c", "cat; echo $A $LC_ALL >&2; exit 3"], 60, "in", {"A": "b"})
    assert (output.code, output.out, output.err) == (3, "in", "b C\n")


def test_a_program_that_is_not_there_was_not_run() -> None:
    with pytest.raises(CommandNotRun, match="no-such-program: No such file"):
        run_command(["no-such-program"], 60)


@pytest.mark.parametrize("final_words", ["", "retrying"])
def test_a_program_that_takes_too_long_is_killed(final_words: str) -> None:
    with pytest.raises(CommandTimeout, match="sleep did not respond within 0 s"):
        run_command(["sleep", "600"], 0.3, final_words=final_words)


def test_a_program_that_prints_its_final_words_is_ended() -> None:
    script = "cat; echo sleeping and retrying >&2; exec sleep 600"
    output = run_command(["sh", "-c", script], 60, "x" * 100_000, final_words="retrying")
    assert (output.code, len(output.out)) == (-9, 100_000)
    assert output.error_message == "sleeping and retrying"


def test_a_program_that_goes_on_for_a_while_is_waited_for() -> None:
    output = run_command(["sh", "-c", "cat; sleep 0.6; echo done"], 60, "x\n", final_words="retrying")
    assert (output.code, output.out) == (0, "x\ndone\n")
