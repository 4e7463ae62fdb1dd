"""Names of jobs, LABEL.GROUP.BATCH, for schedulers that have no better key to find jobs by.

The label is for people, the group is the experiment, and the batch is the part of the token that jobs
submitted together share.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from outlast.schedulers.base import JobRequest

_LONGEST_LABEL = 40


def make_job_name(requests: Sequence[JobRequest], group: str) -> str:
    """Return the name of the job for these requests, which share one batch."""
    label = _common_prefix([request.name for request in requests])
    # Every scheduler accepts these characters; Grid Engine rejects a digit at the beginning.
    label = re.sub(r"[^A-Za-z0-9_-]+", "-", label).strip("-_") or "outlast"
    label = label if label[0].isalpha() else "o" + label
    return "%s.%s.%s" % (label[:_LONGEST_LABEL], group, requests[0].batch)


def _common_prefix(names: Sequence[str]) -> str:
    # If the first and the last name in sorted order share a prefix, all names do.
    first, last = min(names), max(names)
    same = (length for length in range(len(first), -1, -1) if last.startswith(first[:length]))
    return first[: next(same)]


def parse_batch(name: str, group: str) -> str | None:
    """Return the batch in a job's name; None if it is not a job of this experiment."""
    label, _, rest = name.partition(".")
    found, _, batch = rest.partition(".")
    return batch if label and found == group and batch else None
