"""The shell script of a batch job, below its directives: prepare as the profile says, then become the node
program.

It ends in `exec`, so that the signals which the scheduler sends to the script reach the node program.
"""

from __future__ import annotations

import os.path
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from outlast.node.protocol import EXIT_NOT_PREPARED
from outlast.schedulers.base import JobRequest
from outlast.schedulers.profile import Profile

#: For what fails before the node program is there to tell.
_UNFIT = (
    'unfit() { echo "outlast: this failed before the training: $*" >&2; trap - EXIT; exit %d; }'
    % EXIT_NOT_PREPARED
)


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
        _UNFIT,
        "trap 'unfit the lines of before, which ended the job' EXIT",
        *lines,
        "trap - EXIT",
    ]


def become_node_program(profile: Profile, requests: Sequence[JobRequest]) -> list[str]:
    """The last lines, for jobs that see the experiment. `order` is the shell's word for the work order."""
    node = '%s "$order"' % shlex.quote(requests[0].zipapp)
    if not profile.container:
        return ["exec %s %s" % (profile.python, node)]
    return [*_find_container(profile), *_container_words(profile, requests), 'exec "$runtime" "$@" %s' % node]


def _find_container(profile: Profile) -> list[str]:
    lines = [
        _UNFIT,
        "runtime=$(command -v apptainer || command -v singularity) ||"
        " unfit container: neither apptainer nor singularity is on the PATH of this node",
    ]
    if "://" not in profile.container:
        image = _place(profile.container)
        lines.append("[ -e %s ] || unfit container %s, which is not there" % (image, image))
    return lines


def _container_words(profile: Profile, requests: Sequence[JobRequest]) -> list[str]:
    """Lines that leave the words of the command in `$@`, up to the Python in the image, and have tried them.

    What is wrong with an image shows when it is tried. Later the script is gone, and could not tell.
    """
    seen = shlex.quote(_one_path(_experiment(requests)))
    lines = ["set -- exec%s --bind %s" % (" --nv" if requests[0].gpus else "", seen)]
    if profile.cache:
        # It is made by the first job that needs it, and nothing can be made inside that is seen outside.
        lines.append('mkdir -p "%s" || true' % profile.cache)
    for place in filter(None, (profile.scratch, profile.cache, profile.token_file)):
        # The node program says what it misses, or does without.
        lines.append('[ ! -e "%s" ] || set -- "$@" --bind "%s"' % (place, place))
    return [
        *lines,
        'set -- "$@" %s %s' % (_place(profile.container), profile.python),
        '"$runtime" "$@" -c pass || unfit container: "$runtime" "$@"',
    ]


def _experiment(requests: Sequence[JobRequest]) -> str:
    """What a container must see: orders, node program and logs are in different parts of the experiment."""
    files = [path for one in requests for path in (one.order, one.zipapp, one.log)]
    return os.path.commonpath([Path(path).parent for path in files])


def _one_path(path: str) -> str:
    """As `--bind` wants it, for which colons and commas are the ends of names."""
    return re.sub(r"([\\:,])", r"\\\1", path)


def _place(path: str) -> str:
    """A path for the shell; the node's own variable may be its beginning."""
    return '"%s"' % path if path.startswith("$") else shlex.quote(path)


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
