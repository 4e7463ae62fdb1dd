"""The shell script of a batch job, below its directives: setup by the profile, then the node program.

It ends in `exec`, so that signals that the scheduler sends to the script reach the node program.
"""

from __future__ import annotations

import os.path
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from outlast.node.protocol import EXIT_NOT_PREPARED, SETUP_FAILED
from outlast.schedulers.base import JobRequest
from outlast.schedulers.profile import Profile

#: Reports what fails before the node program can report it.
_SETUP_FAILED = 'setup_failed() { echo "%s $*" >&2; trap - EXIT; exit %d; }' % (
    SETUP_FAILED,
    EXIT_NOT_PREPARED,
)


def shebang(profile: Profile) -> str:
    """Return the script's first line; it starts a login shell only if the setup needs one.

    `module` is a function that the start-up files of a login shell define.
    """
    needs_login = profile.modules or profile.before or profile.environment
    return "#!/bin/bash -l" if needs_login else "#!/bin/bash"


def select_order(requests: Sequence[JobRequest], index: str) -> list[str]:
    """Return lines that set `order` to the task's work order; `index` is the shell variable of its number."""
    if len(requests) == 1:
        return ["order=%s" % shlex.quote(requests[0].order)]
    cases = ["  %d) order=%s ;;" % (request.index, shlex.quote(request.order)) for request in requests]
    return ['case "%s" in' % index, *cases, "esac"]


def setup_lines(profile: Profile) -> list[str]:
    """Return the lines that set up the job's environment. If one fails, the job ends before the training."""
    modules = map(shlex.quote, profile.modules)
    lines = ["module load %s || setup_failed module load %s" % (one, one) for one in modules]
    if profile.before:
        lines += ["trap 'setup_failed \"$BASH_COMMAND\"' ERR", *profile.before, "trap - ERR"]
    if profile.environment:
        lines += _activate(profile.environment)
    if not lines:
        return []
    return [
        _SETUP_FAILED,
        "trap 'setup_failed the lines of before, which ended the job' EXIT",
        *lines,
        "trap - EXIT",
    ]


def exec_node_program(profile: Profile, requests: Sequence[JobRequest]) -> list[str]:
    """Return the last lines, for jobs that see the experiment: exec the node program with `$order`."""
    node = '%s "$order"' % shlex.quote(requests[0].zipapp)
    if not profile.container:
        return ["exec %s %s" % (profile.python, node)]
    return [
        *_find_container(profile),
        *_container_command(profile, requests),
        'exec "$runtime" "$@" %s' % node,
    ]


def _find_container(profile: Profile) -> list[str]:
    lines = [
        _SETUP_FAILED,
        "runtime=$(command -v apptainer || command -v singularity) ||"
        " setup_failed container: neither apptainer nor singularity is on the PATH of this node",
    ]
    if "://" not in profile.container:
        image = _quote_path(profile.container)
        lines.append("[ -e %s ] || setup_failed container %s does not exist" % (image, image))
    return lines


def _container_command(profile: Profile, requests: Sequence[JobRequest]) -> list[str]:
    """Return lines that put the container command, up to the image's Python, into `$@` and test it.

    The test finds a bad image while the script can still report it; after `exec` it could not.
    """
    experiment = shlex.quote(_escape_bind(_experiment_directory(requests)))
    lines = ["set -- exec%s --bind %s" % (" --nv" if requests[0].gpus else "", experiment)]
    if profile.cache:
        # The first job creates it, outside: a directory made inside the container is not visible outside.
        lines.append('mkdir -p "%s" || true' % profile.cache)
    for place in filter(None, (profile.scratch, profile.cache, profile.token_file)):
        # If one is missing, the node program reports that or does without.
        lines.append('[ ! -e "%s" ] || set -- "$@" --bind "%s"' % (place, place))
    return [
        *lines,
        'set -- "$@" %s %s' % (_quote_path(profile.container), profile.python),
        '"$runtime" "$@" -c pass || setup_failed container: "$runtime" "$@"',
    ]


def _experiment_directory(requests: Sequence[JobRequest]) -> str:
    """Return the directory that a container must see: it contains orders, node program and logs."""
    files = [path for one in requests for path in (one.order, one.zipapp, one.log)]
    return os.path.commonpath([Path(path).parent for path in files])


def _escape_bind(path: str) -> str:
    """Escape the colons and commas that separate paths for `--bind`."""
    return re.sub(r"([\\:,])", r"\\\1", path)


def _quote_path(path: str) -> str:
    """Quote a path for the shell; it may begin with a variable of the node."""
    return '"%s"' % path if path.startswith("$") else shlex.quote(path)


def _activate(environment: str) -> list[str]:
    place = shlex.quote(environment)
    conda = 'eval "$(conda shell.bash hook)" && conda activate %s || setup_failed conda activate %s' % (
        place,
        place,
    )
    if "/" not in environment:
        return [conda]
    return [
        "[ -d %s ] || setup_failed environment %s does not exist" % (place, place),
        "if [ -e %s/bin/activate ]; then . %s/bin/activate || setup_failed activating %s" % ((place,) * 3),
        "else %s; fi" % conda,
    ]
