"""The settings of a site from its cluster profile, as adapters need them; `outlast.spec` reads the YAML.

Sites have different options for the same resources, so these options are templates. `{cpus}`, `{gpus}`,
`{memory_mb}`, `{memory_gb}`, `{memory_mb_per_cpu}`, `{memory_gb_per_cpu}` and `{disk_gb}` are replaced by
numbers, rounded up; an empty template requests nothing.
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
    """The settings of a site; all are optional. Durations in seconds, sizes in bytes."""

    #: Its name in `clusters.yaml`.
    name: str = ""
    #: The account that is charged: Slurm `--account`, Grid Engine `-P`, HTCondor `+ProjectName`.
    project: str = ""
    #: Slurm partition, Grid Engine queue.
    queue: str = ""
    #: Template: the value of Slurm's `--gres=`, Grid Engine's `-l`, or HTCondor's `require_gpus`.
    gpus: str = ""
    #: Templates for Grid Engine: the values of `-pe` (cpus) and `-l` (memory).
    cpus: str = ""
    memory: str = ""
    modules: tuple[str, ...] = ()
    #: Shell lines to run before the node program.
    before: tuple[str, ...] = ()
    #: A virtual or conda environment's directory, or a conda environment's name.
    environment: str = ""
    #: An image for Apptainer or Singularity (file, directory or URL).
    container: str = ""
    #: A directory on the node for temporary files of the job; variables are expanded on the node.
    scratch: str = ""
    #: The Python that runs the node program.
    python: str = "python3"
    longest: float | None = None
    largest_transfer: int | None = None
    submit_rate: int | None = None
    most_jobs: int | None = None
    #: Native lines to add to the submission unchanged, such as `#SBATCH --qos=gold`.
    directives: tuple[str, ...] = ()
    #: HTCondor: how checkpoints leave a running job: "auto", "chirp", "restart" or "never".
    commit: str = "auto"
    #: Seconds between two commits, at least.
    commit_every: float = 1800.0
    #: Seconds between two polls, at most; None: the adapter's default.
    interval: float | None = None
    #: Seconds until files that jobs write are visible on the login node; None: the adapter's default.
    lag: float | None = None

    @property
    def sets_environment(self) -> bool:
        """True if jobs get their environment from the site, not from the shell that submitted them."""
        return bool(self.modules or self.before or self.environment or self.container)

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Profile:
        """Read the JSON form in the journal. Keys that this version does not know are ignored."""
        known = {field.name for field in fields(cls)}
        listed: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in raw.items()
        }
        return cls(**{key: value for key, value in listed.items() if key in known})


def fill_template(template: str, request: JobRequest) -> str:
    """Return the option for this request's resources."""
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
