"""Adapters to schedulers. `connect` returns the adapter for a cluster; `base` defines the interface.

`local` is the adapter to the local cluster. `slurm`, `sge` and `htcondor` are packages with the same modules:
`adapter`, `submit`, `listing`, `views` and `states`. They share `command_runner` (runs a scheduler's
programs), `job_script`, `job_names`, `profile` (the settings of a site) and `unreadable_output`. `discovery`
and `queue_limits` query a scheduler before anything is submitted.
"""

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
    """Return the adapter to the scheduler that the runs of `spec` are submitted to.

    `group` tells this experiment's jobs from others. `place` is the directory of its zipapps: a scheduler may
    write its own log there, which a restarted controller reads. Raises BadInput for an unknown scheduler.
    """
    from outlast.schedulers.profile import Profile

    profile = Profile.from_dict({**spec.profile, "name": spec.cluster})
    scheduler = _create_adapter(spec, group, profile, place)
    scheduler.most_jobs = profile.most_jobs
    scheduler.submit_rate = profile.submit_rate
    if profile.interval is not None:
        scheduler.interval = profile.interval
    if profile.lag is not None:
        scheduler.patience = replace(scheduler.patience, files=profile.lag)
    return scheduler


def _create_adapter(spec: Spec, group: str, profile: Profile, place: Path | None) -> Scheduler:
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
    raise BadInput("cluster %s: this version of Outlast does not support scheduler %s" % (spec.cluster, kind))
