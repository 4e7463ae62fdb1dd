"""Names of jobs where the scheduler has nothing better to find them by: LABEL.GROUP.BATCH.

The label is for people, the group is the experiment, and the batch is the part of the token that jobs sent
together have in common.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from outlast.schedulers.base import JobRequest

_LONGEST_LABEL = 40


def name_of(requests: Sequence[JobRequest], group: str) -> str:
    """The name of the job that carries these requests, which have one batch."""
    label = _in_common([request.name for request in requests])
    # No scheduler minds these characters, and Grid Engine minds a digit in the first place.
    label = re.sub(r"[^A-Za-z0-9_-]+", "-", label).strip("-_") or "outlast"
    label = label if label[0].isalpha() else "o" + label
    return "%s.%s.%s" % (label[:_LONGEST_LABEL], group, requests[0].batch)


def _in_common(names: Sequence[str]) -> str:
    """What they all begin with: it is so of the first and the last in their order."""
    first, last = min(names), max(names)
    same = (length for length in range(len(first), -1, -1) if last.startswith(first[:length]))
    return first[: next(same)]


def batch_in(name: str, group: str) -> str | None:
    """The batch that a job's name tells; None if it is no job of this experiment."""
    label, _, rest = name.partition(".")
    found, _, batch = rest.partition(".")
    return batch if label and found == group and batch else None
