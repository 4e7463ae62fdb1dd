"""The submit descriptions of jobs: jobs that ask for the same are sent as one cluster of jobs.

The whole of a job travels: nothing of the experiment's directory is seen where it runs. `travel` is the one
directory that comes back, at the job's end, at an eviction, and when the job asks to be started again in
place. HTCondor brings nothing back of an evicted job if one listed file is missing, so the job's first act is
to make that directory.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from outlast.errors import BadInput
from outlast.node.protocol import EXIT_CONTINUE
from outlast.node.sandbox.layout import TRAVEL
from outlast.node.staging.condor_plugin_codes import METHODS as PLUGIN_METHODS
from outlast.schedulers.base import JobRequest
from outlast.schedulers.job_script import prepare, shebang
from outlast.schedulers.profile import Profile, fill

LOG_NAME = "htcondor.log"
#: Seconds that an evicted job gets beyond its own time to save, for the node program's last words.
LAST_WORDS = 20
#: What tells the jobs of a cluster apart. A variable must not be named as a command: `log` would be both.
_ITEM = ("the_token", "the_directory", "the_order", "the_output", "the_inputs")
#: What would be something else in a submit description than a part of a name.
_UNFIT = re.compile(r"[\n\r\x1f\"']|\$\(")
_REQUIREMENTS = re.compile(r"^\s*requirements\s*=\s*(.+)$", re.IGNORECASE)


class UnfitRequest(BadInput):
    """This request cannot be put into a submit description."""


@dataclass(frozen=True)
class JobCluster:
    """Jobs that differ by their items only."""

    description: str
    items: tuple[dict[str, str], ...]
    #: Path and text of the program that the jobs start with.
    program: Path
    script: str

    def text(self) -> str:
        """As a submit file, for people."""
        rows = "".join("  %s\n" % ", ".join(item.values()) for item in self.items)
        return "%squeue %s from (\n%s)\n" % (self.description, ", ".join(_ITEM), rows)


def event_log(request: JobRequest) -> Path:
    return event_log_in(Path(request.zipapp).parent)


def event_log_in(place: Path) -> Path:
    return place / LOG_NAME


def clusters(requests: Sequence[JobRequest], group: str, profile: Profile) -> list[JobCluster]:
    """Raises Unfit for the first request that cannot be sent."""
    alike: dict[tuple[object, ...], list[JobRequest]] = {}
    for request in requests:
        asked = (request.zipapp, request.cpus, request.gpus, request.memory, request.disk)
        alike.setdefault((*asked, request.time, request.grace, request.avoid), []).append(request)
    return [_cluster(same, group, profile) for same in alike.values()]


def _cluster(requests: Sequence[JobRequest], group: str, profile: Profile) -> JobCluster:
    one = requests[0]
    script = "\n".join([*_script(profile), ""])
    digest = hashlib.sha256(script.encode()).hexdigest()[:12]
    program = Path(one.zipapp).parent / ("outlast-job-%s.sh" % digest)
    settings = {
        "executable": str(program),
        "arguments": "\"'%s' '$(the_order)'\"" % _checked(Path(one.zipapp).name),
        # The same at every start of the job.
        "environment": '"OUTLAST_JOB=$(ClusterId).$(ProcId)"',
        "initialdir": "$(the_directory)",
        "log": _checked(str(event_log(one))),
        "output": "$(the_output)",
        "error": "$(the_output)",
        "submit_event_notes": "$(the_token)",
        "My.OutlastToken": '"$(the_token)"',
        "My.OutlastGroup": '"%s"' % _checked(group),
        **_asked(one, profile),
        "should_transfer_files": "YES",
        "transfer_input_files": "$(the_inputs)",
        "when_to_transfer_output": "ON_EXIT_OR_EVICT",
        "transfer_output_files": TRAVEL,
        "checkpoint_exit_code": "%d" % EXIT_CONTINUE,
        "transfer_checkpoint_files": TRAVEL,
        "kill_sig": "SIGTERM",
        "job_max_vacate_time": "%d" % (math.ceil(one.grace) + LAST_WORDS),
        "want_graceful_removal": "true",
        "ulog_execute_attrs": "GLIDEIN_ResourceName, Machine",
        "job_machine_attrs": "GLIDEIN_ResourceName, Machine",
    }
    if any(_is_url(path) for request in requests for path in request.inputs):
        # The node program is a transfer plugin as well: it resumes, finds stalls, and checks.
        settings["transfer_plugins"] = "%s=%s" % (PLUGIN_METHODS, _checked(one.zipapp))
    lines = ["%s = %s" % (key, value) for key, value in settings.items()]
    lines += [line for line in profile.directives if not _REQUIREMENTS.match(line)]
    items = tuple(_item(request) for request in requests)
    return JobCluster("\n".join([*lines, ""]), items, program, script)


def _script(profile: Profile) -> list[str]:
    return [
        shebang(profile),
        "mkdir -p %s" % TRAVEL,
        # HTCondor sets neither, or a home that a container does not see; without PATH a Python does not know
        # its own name.
        '[ -d "${HOME:-}" ] || HOME=$PWD',
        "export PATH HOME",
        # The slot's own ad knows the site; the name of the host means nothing to the pool.
        'site=$(sed -n \'s/^GLIDEIN_ResourceName = "\\(.*\\)"$/\\1/p\' "${_CONDOR_MACHINE_AD:-/dev/null}")',
        '[ -z "$site" ] || export OUTLAST_HOST="$site"',
        *prepare(profile),
        'exec %s "$@"' % profile.python,
    ]


def _asked(request: JobRequest, profile: Profile) -> dict[str, str]:
    asked = {
        "request_cpus": "%d" % request.cpus,
        # HTCondor's megabytes and kilobytes are powers of two.
        "request_memory": "%d" % math.ceil(request.memory / 2**20),
        "request_disk": "%d" % math.ceil(request.disk / 2**10),
        "allowed_execute_duration": "%d" % math.ceil(request.time),
    }
    if request.gpus:
        asked["request_gpus"] = "%d" % request.gpus
        if profile.gpus:
            asked["require_gpus"] = fill(profile.gpus, request)
    requirements = [found[1] for line in profile.directives if (found := _REQUIREMENTS.match(line))]
    if request.avoid:
        names = ", ".join('"%s"' % _checked(name) for name in request.avoid)
        requirements.append("member(TARGET.GLIDEIN_ResourceName ?: TARGET.Machine, {%s}) =!= true" % names)
    if requirements:
        asked["requirements"] = " && ".join("(%s)" % expression for expression in requirements)
    if profile.project:
        asked["My.ProjectName"] = '"%s"' % _checked(profile.project)
    if profile.commit in ("auto", "chirp"):
        asked["My.WantIOProxy"] = "true"
    return {**asked, **_container(profile.container)}


def _container(image: str) -> dict[str, str]:
    if not image:
        return {}
    if image.startswith("/cvmfs/"):
        # An image that every site of the pool has mounted; `container_image` would carry it from here.
        return {"My.SingularityImage": '"%s"' % _checked(image)}
    carried = {"container_image": _checked(image)}
    if "://" in image:
        return carried
    if Path(image).is_dir():
        # HTCondor cannot carry the links to directories that are in every one: it is where the sites have it.
        return {**carried, "transfer_container": "false"}
    if not Path(image).exists():
        raise UnfitRequest("container: %s is not there; build it, or correct the profile" % image)
    return carried


def _item(request: JobRequest) -> dict[str, str]:
    directory = request.directory or str(Path(request.order).parent)
    inputs = [request.order, request.zipapp, *request.inputs]
    # Relative, because HTCondor takes a blank or a comma as the end of a name, and these are often
    # in the part of the path that all of them have in common.
    relative = [path if _is_url(path) else os.path.relpath(path, directory) for path in inputs]
    for path in relative:
        if re.search(r"[\s,]", path):
            raise UnfitRequest("HTCondor cannot carry %r: there is a blank or a comma in its name" % path)
    values = (request.token, directory, Path(request.order).name, request.log, ",".join(relative))
    return {name: _checked(value) for name, value in zip(_ITEM, values, strict=True)}


def _is_url(path: str) -> bool:
    return "://" in path


def _checked(text: str) -> str:
    if _UNFIT.search(text):
        raise UnfitRequest("%r cannot be part of an HTCondor submit description" % text)
    return text
