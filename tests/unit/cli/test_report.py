"""`outlast report`: the bars match the shares."""

from __future__ import annotations

import click

from outlast.cli.commands.report import text
from outlast.domain.ledger import Booking, Use
from outlast.domain.model import Outcome


def test_a_share_that_is_rounded_to_zero_has_no_bar() -> None:
    uses = {Use.USEFUL: 98_999.0, Use.LOST_WORK: 1000.0, Use.WRAP_UP: 1.0}
    bookings = [Booking("r", 1, "n1", Outcome.FINISHED, 100_000.0, uses)]
    lines = click.unstyle(text(bookings)).splitlines()
    drawn = {line.split()[0]: line.count("█") + line.count("▏") for line in lines[1:]}
    shares = {line.split()[0]: line.split("%")[0].split()[-1] for line in lines[1:]}
    assert (drawn["useful"], drawn["lost"], drawn["wrap-up"]) == (40, 1, 0)
    assert (shares["lost"], shares["wrap-up"]) == ("1.0", "0.0")
