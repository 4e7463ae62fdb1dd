"""The `limits:` section of params.yaml: when a run fails, and how much an attempt may request."""

from __future__ import annotations

from outlast.domain.model import Limits, Spec
from outlast.spec.document import Document
from outlast.spec.mistakes import Mistake
from outlast.spec.schema import LimitsKeys


def read_limits(keys: LimitsKeys) -> Limits:
    """Return the limits; those of `memory`, `disk` and `time` are None if they are not written."""
    return Limits(
        attempts=keys.attempts,
        without_progress=keys.without_progress,
        total=keys.total,
        start_over=keys.start_over == "yes",
        memory=keys.memory or None,
        disk=keys.disk or None,
        time=keys.time or None,
    )


_REQUESTS = ("memory", "disk", "time")


def limit_warnings(document: Document, keys: LimitsKeys, spec: Spec) -> list[Mistake]:
    """Return warnings about limits that have no effect."""
    odd = []
    for key in _REQUESTS:
        requested = spec.job_time if key == "time" else getattr(spec.resources, key)
        if key in keys.model_fields_set and 0 < getattr(keys, key) <= requested:
            odd.append((key, "is not more than the first attempt requests, so no attempt requests more", ""))
    if "time" in keys.model_fields_set and keys.start_over != "yes":
        hint = "write start_over: yes, or remove this"
        odd.append(("time", "has no effect: only a run that starts from the beginning gets more time", hint))
    return [document.mistake(("limits", key), text, hint) for key, text, hint in odd]
