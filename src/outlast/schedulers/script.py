"""The shell script of a batch job, below its directives: prepare as the profile says, then become the node
program.

It ends in `exec`, so that the signals which the scheduler sends to the script reach the node program.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from outlast.node.words import EXIT_NOT_PREPARED
from outlast.schedulers.base import JobRequest
from outlast.schedulers.profile import Profile


def shebang(profile: Profile) -> str:
    """A login shell only where something needs one: `module` is a function that its start-up files define."""
    prepared = profile.modules or profile.before or profile.environment
    return "#!/bin/bash -l" if prepared else "#!/bin/bash"


def choose_order(requests: Sequence[JobRequest], index: str) -> list[str]:
    """Lines that set `order` to the task's work order; `index` is the shell's word for the task's number."""
    if len(requests) == 1:
        return ["order=%s" % shlex.quote(requests[0].order)]
    cases = ["  %d) order=%s ;;" % (request.index, shlex.quote(request.order)) for request in requests]
    return ['case "%s" in' % index, *cases, "esac"]


def prepare(profile: Profile) -> list[str]:
    """What the site needs first. If that fails nothing is trained: it would be with the wrong tools."""
    modules = map(shlex.quote, profile.modules)
    lines = ["module load %s || unfit module load %s" % (one, one) for one in modules]
    if profile.before:
        lines += ["trap 'unfit \"$BASH_COMMAND\"' ERR", *profile.before, "trap - ERR"]
    if profile.environment:
        lines += _activate(profile.environment)
    if not lines:
        return []
    return [
        'unfit() { echo "outlast: this failed before the training: $*" >&2; trap - EXIT; exit %d; }'
        % EXIT_NOT_PREPARED,
        "trap 'unfit the lines of before, which ended the job' EXIT",
        *lines,
        "trap - EXIT",
    ]


def become_node_program(profile: Profile, zipapp: str, order: str, *, gpus: int, bind: Sequence[str]) -> str:
    """The last line. `order` is shell text; `bind` are directories that a container must see."""
    node = "%s %s %s" % (profile.python, shlex.quote(zipapp), order)
    if not profile.container:
        return "exec %s" % node
    binds = "".join(" --bind %s" % shlex.quote(place) for place in bind)
    nv = " --nv" if gpus else ""
    run = 'exec "$(command -v apptainer || command -v singularity)" exec%s%s' % (nv, binds)
    return "%s %s %s" % (run, shlex.quote(profile.container), node)


def _activate(environment: str) -> list[str]:
    place = shlex.quote(environment)
    conda = 'eval "$(conda shell.bash hook)" && conda activate %s || unfit conda activate %s' % (place, place)
    if "/" not in environment:
        return [conda]
    return [
        "[ -d %s ] || unfit environment %s, which is not there" % (place, place),
        "if [ -e %s/bin/activate ]; then . %s/bin/activate || unfit activating %s" % ((place,) * 3),
        "else %s; fi" % conda,
    ]
