"""Checks that an experiment fits the hosts of its cluster: memory, disk, and the modules that it imports."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from outlast.node.environment import resolve_python
from outlast.schedulers.command_runner import CommandNotRun, CommandTimeout, run_command
from outlast.schedulers.host_sizes import query_host_sizes
from outlast.spec import code_files
from outlast.spec import command as commands
from outlast.spec.cluster_library import KnownCluster
from outlast.spec.mistakes import Mistake
from outlast.spec.reader import FILE, Parsed
from outlast.units import show_size

#: Timeout in seconds of each query.
PATIENCE = 5.0
#: Packages that are not called after their module.
_PACKAGES = {
    "PIL": "pillow",
    "cv2": "opencv-python",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}
#: Prints which of the given modules this Python does not have, without importing them.
_FIND_MODULES = """
import importlib.util, json, sys
print(json.dumps([name for name in sys.argv[1:] if importlib.util.find_spec(name) is None]))
"""


def check_hosts(parsed: Parsed, cluster: KnownCluster, directory: Path) -> list[Mistake]:
    """Return warnings about what no host of the cluster has. Takes at most twice `PATIENCE` seconds."""
    return [*_check_sizes(parsed, cluster, directory), *_check_modules(parsed, cluster, directory)]


def _check_sizes(parsed: Parsed, cluster: KnownCluster, directory: Path) -> Iterator[Mistake]:
    profile, resources = cluster.profile, parsed.spec.resources
    sizes = query_host_sizes(profile.scheduler, profile.site, str(directory), PATIENCE)
    found = {"memory": (resources.memory, sizes.memory), "disk": (resources.disk, sizes.disk)}
    for key, (requested, largest) in found.items():
        if largest is not None and requested > largest:
            has = "this machine has" if profile.scheduler == "local" else "the largest host has"
            text = "resources.%s: no host of cluster %s has %s; %s %s" % (
                *(key, profile.name, show_size(requested), has, show_size(largest)),
            )
            yield Mistake(FILE, None, None, text, "request less")


def _check_modules(parsed: Parsed, cluster: KnownCluster, directory: Path) -> Iterator[Mistake]:
    """Yield a warning for each module that the code imports and that Python does not have.

    Only where jobs run with this machine's Python: on other clusters nobody here knows what a node has.
    """
    words = commands.split(parsed.spec.command)
    if cluster.profile.scheduler != "local" or cluster.profile.site.sets_environment or not words:
        return
    scripts = [path for path in code_files.named_files(words, directory) if path.endswith(".py")]
    users = code_files.required_modules(scripts, directory)
    python = resolve_python(words[:1], os.environ)[0]
    if not users or not code_files.is_python(python):
        return
    for name in _missing(python, list(users)):
        if name in users:
            text = "%s imports %s, which %s does not have" % (users[name], name, python)
            package = _PACKAGES.get(name, name)
            yield Mistake(FILE, None, None, text, "%s -m pip install %s" % (python, package))


def _missing(python: str, names: list[str]) -> list[str]:
    # -I: modules in the current directory are not those of the job.
    try:
        output = run_command([python, "-I", "-c", _FIND_MODULES, *names], PATIENCE)
        found = json.loads(output.out) if output.code == 0 else []
    except (CommandNotRun, CommandTimeout, ValueError):
        return []
    return [name for name in found if isinstance(name, str) and name not in sys.stdlib_module_names]
