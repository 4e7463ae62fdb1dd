"""The settings of a site from its cluster profile, as adapters need them; `outlast.spec` reads the YAML.

How resources are asked for differs from site to site, so the words for them are templates. `{cpus}`,
`{gpus}`, `{memory_mb}`, `{memory_gb}`, `{memory_mb_per_cpu}`, `{memory_gb_per_cpu}` and `{disk_gb}` are put
in, rounded up; a template that is empty asks for nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from outlast.node.staging.plan import DataSite
from outlast.schedulers.base import JobRequest


@dataclass(frozen=True)
class Profile(DataSite):
    """All of it may be left out. Seconds and bytes."""

    #: The name it has in `clusters.yaml`.
    name: str = ""
    #: The account that pays: Slurm `--account`, Grid Engine `-P`, HTCondor `+ProjectName`.
    project: str = ""
    #: Slurm partition, Grid Engine queue.
    queue: str = ""
    #: Templates: what comes after Slurm's `--gres=`, Grid Engine's `-l`; for HTCondor, `require_gpus`.
    gpus: str = ""
    #: Grid Engine: what comes after `-pe` and `-l` for cpus and memory.
    cpus: str = ""
    memory: str = ""
    modules: tuple[str, ...] = ()
    #: Lines of shell that are run before the node program starts.
    before: tuple[str, ...] = ()
    #: A virtual or conda environment's directory, or a conda environment's name.
    environment: str = ""
    #: An image for Apptainer or Singularity (file, directory or URL).
    container: str = ""
    #: A directory on the node for what the job needs only while it runs; variables are expanded there.
    scratch: str = ""
    #: The Python that runs the node program.
    python: str = "python3"
    longest: float | None = None
    largest_transfer: int | None = None
    submit_rate: int | None = None
    most_jobs: int | None = None
    #: Native lines that are put into the submission as they are, such as `#SBATCH --qos=gold`.
    directives: tuple[str, ...] = ()
    #: HTCondor: how checkpoints leave a running job: "auto", "chirp", "restart" or "never".
    commit: str = "auto"
    #: Seconds between two commits, at the least.
    commit_every: float = 1800.0
    #: Seconds between two looks at the queue, at the longest; None: what suits the scheduler.
    interval: float | None = None
    #: Seconds by which files that jobs write may reach the login node late; None: what suits the scheduler.
    lag: float | None = None

    @property
    def prepares(self) -> bool:
        """Jobs get their environment from the site, not from the shell that submitted them."""
        return bool(self.modules or self.before or self.environment or self.container)

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> Profile:
        """From the JSON that the journal keeps; what this version does not know is passed over."""
        known = {field.name for field in fields(cls)}
        listed: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in raw.items()
        }
        return cls(**{key: value for key, value in listed.items() if key in known})


def fill(template: str, request: JobRequest) -> str:
    """The words for this request's resources."""
    per_cpu = request.memory / request.cpus
    return template.format(
        cpus=request.cpus,
        gpus=request.gpus,
        memory_mb=math.ceil(request.memory / 1e6),
        memory_gb=math.ceil(request.memory / 1e9),
        memory_mb_per_cpu=math.ceil(per_cpu / 1e6),
        memory_gb_per_cpu=math.ceil(per_cpu / 1e9),
        disk_gb=math.ceil(request.disk / 1e9),
    )
