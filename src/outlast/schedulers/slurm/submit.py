"""What is sent to Slurm: array jobs, their batch scripts and the sbatch commands."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from outlast.job_environment import filter_environment
from outlast.node.time_limits import handover_reserve, stop_margin
from outlast.schedulers.base import JobRequest
from outlast.schedulers.job_names import make_job_name
from outlast.schedulers.job_script import exec_node_program, select_order, setup_lines, shebang
from outlast.schedulers.profile import Profile, fill_template

#: Warns a job of its limit; SIGTERM means that it was cancelled or preempted.
LIMIT_SIGNAL = "USR1"
#: Slurm counts --signal in seconds and stores them in 16 bits.
_LONGEST_WARNING = 65535
_USER_VARIABLES = frozenset(("HOME", "USER", "LOGNAME", "SHELL", "LANG", "TZ", "PATH"))


@dataclass(frozen=True)
class SlurmArray:
    """Requests that differ in nothing but their order and log; a chain has an array of its own."""

    requests: tuple[JobRequest, ...]
    name: str

    @property
    def first(self) -> JobRequest:
        """The first request, for what all have in common."""
        return self.requests[0]


def group_into_arrays(requests: Sequence[JobRequest], group: str) -> list[SlurmArray]:
    """Return the array jobs for these requests. A request that occurs twice is sent once."""
    alike: dict[object, list[JobRequest]] = {}
    for one in requests:
        needs = (one.cpus, one.gpus, one.memory, one.time, one.grace, one.avoid, one.zipapp, one.jobs)
        chain = one.index if one.jobs > 1 else 0
        members = alike.setdefault((one.batch, needs, chain), [])
        if one not in members:
            members.append(one)
    return [make_array(members, group) for members in alike.values()]


def make_array(members: Sequence[JobRequest], group: str) -> SlurmArray:
    """Return the array of requests that differ in nothing but their order and log."""
    name = make_job_name(members, group)
    # Slurm forgets the task number of an array that is cancelled before any task started, and the rest of a
    # chain is cancelled by its name alone.
    return SlurmArray(tuple(members), "%s.%d" % (name, members[0].index) if len(members) == 1 else name)


def sbatch_command(
    array: SlurmArray, profile: Profile, environ: Mapping[str, str], after: str = ""
) -> list[str]:
    """Return the command line; `after` is the job whose end this one waits for.

    sbatch sends its whole environment to the job, which is the fastest way to start one: without an
    environment, Slurm logs the user in on the node, which takes seconds. So sbatch itself gets no more than a
    job may have.
    """
    exported = {
        name: value for name, value in filter_environment(environ).items() if _is_exported(name, profile)
    }
    for name in ("SLURM_CONF", *(() if profile.project else ("SBATCH_ACCOUNT",))):
        if name in environ:
            exported[name] = environ[name]
    command = ["env", "-i", *("%s=%s" % pair for pair in sorted(exported.items()))]
    command += ["sbatch", "--parsable", "--export=ALL", "--job-name=%s" % array.name]
    command += ["--array=%s" % ",".join(str(index) for index in sorted(one.index for one in array.requests))]
    # The script opens the log itself: --output has no pattern for the paths of an array's logs.
    command += ["--chdir=%s" % Path(array.first.zipapp).parent, "--output=/dev/null"]
    if after:
        command += ["--dependency=afterany:%s" % after, "--kill-on-invalid-dep=yes"]
    return command


def _is_exported(name: str, profile: Profile) -> bool:
    if profile.sets_environment:
        # Libraries and Python come from the site's settings; the shell's own would conflict with them.
        return name in _USER_VARIABLES or name.startswith("LC_")
    return name != "TMPDIR"  # the node has its own


def batch_script(array: SlurmArray, profile: Profile) -> str:
    """Return the script that sbatch reads from stdin."""
    first, is_array = array.first, len(array.requests) > 1
    task = "$SLURM_ARRAY_TASK_ID"
    lines = [shebang(profile), *("#SBATCH " + option for option in _sbatch_options(first, profile))]
    # Below ours: the last option wins.
    lines += profile.directives
    lines += select_order(array.requests, task)
    logs = [(one.index, shlex.quote(one.log)) for one in array.requests]
    lines += (
        ['case "%s" in' % task, *("  %d) log=%s ;;" % pair for pair in logs), "esac"]
        if is_array
        else ["log=%s" % logs[0][1]]
    )
    lines += ['mkdir -p "${log%/*}"', 'exec >>"$log" 2>&1']
    lines += ['export OUTLAST_HOST="$SLURMD_NODENAME"']
    lines += ['export OUTLAST_JOB="${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}"']
    if first.jobs > 1:
        lines += ['export OUTLAST_CANCEL_REST="scancel --quiet --state=PENDING --name=%s"' % array.name]
    lines += setup_lines(profile)
    lines += exec_node_program(profile, array.requests)
    return "\n".join(lines) + "\n"


def _sbatch_options(request: JobRequest, profile: Profile) -> list[str]:
    options = [
        "--time=%d" % max(1, math.ceil(request.time / 60.0)),
        "--signal=B:%s@%d" % (LIMIT_SIGNAL, _warning_seconds(request)),
        "--nodes=1",
        "--ntasks=1",
        "--cpus-per-task=%d" % request.cpus,
        "--mem=%dM" % math.ceil(request.memory / 2**20),
        # An administrator may requeue the job; the node program then resumes.
        "--requeue",
    ]
    if request.gpus:
        options.append("--gres=%s" % fill_template(profile.gpus or "gpu:{gpus}", request))
    if profile.project:
        options.append("--account=%s" % profile.project)
    if profile.queue:
        options.append("--partition=%s" % profile.queue)
    if request.avoid:
        options.append("--exclude=%s" % ",".join(request.avoid))
    return options


def _warning_seconds(request: JobRequest) -> int:
    """Return how long before the limit to warn: time to save and to deliver. Slurm may be a minute early."""
    needed = stop_margin(request.time, request.grace) + handover_reserve(request.time)
    return max(1, min(_LONGEST_WARNING, math.ceil(needed)))
