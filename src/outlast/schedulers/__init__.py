"""Adapters to schedulers. `base` says what an adapter is; each other module is one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outlast.errors import BadInput

if TYPE_CHECKING:
    from outlast.model import Spec
    from outlast.schedulers.base import Scheduler


def connect(spec: Spec, group: str) -> Scheduler:
    """The scheduler that the runs of `spec` go to; `group` tells this experiment's jobs from others."""
    kind = spec.profile.get("scheduler", spec.cluster)
    if kind == "local":
        from outlast.schedulers.local import Host, LocalScheduler

        hosts = {name: Host(**facts) for name, facts in spec.profile.get("hosts", {}).items()}
        return LocalScheduler(group, name=spec.cluster, hosts=hosts or None)
    raise BadInput("cluster %s: this version of Outlast cannot talk to %s" % (spec.cluster, kind))
