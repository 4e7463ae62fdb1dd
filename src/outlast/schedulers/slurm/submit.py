"""A batch of requests as Slurm gets it: which go into one array, the script, and the words of sbatch."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from outlast.job_environment import filter_environment
from outlast.node.time_limits import handover_reserve, stop_margin
from outlast.schedulers.base import JobRequest
from outlast.schedulers.job_names import name_of
from outlast.schedulers.job_script import become_node_program, choose_order, prepare, shebang
from outlast.schedulers.profile import Profile, fill

#: Tells a job that its limit is near; SIGTERM means that it was cancelled or preempted.
LIMIT_SIGNAL = "USR1"
#: Slurm counts --signal in seconds and keeps them in 16 bits.
_LONGEST_WARNING = 65535
_OF_THE_USER = frozenset(("HOME", "USER", "LOGNAME", "SHELL", "LANG", "TZ", "PATH"))


@dataclass(frozen=True)
class SlurmArray:
    """Requests that differ in nothing but their order and log; a chain stands alone."""

    requests: tuple[JobRequest, ...]
    name: str

    @property
    def first(self) -> JobRequest:
        return self.requests[0]


def arrays_of(requests: Sequence[JobRequest], group: str) -> list[SlurmArray]:
    alike: dict[object, list[JobRequest]] = {}
    for one in requests:
        asked = (one.cpus, one.gpus, one.memory, one.time, one.grace, one.avoid, one.zipapp, one.jobs)
        alone = one.index if one.jobs > 1 else 0
        members = alike.setdefault((one.batch, asked, alone), [])
        if one not in members:
            members.append(one)
    return [_array(tuple(members), group) for members in alike.values()]


def _array(members: tuple[JobRequest, ...], group: str) -> SlurmArray:
    name = name_of(members, group)
    # Slurm forgets the task's number of an array that is cancelled before any of it was started, and the rest
    # of a chain is cancelled by its name alone.
    return SlurmArray(members, "%s.%d" % (name, members[0].index) if len(members) == 1 else name)


def sbatch(array: SlurmArray, profile: Profile, environ: Mapping[str, str], after: str = "") -> list[str]:
    """The command line; `after` is the job whose end this one waits for.

    sbatch sends all of its environment along, which is the quickest way to start a job: without one, Slurm
    logs the user in on the node, seconds for each job. So sbatch itself gets no more than a job may have.
    """
    told = {name: value for name, value in filter_environment(environ).items() if _goes_along(name, profile)}
    for name in ("SLURM_CONF", *(() if profile.project else ("SBATCH_ACCOUNT",))):
        if name in environ:
            told[name] = environ[name]
    words = ["env", "-i", *("%s=%s" % pair for pair in sorted(told.items()))]
    words += ["sbatch", "--parsable", "--export=ALL", "--job-name=%s" % array.name]
    words += ["--array=%s" % ",".join(str(index) for index in sorted(one.index for one in array.requests))]
    # The script opens the log by itself: for an array, --output has no pattern that gives these paths.
    words += ["--chdir=%s" % Path(array.first.zipapp).parent, "--output=/dev/null"]
    if after:
        words += ["--dependency=afterany:%s" % after, "--kill-on-invalid-dep=yes"]
    return words


def _goes_along(name: str, profile: Profile) -> bool:
    if profile.prepares:
        # Libraries and Python come from the site's own settings, and the shell's would be in their way.
        return name in _OF_THE_USER or name.startswith("LC_")
    return name != "TMPDIR"  # the node has its own


def script(array: SlurmArray, profile: Profile) -> str:
    first, many = array.first, len(array.requests) > 1
    task = "$SLURM_ARRAY_TASK_ID"
    lines = [shebang(profile), *("#SBATCH " + option for option in _options(first, profile))]
    # After ours, so that a site's own word wins.
    lines += profile.directives
    lines += choose_order(array.requests, task)
    logs = [(one.index, shlex.quote(one.log)) for one in array.requests]
    lines += (
        ['case "%s" in' % task, *("  %d) log=%s ;;" % pair for pair in logs), "esac"]
        if many
        else ["log=%s" % logs[0][1]]
    )
    lines += ['mkdir -p "${log%/*}"', 'exec >>"$log" 2>&1']
    lines += ['export OUTLAST_HOST="$SLURMD_NODENAME"']
    lines += ['export OUTLAST_JOB="${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}"']
    if first.jobs > 1:
        lines += ['export OUTLAST_CANCEL_REST="scancel --quiet --state=PENDING --name=%s"' % array.name]
    lines += prepare(profile)
    lines += become_node_program(profile, array.requests)
    return "\n".join(lines) + "\n"


def _options(request: JobRequest, profile: Profile) -> list[str]:
    options = [
        "--time=%d" % max(1, math.ceil(request.time / 60.0)),
        "--signal=B:%s@%d" % (LIMIT_SIGNAL, _warning(request)),
        "--nodes=1",
        "--ntasks=1",
        "--cpus-per-task=%d" % request.cpus,
        "--mem=%dM" % math.ceil(request.memory / 2**20),
        # An administrator may put the job back into the queue; the node program goes on from there.
        "--requeue",
    ]
    if request.gpus:
        options.append("--gres=%s" % fill(profile.gpus or "gpu:{gpus}", request))
    if profile.project:
        options.append("--account=%s" % profile.project)
    if profile.queue:
        options.append("--partition=%s" % profile.queue)
    if request.avoid:
        options.append("--exclude=%s" % ",".join(request.avoid))
    return options


def _warning(request: JobRequest) -> int:
    """Seconds before the limit: time to save, and to deliver. Slurm is up to a minute early with it."""
    needed = stop_margin(request.time, request.grace) + handover_reserve(request.time)
    return max(1, min(_LONGEST_WARNING, math.ceil(needed)))
