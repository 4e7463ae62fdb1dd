"""A scheduler that does not answer is spoken of again and again, and ever more rarely."""

from __future__ import annotations

from itertools import pairwise

from outlast.cli.scheduler_outage import FIRST_AGAIN, LONGEST_AGAIN, Silence

NOON = 1_800_000_000.0


def test_it_is_said_at_once_and_that_nothing_is_lost() -> None:
    told = Silence().after("squeue timed out", NOON)
    assert told.startswith("does not answer: squeue timed out. Nothing is lost: jobs go on")


def test_it_is_said_again_with_how_long_it_has_been_ever_more_rarely() -> None:
    silence = Silence()
    said = [at for at in range(0, 36_000, 15) if silence.after("why", NOON + at)]
    assert said[:4] == [0, 60, 180, 420]
    pauses = [later - earlier for earlier, later in pairwise(said)]
    assert pauses[0] == FIRST_AGAIN and pauses[-1] == LONGEST_AGAIN and pauses == sorted(pauses)
    assert "(12 h): why. Nothing is lost" in silence.after("why", NOON + 12 * 3600)


def test_the_reason_may_change_without_being_said_each_time() -> None:
    silence = Silence()
    assert silence.after("pid 1 timed out", NOON)
    assert silence.after("pid 2 timed out", NOON + 5) == ""


def test_its_end_is_said_once_with_how_long_it_was() -> None:
    silence = Silence()
    assert silence.after("", NOON) == ""
    silence.after("why", NOON)
    assert silence.after("", NOON + 300) == "answers again, after 5 min"
    assert silence.after("", NOON + 310) == ""
    assert silence.after("why", NOON + 320).startswith("does not answer")


def test_a_clock_that_was_set_back_does_not_silence_it() -> None:
    silence = Silence()
    silence.after("why", NOON)
    assert silence.after("why", NOON - 3600)
