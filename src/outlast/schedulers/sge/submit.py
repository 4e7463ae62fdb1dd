"""What is sent to Grid Engine: job scripts whose `#$` lines carry all that qsub has to know.

Requests that may share an array job become one script; its task numbers are the indices of their tokens.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from outlast.schedulers.base import JobRequest
from outlast.schedulers.job_names import name_of
from outlast.schedulers.job_script import become_node_program, prepare, shebang
from outlast.schedulers.profile import Profile, fill

_CPUS = "smp {cpus}"
_GPUS = "gpus={gpus}"


@dataclass(frozen=True)
class SgeArray:
    """Requests of one batch with consecutive indices that ask for the same."""

    requests: tuple[JobRequest, ...]
    group: str

    @property
    def first(self) -> JobRequest:
        return self.requests[0]

    @property
    def tasks(self) -> str:
        return "%d-%d" % (self.first.index, self.requests[-1].index)

    def name(self, position: int = 1) -> str:
        """Jobs of a chain have names of their own, so that the rest of it can be removed by name."""
        name = name_of(self.requests, self.group)
        return name if position == 1 else "%s.%d" % (name, position)


def arrays(requests: Sequence[JobRequest], group: str) -> Iterator[SgeArray]:
    ordered = sorted(dict.fromkeys(requests), key=lambda one: (one.batch, _kind(one), one.index))
    for _, alike in groupby(ordered, key=lambda one: (one.batch, _kind(one))):
        # Grid Engine knows no lists of task numbers: a gap ends an array.
        for _, run in groupby(enumerate(alike), key=lambda pair: pair[1].index - pair[0]):
            yield SgeArray(tuple(request for _, request in run), group)


def _kind(request: JobRequest) -> tuple[object, ...]:
    asked = (request.cpus, request.gpus, request.memory, request.disk, request.time, request.grace)
    return (*asked, request.avoid, request.zipapp, request.jobs)


def script_of(array: SgeArray, profile: Profile, position: int = 1, after: str = "") -> str:
    """The job at this position of its chain, which waits for the end of job `after`."""
    directives = [*_directives(array, profile, position, after), *profile.directives]
    login = shebang(profile)
    lines = [login, *directives, "", *_choose_task(array.requests)]
    # Where scripts are started by a queue's own shell the first line counts for nothing.
    lines += ["type module >/dev/null 2>&1 || . /etc/profile"] if profile.modules else []
    lines += [
        *prepare(profile),
        'export OUTLAST_HOST="$HOSTNAME"',
        'export OUTLAST_JOB="$JOB_ID.$SGE_TASK_ID"',
    ]
    rest = [array.name(later) for later in range(position + 1, array.first.jobs + 1)]
    if rest:
        lines.append('export OUTLAST_CANCEL_REST="qdel %s -t $SGE_TASK_ID"' % " ".join(rest))
    return "\n".join([*lines, *become_node_program(profile, array.requests), ""])


def _directives(array: SgeArray, profile: Profile, position: int, after: str) -> Iterator[str]:
    request = array.first
    yield "#$ -N %s" % array.name(position)
    yield "#$ -S /bin/bash"
    # An array's tasks cannot have log files of unlike names by -o: the script opens its own.
    yield "#$ -j y"
    yield "#$ -o /dev/null"
    yield "#$ -t %s" % array.tasks
    # USR2 before it is killed, and it may be started again.
    yield "#$ -notify"
    yield "#$ -r y"
    yield "#$ -l h_rt=%d" % math.ceil(request.time)
    if profile.project:
        yield "#$ -P %s" % profile.project
    if profile.queue:
        yield "#$ -q %s" % profile.queue
    if request.cpus > 1:
        yield "#$ -pe %s" % fill(profile.cpus or _CPUS, request)
    if request.gpus:
        yield "#$ -l %s" % fill(profile.gpus or _GPUS, request)
    if profile.memory:
        yield "#$ -l %s" % fill(profile.memory, request)
    if request.avoid:
        yield "#$ -l hostname=!(%s)" % "|".join(request.avoid)
    if after:
        # Of two arrays of several tasks, each task waits for the one with its number only.
        yield "#$ -hold_jid%s %s" % ("_ad" if len(array.requests) > 1 else "", after)


def _choose_task(requests: Sequence[JobRequest]) -> list[str]:
    chosen = [
        "order=%s log=%s" % (shlex.quote(request.order), shlex.quote(request.log)) for request in requests
    ]
    if len(requests) == 1:
        lines = chosen
    else:
        cases = ["  %d) %s ;;" % (one.index, words) for one, words in zip(requests, chosen, strict=True)]
        lines = ['case "$SGE_TASK_ID" in', *cases, "esac"]
    return [*lines, 'exec >>"$log" 2>&1']
