"""The reports of an attempt's legs as one, within bounds: a job may be started very often."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from outlast.domain.accounts import ItemAccount
from outlast.domain.observation import Report, Saved

#: The legs of an attempt that are kept: of more than these, the oldest are added up.
MOST_LEGS = 40
#: The saves and the items of data that are kept of each leg but the last.
MOST_EARLIER_SAVES = 2
MOST_EARLIER_DATA = 3
#: The names and sources of the data of all legs that are kept, in characters.
LONGEST_DATA = 6000
#: The longest reason for a save, or for its failure, that is kept, in characters.
LONGEST_WHY = 300


def combine(newest_first: Sequence[Report]) -> Report:
    """Return the report of the last leg, with those before it."""
    last_logged = max(report.last_logged for report in newest_first)
    last, *earlier = _limit_data(newest_first)
    oldest_first = [_shorten(report) for report in reversed(earlier)]
    while len(oldest_first) >= MOST_LEGS:
        oldest_first[:2] = [_merge(*oldest_first[:2])]
    return replace(last, earlier=tuple(oldest_first), last_logged=last_logged)


def _merge(first: Report, second: Report) -> Report:
    """Return two legs, one after the other, as one: their seconds added up, the end of the second."""
    spans = dict(first.spans)
    for phase, seconds in second.spans:
        spans[phase] = spans.get(phase, 0.0) + seconds
    # What a leg computed after its last save is lost: the saves of the next one are counted from there.
    kept = first.saves[-1].offset if first.saves else 0.0
    saves = (*first.saves[-1:], *(replace(save, offset=save.offset + kept) for save in second.saves))
    return replace(
        second,
        spans=tuple(spans.items()),
        saves=saves[-MOST_EARLIER_SAVES:],
        saved=_add_totals(first.saved, second.saved),
        saving=first.saving + second.saving,
        loaded=first.loaded,
        resumed=first.resumed,
        changed=first.changed or second.changed,
        # Together they are measured only if both are.
        cpu=None if first.cpu is None or second.cpu is None else first.cpu + second.cpu,
        gpu=_mean_gpu(first, second),
        resident=max(first.resident or 0, second.resident or 0) or None,
        made=first.made or second.made,
        data=(first.data + second.data)[-MOST_EARLIER_DATA:],
    )


def _add_totals(first: Saved | None, second: Saved | None) -> Saved | None:
    if first is None or second is None:
        return first or second
    return Saved(
        first.times + second.times,
        first.seconds + second.seconds,
        max(first.slowest, second.slowest),
        second.why or first.why,
    )


def _mean_gpu(first: Report, second: Report) -> float | None:
    if first.gpu is None or second.gpu is None:
        return None
    weights = [sum(seconds for _, seconds in leg.spans) for leg in (first, second)]
    if not sum(weights):
        return second.gpu
    return (first.gpu * weights[0] + second.gpu * weights[1]) / sum(weights)


def _limit_data(reports: Sequence[Report]) -> Iterator[Report]:
    """Yield the reports with those of the last items of data that fit into `LONGEST_DATA`."""
    left = LONGEST_DATA
    for report in reports:
        kept: list[ItemAccount] = []
        for item in reversed(report.data):
            left -= len(item.name) + sum(map(len, item.sources))
            if left < 0:
                break
            kept.insert(0, item)
        yield replace(report, data=tuple(kept))


def _shorten(report: Report) -> Report:
    """Return the report of an earlier leg without what only matters in the last one."""
    return replace(
        report,
        saves=report.saves[-MOST_EARLIER_SAVES:],
        data=report.data[-MOST_EARLIER_DATA:],
        notes=report.notes[-1:],
        detail=report.detail[:LONGEST_WHY],
        tail=(),
        delivered=None,
        delivered_total=None,
    )
