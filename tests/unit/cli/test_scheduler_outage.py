"""That a scheduler does not respond is repeated at growing intervals."""

from __future__ import annotations

from itertools import pairwise

from outlast.cli.scheduler_outage import FIRST_REPEAT, LONGEST_REPEAT, OutageMessages

NOON = 1_800_000_000.0


def test_the_first_message_is_immediate_and_states_that_nothing_is_lost() -> None:
    message = OutageMessages().after_poll("squeue timed out", NOON)
    assert message.startswith("not responding: squeue timed out. Nothing is lost: jobs continue")


def test_the_message_is_repeated_with_the_duration_at_growing_intervals() -> None:
    messages = OutageMessages()
    printed = [at for at in range(0, 36_000, 15) if messages.after_poll("why", NOON + at)]
    assert printed[:4] == [0, 60, 180, 420]
    pauses = [later - earlier for earlier, later in pairwise(printed)]
    assert pauses[0] == FIRST_REPEAT and pauses[-1] == LONGEST_REPEAT and pauses == sorted(pauses)
    assert "(12 h): why. Nothing is lost" in messages.after_poll("why", NOON + 12 * 3600)


def test_a_changed_error_alone_does_not_repeat_the_message() -> None:
    messages = OutageMessages()
    assert messages.after_poll("pid 1 timed out", NOON)
    assert messages.after_poll("pid 2 timed out", NOON + 5) == ""


def test_the_end_is_reported_once_with_the_duration() -> None:
    messages = OutageMessages()
    assert messages.after_poll("", NOON) == ""
    messages.after_poll("why", NOON)
    assert messages.after_poll("", NOON + 300) == "responding again, after 5 min"
    assert messages.after_poll("", NOON + 310) == ""
    assert messages.after_poll("why", NOON + 320).startswith("not responding: why")


def test_a_clock_that_was_set_back_does_not_suppress_the_message() -> None:
    messages = OutageMessages()
    messages.after_poll("why", NOON)
    assert messages.after_poll("why", NOON - 3600)
