"""Adapters to schedulers. `base` says what an adapter is; each other module is one, or a part of one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from outlast.errors import BadInput

if TYPE_CHECKING:
    from outlast.domain.model import Spec
    from outlast.schedulers.base import Scheduler
    from outlast.schedulers.profile import Profile


def connect(spec: Spec, group: str, place: Path | None = None) -> Scheduler:
    """The scheduler that the runs of `spec` go to; `group` tells this experiment's jobs from others.

    `place` is the directory of the zipapps that it was, and will be, given. What a scheduler itself writes
    about an experiment's jobs is there, and a controller that begins anew reads it.
    """
    from outlast.schedulers.profile import Profile

    profile = Profile.of({**spec.profile, "name": spec.cluster})
    scheduler = _adapter(spec, group, profile, place)
    scheduler.most_jobs = profile.most_jobs
    scheduler.submit_rate = profile.submit_rate
    if profile.interval is not None:
        scheduler.interval = profile.interval
    if profile.lag is not None:
        scheduler.patience = replace(scheduler.patience, files=profile.lag)
    return scheduler


def _adapter(spec: Spec, group: str, profile: Profile, place: Path | None) -> Scheduler:
    kind = spec.profile.get("scheduler", spec.cluster)
    if kind == "local":
        from outlast.schedulers.local import Host, LocalScheduler

        hosts = {name: Host(**facts) for name, facts in spec.profile.get("hosts", {}).items()}
        return LocalScheduler(group, name=spec.cluster, hosts=hosts or None)
    if kind == "slurm":
        from outlast.schedulers.slurm.adapter import SlurmScheduler

        return SlurmScheduler(group, profile)
    if kind == "sge":
        from outlast.schedulers.sge.adapter import SgeScheduler

        return SgeScheduler(group, profile)
    if kind == "htcondor":
        from outlast.schedulers.htcondor.adapter import HTCondorScheduler

        return HTCondorScheduler(group, profile, place)
    raise BadInput("cluster %s: this version of Outlast cannot talk to %s" % (spec.cluster, kind))
