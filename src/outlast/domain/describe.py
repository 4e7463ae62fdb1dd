"""Sentences for entries of the journal, as `up`, `run` and `explain` print them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outlast.domain.accounts import read_account
from outlast.domain.model import Attempt, EntryKind, JournalEntry
from outlast.text import printable


def of_entry(entry: JournalEntry, attempt: Attempt | None) -> str:
    """Return the sentence for an entry, safe to print; `attempt` is None if it is about the run."""
    return printable(_sentence(entry, attempt))


def _sentence(entry: JournalEntry, attempt: Attempt | None) -> str:
    data = entry.data
    reason = data.get("reason", "")
    number = "attempt %s" % (attempt.number if attempt else data.get("number", "?"))
    match entry.kind:
        case EntryKind.ADDED:
            return "submitted"
        case EntryKind.RETRIED:
            return "retry from scratch requested" if data.get("from_scratch") else "retry requested"
        case EntryKind.HELD_BACK:
            return "held back: %s" % reason
        case EntryKind.RESUMED:
            return "resumption requested"
        case EntryKind.CANCEL_ASKED:
            return "cancellation requested: %s" % reason
        case EntryKind.INTENDED:
            # The entry before shows how the last attempt ended. Older journals have only the whole reason.
            decided = data.get("decided") or reason
            avoid = data.get("avoid")
            return "%s: %s%s" % (number, decided, "; not on %s" % ", ".join(avoid) if avoid else "")
        case EntryKind.QUEUED:
            return "%s is queued as job %s" % (number, data["job"])
        case EntryKind.UNSURE:
            return "%s may or may not be in the queue: %s" % (number, reason)
        case EntryKind.STARTED:
            again = " again" if data.get("restarts") else ""
            return "%s runs%s on %s" % (number, again, data["host"] or "a host without a name")
        case EntryKind.REQUEUED:
            return "%s was requeued%s" % (number, ": " + reason if reason else "")
        case EntryKind.WAITS:
            return "%s %s" % (number, reason)
        case EntryKind.RELEASED:
            return "%s was held and is released: %s" % (number, reason)
        case EntryKind.MISSED:
            return "%s is missing: %s" % (number, reason)
        case EntryKind.SEEN:
            return "%s is listed again" % number
        case EntryKind.CANCEL_SENT:
            return "%s is being cancelled: %s" % (number, reason)
        case EntryKind.BLOCKED:
            if not reason:
                return "%s: its files can be read and written again" % number
            return "%s cannot be settled: %s" % (number, reason)
        case EntryKind.ENDED:
            return "%s ended as %s: %s%s" % (number, data["outcome"], data["detail"], _saved(data))
        case EntryKind.TWIN_FOUND:
            return "a duplicate is being cancelled: %s" % reason
        case EntryKind.TWIN_ENDED:
            return "the duplicate of %s is gone; it held its slot for %.0f s" % (number, data["slot"])
        case EntryKind.ACCEPTED:
            return "%s is the result%s" % (number, ": " + reason if data.get("by") == "user" else "")
        case EntryKind.FINISHED if data.get("empty"):
            return "FINISHED: the training wrote no files"
        case EntryKind.FINISHED:
            left = "; %s" % data["left"] if data.get("left") else ""
            return "FINISHED: results are in results/%s%s" % (entry.run, left)
        case EntryKind.FAILED:
            return "FAILED: %s" % reason
        case EntryKind.CANCELLED:
            return "CANCELLED: %s" % reason


def _saved(data: Mapping[str, Any]) -> str:
    step = data.get("step")
    resumed = read_account(data.get("account", {})).resumed
    text = "; resumed from step %d" % resumed if resumed is not None else ""
    return text + ("; step %d is saved" % step if step is not None else "")
