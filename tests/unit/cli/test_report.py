"""`outlast report`: the bars match the shares, and a narrow terminal cuts nothing."""

from __future__ import annotations

import click
import pytest

from outlast.cli import common, save_table
from outlast.cli.commands import report
from outlast.cli.commands.report import text
from outlast.domain.ledger import MEANING, Booking, Use
from outlast.domain.model import Outcome
from outlast.domain.resource_use import ResourceUse
from outlast.domain.save_costs import SaveCosts

INTERVAL = "every 4.3 min: a save costs 0.4 s, and an interruption is expected every 13 h (none so far)"


def test_a_share_that_is_rounded_to_zero_has_no_bar() -> None:
    uses = {Use.USEFUL: 98_999.0, Use.LOST_WORK: 1000.0, Use.WRAP_UP: 1.0}
    bookings = [Booking("r", 1, "n1", Outcome.FINISHED, 100_000.0, uses)]
    lines = click.unstyle(text(bookings)).splitlines()
    drawn = {line.split()[0]: line.count("█") + line.count("▏") for line in lines[1:]}
    shares = {line.split()[0]: line.split("%")[0].split()[-1] for line in lines[1:]}
    assert (drawn["useful"], drawn["lost"], drawn["wrap-up"]) == (40, 1, 0)
    assert (shares["lost"], shares["wrap-up"]) == ("1.0", "0.0")


@pytest.fixture(params=[80, 100, 132])
def columns(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """A terminal with this many columns."""
    for module in (common, report):
        monkeypatch.setattr(module, "on_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", str(request.param))
    columns: int = request.param
    return columns


def run_on(name: str, uses: dict[Use, float]) -> Booking:
    costs = SaveCosts(saves=3, blocked=0.1, computed=90.0, why=INTERVAL)
    return Booking(name, 1, "n1", Outcome.FINISHED, sum(uses.values()), uses, saving=costs)


def test_resources_fit_a_narrow_terminal_and_unmeasured_ones_say_so(columns: int) -> None:
    bookings = [run_on("r", {Use.USEFUL: 3600.0})]
    use = ResourceUse(
        queue=90.0,
        cpu_allocated=7200.0,
        cpu_measured=5400.0,
        cpu_used=2700.0,
        gpu_allocated=3600.0,
        memory=10**9,
        memory_requested=4 * 10**9,
    )
    lines = click.unstyle(text(bookings, [use])).splitlines()
    assert max(map(len, lines)) <= columns and not any("…" in line for line in lines)
    shown = " ".join(" ".join(lines).split())
    assert "queue time 1 min 30 s" in shown
    assert "CPU-hours 2 0.75 50 %" in shown and "measured for 75 % of the time" in shown
    assert "GPU-hours 1 - - not measured" in shown
    assert "memory 4 GB 1 GB 25 %" in shown


def test_every_explanation_is_whole_on_a_narrow_terminal(columns: int) -> None:
    uses = dict.fromkeys(Use, 3600.0)
    lines = click.unstyle(text([run_on("r", uses)])).splitlines()
    assert max(map(len, lines)) <= columns and not any("…" in line for line in lines)
    begin = lines[0].index("MEANING")
    shown = " ".join(line[begin:].strip() for line in lines[1 : lines.index("")])
    assert [meaning for meaning in MEANING.values() if meaning not in shown] == []
    assert all(len(line) <= begin or line[begin - 1] == " " for line in lines[: lines.index("")])


@pytest.mark.parametrize("name", ["r", "digits-lr=0.001-batch=128-seed=1234"])
def test_the_save_interval_is_whole_on_a_narrow_terminal(columns: int, name: str) -> None:
    lines = click.unstyle(save_table.as_table({name: [run_on(name, {})]})).splitlines()
    assert max(map(len, lines)) <= columns
    assert INTERVAL in " ".join(" ".join(lines[1:]).split())


def test_columns_of_runs_that_do_not_fit_the_terminal_follow_below(columns: int) -> None:
    uses = dict.fromkeys(Use, 3600.0)
    lines = click.unstyle(text([run_on("digits-lr=0.1", uses), run_on("digits-lr=0.2", uses)])).splitlines()
    assert max(map(len, lines)) <= columns
    heads = " ".join(line for line in lines if line.startswith("RUN"))
    assert [use.value for use in Use if use.value.upper() not in heads] == []
    assert not any("…" in line for line in lines)
