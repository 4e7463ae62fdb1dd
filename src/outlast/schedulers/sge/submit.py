"""What is sent to Grid Engine: job scripts whose `#$` lines contain all options of qsub.

Requests that may share an array job become one script; its task numbers are the indices of their tokens.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from outlast.schedulers.base import JobRequest
from outlast.schedulers.job_names import make_job_name
from outlast.schedulers.job_script import exec_node_program, setup_lines, shebang
from outlast.schedulers.profile import Profile, fill_template

_DEFAULT_CPUS = "smp {cpus}"
_DEFAULT_GPUS = "gpus={gpus}"


@dataclass(frozen=True)
class SgeArray:
    """Requests of one batch with consecutive indices and the same resources."""

    requests: tuple[JobRequest, ...]
    group: str

    @property
    def first(self) -> JobRequest:
        """The first request, for what all have in common."""
        return self.requests[0]

    @property
    def tasks(self) -> str:
        """The range of task numbers, for `-t`."""
        return "%d-%d" % (self.first.index, self.requests[-1].index)

    def name(self, position: int = 1) -> str:
        """Return the job's name. Each job of a chain has its own, so that the rest can be deleted by name."""
        name = make_job_name(self.requests, self.group)
        return name if position == 1 else "%s.%d" % (name, position)


def group_into_arrays(requests: Sequence[JobRequest], group: str) -> Iterator[SgeArray]:
    """Yield the array jobs for these requests. A request that occurs twice is sent once."""
    ordered = sorted(dict.fromkeys(requests), key=lambda one: (one.batch, _needs(one), one.index))
    for _, alike in groupby(ordered, key=lambda one: (one.batch, _needs(one))):
        # Grid Engine has ranges of task numbers, not lists: a gap ends an array.
        for _, run in groupby(enumerate(alike), key=lambda pair: pair[1].index - pair[0]):
            yield SgeArray(tuple(request for _, request in run), group)


def _needs(request: JobRequest) -> tuple[object, ...]:
    resources = (request.cpus, request.gpus, request.memory, request.disk, request.time, request.grace)
    return (*resources, request.avoid, request.zipapp, request.jobs)


def job_script(array: SgeArray, profile: Profile, position: int = 1, after: str = "") -> str:
    """Return the script of the job at this position of its chain, which waits for the end of job `after`."""
    directives = [*_directives(array, profile, position, after), *profile.directives]
    lines = [shebang(profile), *directives, "", *_select_task(array.requests)]
    # If a queue starts scripts with its own shell, the first line has no effect.
    lines += ["type module >/dev/null 2>&1 || . /etc/profile"] if profile.modules else []
    lines += [
        *setup_lines(profile),
        'export OUTLAST_HOST="$HOSTNAME"',
        'export OUTLAST_JOB="$JOB_ID.$SGE_TASK_ID"',
    ]
    rest = [array.name(later) for later in range(position + 1, array.first.jobs + 1)]
    if rest:
        lines.append('export OUTLAST_CANCEL_REST="qdel %s -t $SGE_TASK_ID"' % " ".join(rest))
    return "\n".join([*lines, *exec_node_program(profile, array.requests), ""])


def _directives(array: SgeArray, profile: Profile, position: int, after: str) -> Iterator[str]:
    request = array.first
    yield "#$ -N %s" % array.name(position)
    yield "#$ -S /bin/bash"
    # -o has no pattern for the paths of an array's logs: the script opens its own.
    yield "#$ -j y"
    yield "#$ -o /dev/null"
    yield "#$ -t %s" % array.tasks
    # SIGUSR2 before it is killed; it may be rescheduled.
    yield "#$ -notify"
    yield "#$ -r y"
    yield "#$ -l h_rt=%d" % math.ceil(request.time)
    if profile.project:
        yield "#$ -P %s" % profile.project
    if profile.queue:
        yield "#$ -q %s" % profile.queue
    if request.cpus > 1:
        yield "#$ -pe %s" % fill_template(profile.cpus or _DEFAULT_CPUS, request)
    if request.gpus:
        yield "#$ -l %s" % fill_template(profile.gpus or _DEFAULT_GPUS, request)
    if profile.memory:
        yield "#$ -l %s" % fill_template(profile.memory, request)
    if request.avoid:
        yield "#$ -l hostname=!(%s)" % "|".join(request.avoid)
    if after:
        # Between two arrays of several tasks, each task waits only for the task with its own number.
        yield "#$ -hold_jid%s %s" % ("_ad" if len(array.requests) > 1 else "", after)


def _select_task(requests: Sequence[JobRequest]) -> list[str]:
    """Return lines that set `order` and `log` for the task, and open the log."""
    settings = [
        "order=%s log=%s" % (shlex.quote(request.order), shlex.quote(request.log)) for request in requests
    ]
    if len(requests) == 1:
        lines = settings
    else:
        cases = ["  %d) %s ;;" % (one.index, line) for one, line in zip(requests, settings, strict=True)]
        lines = ['case "$SGE_TASK_ID" in', *cases, "esac"]
    return [*lines, 'exec >>"$log" 2>&1']
