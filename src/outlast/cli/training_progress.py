"""The progress of a running attempt in one line: of the training, or of the data that it waits for."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from outlast.domain import untrusted
from outlast.domain.model import Attempt
from outlast.exchange import attempt_log
from outlast.exchange.experiment import Experiment
from outlast.text import printable
from outlast.units import LONGEST, show_size


def show_progress(experiment: Experiment, attempt: Attempt) -> str:
    """Return the progress that the training reports, such as `step 12 of 30 (40 %) loss=0.21`.

    Before the first report, the progress of its data; empty if nothing is known.
    """
    exchange = experiment.exchange_of(attempt)
    progress = attempt_log.progress_of(exchange)
    if progress is None:
        fetching = attempt_log.fetching_of(exchange)
        return printable(_show_fetching(fetching)) if fetching else ""
    step, total, metrics = progress.get("step"), progress.get("total"), progress.get("metrics")
    text = "step %s" % untrusted.shown(step)
    if isinstance(step, (int, float)) and isinstance(total, (int, float)) and 0 < total < 1e18:
        share = " (%d %%)" % (100 * step // total) if 0 <= step <= 100 * total else ""
        text += " of %s%s" % (untrusted.shown(total), share)
    if isinstance(metrics, dict):
        for name, value in list(metrics.items())[:4]:
            shown = "%.4g" % value if isinstance(value, float) else untrusted.shown(value)
            text += " %s=%s" % (untrusted.shown(name), shown)
    return printable(text)


def _show_fetching(record: Mapping[str, Any]) -> str:
    """Return `fetching train.tar: 45 % of 150 GB, 57 MB/s from cache.example.org`."""
    if record.get("waits_for"):
        return "waiting for %s, which %s is fetching" % (
            untrusted.shown(record.get("name")),
            untrusted.shown(record["waits_for"]),
        )
    text = "fetching %s: " % untrusted.shown(record.get("name"))
    done, total, rate = (untrusted.integer(record.get(key)) for key in ("done", "total", "rate"))
    if done is not None and total:
        text += "%d %% of %s" % (100 * done // total, show_size(total))
    elif done is not None:
        text += show_size(done)
    if record.get("trouble"):
        from outlast.cli.data_progress import describe_next_steps

        steps = describe_next_steps(
            _seconds_until(record.get("next_try_at")), _seconds_until(record.get("gives_up_at"))
        )
        return "; ".join(filter(None, (text, untrusted.shown(record["trouble"]), steps)))
    speed = ", %s/s" % show_size(rate) if rate else ""
    return text + speed + (" from %s" % untrusted.shown(record["source"]) if record.get("source") else "")


def _seconds_until(at: object) -> float | None:
    """Return the seconds until a time; None if it is over or not a time."""
    left = at - time.time() if isinstance(at, float) else 0.0
    return left if 0 < left < LONGEST else None
