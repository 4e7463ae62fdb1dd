"""`outlast data`: fetch, check and pin data outside of jobs."""

from __future__ import annotations

import click

from outlast.cli.lazy_group import LazyGroup

_COMMANDS = {
    "fetch": ("data_fetch", "Fetch a file or archive, verify it, and unpack it if requested."),
    "check": ("data_check", "Check every source of an experiment's data. Fetches nothing."),
    "pin": ("data_pin", "Write digests and sizes into params.yaml."),
    "cache": ("data_cache", "List the entries of a data cache, or remove some."),
}


class _DataGroup(LazyGroup):
    table = _COMMANDS


@click.group(cls=_DataGroup)
def command() -> None:
    """Fetch, check and pin data; list and clear data caches.

    Uses the same code as the jobs: what works here works there, if the network of the nodes allows it.
    """
