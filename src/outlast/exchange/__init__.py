"""Files between controller and jobs: through a shared file system, or along with each job.

`base` defines the interface, `shared_files` and `sandbox_exchange` implement it, `attempt_log` reads what a
job logged, `sandbox_results` moves what a job brought back, `experiment` knows the directory's layout.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from outlast.domain.model import Spec
    from outlast.exchange.experiment import Experiment
    from outlast.exchange.shared_files import SharedFilesExchange
    from outlast.schedulers.base import Scheduler


def exchange_for(
    experiment: Experiment, zipapp: Path, spec: Spec, scheduler: Scheduler
) -> SharedFilesExchange:
    """Return the exchange that this scheduler's jobs need."""
    from outlast.exchange.sandbox_exchange import SandboxExchange
    from outlast.exchange.shared_files import SharedFilesExchange
    from outlast.schedulers.profile import Profile

    site = Profile.from_dict(spec.profile)
    if not scheduler.shares_files:
        return SandboxExchange(experiment, zipapp, site, scheduler.limit_signal)
    return SharedFilesExchange(
        experiment, zipapp, site, scheduler.limit_signal, notifies=not scheduler.wakes_on_change
    )
