"""The resources that attempts were allocated and used, as `report` and `explain` show them."""

from __future__ import annotations

from outlast.cli.common import table
from outlast.domain.resource_use import HOUR, ResourceUse
from outlast.units import show_size

#: A measurement that covers less than this share of the time is called a part.
_WHOLE = 0.95


def as_table(use: ResourceUse) -> str:
    """Return CPU-hours, GPU-hours and memory: allocated, used, and the share of both."""
    rows = [
        (
            "CPU-hours",
            _show_hours(use.cpu_allocated),
            _show_hours(use.cpu_used) if use.cpu_measured else "-",
            _show_share(use.cpu_efficiency),
            _show_part("CPU time of the training's processes", use.cpu_measured, use.cpu_allocated),
        )
    ]
    if use.gpu_allocated:
        rows.append(
            (
                "GPU-hours",
                _show_hours(use.gpu_allocated),
                _show_hours(use.gpu_used) if use.gpu_measured else "-",
                _show_share(use.gpu_efficiency),
                _show_part("GPUs busy, according to nvidia-smi", use.gpu_measured, use.gpu_allocated),
            )
        )
    if use.memory:
        rows.append(
            (
                "memory",
                show_size(use.memory_requested),
                show_size(use.memory),
                _show_share(use.memory_efficiency),
                "of the attempt that used the most of what it requested",
            )
        )
    head = ("RESOURCE", "ALLOCATED", "USED", "SHARE", "MEANING")
    return table(head, rows, right=(1, 2, 3), most_lines=9)


def show_attempt(use: ResourceUse) -> str:
    """Return one line about one attempt; empty if nothing was measured."""
    parts = []
    if use.cpu_efficiency is not None:
        parts.append("%s of its CPU time" % _show_share(use.cpu_efficiency))
    if use.gpu_efficiency is not None:
        parts.append("%s of its GPU time" % _show_share(use.gpu_efficiency))
    if use.memory:
        parts.append("%s of %s of memory" % (show_size(use.memory), show_size(use.memory_requested)))
    return ", ".join(parts)


def _show_hours(seconds: float) -> str:
    hours = seconds / HOUR
    if 0 < hours < 0.001:
        return "<0.001"
    return "%.0f" % hours if hours >= 100 else "%.3g" % hours


def _show_share(share: float | None) -> str:
    return "-" if share is None else "%.0f %%" % (100 * share)


def _show_part(meaning: str, measured: float, allocated: float) -> str:
    if not measured:
        return "not measured"
    if measured >= _WHOLE * allocated:
        return meaning
    return "%s; measured for %.0f %% of the time" % (meaning, 100 * measured / allocated)
