"""Parsing and showing durations and sizes."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.node.quantities import show_rounded_duration
from outlast.units import (
    is_minutes_and_seconds,
    parse_duration,
    parse_size,
    show_duration,
    show_limit,
    show_size,
    write_duration,
)

HOUR = 3600


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("4s", 4),
        ("0.5s", 0.5),
        ("90min", 90 * 60),
        ("90 m", 90 * 60),
        ("90 minutes", 90 * 60),
        ("24h", 24 * HOUR),
        ("1.5h", 1.5 * HOUR),
        ("2d", 48 * HOUR),
        ("1w", 7 * 24 * HOUR),
        ("1h30m", 1.5 * HOUR),
        ("1 h 30 min", 1.5 * HOUR),
        ("2D", 48 * HOUR),
        ("24:00:00", 24 * HOUR),
        ("100:00:00", 100 * HOUR),
        ("2-12:00:00", 60 * HOUR),
        ("2-12", 60 * HOUR),
        ("2-12:30", 60.5 * HOUR),
        ("30:00", 1800),
        ("00:00:01", 1),
    ],
)
def test_a_duration_is_parsed(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["90", "1.5", "1e3"])
def test_a_duration_without_a_unit_is_refused_with_a_hint_how_to_write_it(text: str) -> None:
    with pytest.raises(ValueError, match=rf"^{text} has no unit; write {text}h, {text}min or {text}s$"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["0", "0s", "00:00:00", "0-00:00:00", "0.0h", "-0"])
def test_a_duration_of_zero_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="more than zero"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["-5s", "-1", "-1:00:00"])
def test_a_negative_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="cannot be negative; write it like 90s"):
        parse_duration(text)


@pytest.mark.parametrize(
    "text",
    [
        "soonish",
        "",
        "nan",
        "inf",
        "h",
        "5 parsecs",
        "1m1h",
        "1h1h",
        "1:60:00",
        "1-24:00:00",
        "1:2:3:4",
        "5s!",
        "٣s",
    ],
)
def test_a_text_that_is_not_a_duration_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration; write it like 90s, 30min, 24h"):
        parse_duration(text)


def test_a_duration_beyond_ten_years_is_refused() -> None:
    with pytest.raises(ValueError, match="ten years"):
        parse_duration("9" * 400 + "s")


def test_minutes_and_seconds_are_distinguished_from_hours_minutes_and_seconds() -> None:
    assert is_minutes_and_seconds("30:00")
    assert not is_minutes_and_seconds("24:00:00")
    assert not is_minutes_and_seconds("1-00:00")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2GB", 2 * 10**9),
        ("512MB", 512 * 10**6),
        ("1.5 GiB", 3 * 2**29),
        ("300M", 300 * 10**6),
        ("1k", 1000),
        ("1KiB", 1024),
        ("5 TB", 5 * 10**12),
        ("100b", 100),
        ("100 bytes", 100),
    ],
)
def test_a_size_is_parsed(text: str, expected: int) -> None:
    assert parse_size(text) == expected


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("2", "2 has no unit; write 2MB or 2GB"),
        ("0", "more than zero"),
        ("0GB", "more than zero"),
        ("0.1b", "more than zero"),
        ("many", "is not a size; write it like 512MB"),
        ("-2GB", "is not a size"),
        ("2ib", "is not a size"),
        ("nan", "is not a size"),
        ("999999PB", "larger than any disk"),
    ],
)
def test_a_text_that_is_not_a_size_is_refused_with_a_hint_how_to_write_it(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        parse_size(text)


@given(st.text())
def test_any_text_gives_a_positive_number_or_a_message(text: str) -> None:
    for read in (parse_duration, parse_size):
        try:
            assert 0 < read(text) < math.inf
        except ValueError as error:
            assert str(error)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0 s"),
        (0.04, "<0.1 s"),
        (4.2, "4.2 s"),
        (4, "4 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min"),
        (307, "5 min 07 s"),
        (3599.7, "1 h"),
        (3780, "1 h 03 min"),
        (5400, "1 h 30 min"),
        (86399, "1 d"),
        (2.5 * 86400, "2 d 12 h"),
        (14 * 86400, "14 d"),
        (200.4 * 86400, "200 d"),
        (-90, "-1 min 30 s"),
        (math.nan, "unknown"),
        (math.inf, "unknown"),
    ],
)
def test_a_duration_is_shown_in_its_two_largest_units(seconds: float, shown: str) -> None:
    assert show_duration(seconds) == shown


@given(st.floats(min_value=1, max_value=50 * 86400))
def test_a_duration_that_was_shown_can_be_parsed_again(seconds: float) -> None:
    assert parse_duration(show_duration(seconds)) == pytest.approx(seconds, rel=0.05)


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1500, "1.5 kB"),
        (999_960, "1 MB"),
        (2 * 10**9, "2 GB"),
        (3 * 10**15, "3 PB"),
        (-5, "-5 B"),
    ],
)
def test_a_size_is_shown_with_one_decimal_at_most(number: int, shown: str) -> None:
    assert show_size(number) == shown


@pytest.mark.parametrize(
    ("seconds", "limit", "written"),
    [
        (45, "45 s", "45s"),
        (5400, "90 min", "90min"),
        (86400, "24 h", "24h"),
        (14 * 86400, "14 d", "14d"),
        (86400.5, "24 h", "24h"),
        (3661.5, "1 h", "1h"),
    ],
)
def test_a_limit_is_shown_in_one_unit_and_written_without_exceeding_it(
    seconds: float, limit: str, written: str
) -> None:
    assert show_limit(seconds) == limit
    assert write_duration(seconds) == written
    assert parse_duration(written) <= seconds


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.04, "0.04 s"),
        (12.34, "12.3 s"),
        (258, "4.3 min"),
        (90000, "25 h"),
        (2 * 86400, "2 d"),
        (3.04 * 86400, "3 d"),
    ],
)
def test_a_job_shows_durations_rounded_in_one_unit(seconds: float, shown: str) -> None:
    assert show_rounded_duration(seconds) == shown
