"""The `checkpoints:` section of params.yaml: how often to save, and how many checkpoints to keep."""

from __future__ import annotations

from outlast import units
from outlast.domain.model import Checkpoints, Spec
from outlast.node.time_limits import stop_margin
from outlast.spec import command as commands
from outlast.spec.document import Document
from outlast.spec.mistakes import Mistake
from outlast.spec.schema import CheckpointsKeys


def read_checkpoints(document: Document, keys: CheckpointsKeys) -> tuple[Checkpoints, list[Mistake]]:
    """Return the settings and the mistakes. A default bound is moved to fit the one that was written."""
    given, values = keys.model_fields_set, keys.model_dump()
    mistakes = []
    if {"shortest", "longest"} <= given and keys.shortest > keys.longest:
        at, longest = ("checkpoints", "shortest"), units.show_duration(keys.longest)
        text = f"{units.show_duration(keys.shortest)} is more than longest, {longest}"
        mistakes.append(document.mistake(at, text))
    elif "longest" in given:
        values["shortest"] = min(keys.shortest, keys.longest)
    else:
        values["longest"] = max(keys.shortest, keys.longest)
    try:
        commands.split(keys.resume)
    except ValueError:
        mistakes.append(document.mistake(("checkpoints", "resume"), "a quote is opened and not closed"))
    return Checkpoints(**{**values, "every": keys.every or None}), mistakes


def checkpoint_warnings(document: Document, keys: CheckpointsKeys, spec: Spec) -> list[Mistake]:
    """Return warnings about settings that are allowed but probably not meant."""
    given, time = keys.model_fields_set, spec.job_time
    odd = []
    allowed = stop_margin(time, keys.grace)
    if "grace" in given and keys.grace > allowed:
        used = units.show_duration(allowed)
        odd.append(("grace", f"is more than a quarter of the attempt's time and is cut to {used}", ""))
    if keys.every:
        unused = f"has no effect with every: {units.write_duration(keys.every)}"
        for key in sorted(given & {"shortest", "longest"}):
            odd.append((key, unused, "write every: auto, or remove this"))
    for key, value in (("every", keys.every), ("shortest", keys.shortest)):
        if key in given and value >= time:
            text = f"is not shorter than the attempt's time, {units.show_duration(time)}"
            odd.append((key, text, "the only save will be the one before the deadline"))
    return [document.mistake(("checkpoints", key), text, hint) for key, text, hint in odd]
