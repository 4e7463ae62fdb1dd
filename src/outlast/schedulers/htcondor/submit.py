"""What is sent to HTCondor: submit descriptions; jobs with the same resources are one cluster of jobs.

All files of a job are transferred: it does not see the experiment's directory. `travel` is the one directory
that is transferred back: at the job's end, at an eviction, and when the job requests a restart in place.
HTCondor transfers nothing back from an evicted job if one listed file is missing, so the job first creates
that directory.
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
from outlast.schedulers.job_script import setup_lines, shebang
from outlast.schedulers.profile import Profile, fill_template

LOG_NAME = "htcondor.log"
#: Seconds that an evicted job gets in addition to its time to save, for the node program to log the end.
SHUTDOWN_SECONDS = 20
#: The variables of each job in a cluster. A variable must not be named like a command: `log` would be both.
_ITEM = ("the_token", "the_directory", "the_order", "the_output", "the_inputs")
#: Characters with a meaning of their own in a submit description.
_SPECIAL = re.compile(r"[\n\r\x1f\"']|\$\(")
_REQUIREMENTS = re.compile(r"^\s*requirements\s*=\s*(.+)$", re.IGNORECASE)


class UnfitRequest(BadInput):
    """A request that cannot be written as a submit description."""


@dataclass(frozen=True)
class JobCluster:
    """Jobs that differ only in their items."""

    description: str
    items: tuple[dict[str, str], ...]
    #: Path and text of the script that the jobs start with.
    program: Path
    script: str

    def render(self) -> str:
        """Return the cluster as a submit file, for people."""
        rows = "".join("  %s\n" % ", ".join(item.values()) for item in self.items)
        return "%squeue %s from (\n%s)\n" % (self.description, ", ".join(_ITEM), rows)


def event_log_of(request: JobRequest) -> Path:
    """Return the path of the event log that HTCondor writes for this request."""
    return event_log_in(Path(request.zipapp).parent)


def event_log_in(directory: Path) -> Path:
    """Return the path of the event log in the directory of the zipapps."""
    return directory / LOG_NAME


def group_into_clusters(requests: Sequence[JobRequest], group: str, profile: Profile) -> list[JobCluster]:
    """Return clusters of jobs for these requests. Raises UnfitRequest for the first that cannot be sent."""
    alike: dict[tuple[object, ...], list[JobRequest]] = {}
    for request in requests:
        needs = (request.zipapp, request.cpus, request.gpus, request.memory, request.disk)
        alike.setdefault((*needs, request.time, request.grace, request.avoid), []).append(request)
    return [_make_cluster(same, group, profile) for same in alike.values()]


def _make_cluster(requests: Sequence[JobRequest], group: str, profile: Profile) -> JobCluster:
    one = requests[0]
    script = "\n".join([*_script_lines(profile), ""])
    digest = hashlib.sha256(script.encode()).hexdigest()[:12]
    program = Path(one.zipapp).parent / ("outlast-job-%s.sh" % digest)
    settings = {
        "executable": str(program),
        "arguments": "\"'%s' '$(the_order)'\"" % _checked(Path(one.zipapp).name),
        # The same at every start of the job.
        "environment": '"OUTLAST_JOB=$(ClusterId).$(ProcId)"',
        "initialdir": "$(the_directory)",
        "log": _checked(str(event_log_of(one))),
        "output": "$(the_output)",
        "error": "$(the_output)",
        "submit_event_notes": "$(the_token)",
        "My.OutlastToken": '"$(the_token)"',
        "My.OutlastGroup": '"%s"' % _checked(group),
        **_resource_settings(one, profile),
        "should_transfer_files": "YES",
        "transfer_input_files": "$(the_inputs)",
        "when_to_transfer_output": "ON_EXIT_OR_EVICT",
        "transfer_output_files": TRAVEL,
        "checkpoint_exit_code": "%d" % EXIT_CONTINUE,
        "transfer_checkpoint_files": TRAVEL,
        "kill_sig": "SIGTERM",
        "job_max_vacate_time": "%d" % (math.ceil(one.grace) + SHUTDOWN_SECONDS),
        "want_graceful_removal": "true",
        "ulog_execute_attrs": "GLIDEIN_ResourceName, Machine",
        "job_machine_attrs": "GLIDEIN_ResourceName, Machine",
    }
    if any(_is_url(path) for request in requests for path in request.inputs):
        # The node program is also a transfer plugin, which resumes, detects stalls and verifies.
        settings["transfer_plugins"] = "%s=%s" % (PLUGIN_METHODS, _checked(one.zipapp))
    lines = ["%s = %s" % (key, value) for key, value in settings.items()]
    lines += [line for line in profile.directives if not _REQUIREMENTS.match(line)]
    items = tuple(_make_item(request) for request in requests)
    return JobCluster("\n".join([*lines, ""]), items, program, script)


def _script_lines(profile: Profile) -> list[str]:
    return [
        shebang(profile),
        "mkdir -p %s" % TRAVEL,
        # HTCondor sets neither, or a home that a container does not see; without PATH, Python does not find
        # its own executable.
        '[ -d "${HOME:-}" ] || HOME=$PWD',
        "export PATH HOME",
        # The slot's ad has the name of the site; the pool does not know the name of the host.
        'site=$(sed -n \'s/^GLIDEIN_ResourceName = "\\(.*\\)"$/\\1/p\' "${_CONDOR_MACHINE_AD:-/dev/null}")',
        '[ -z "$site" ] || export OUTLAST_HOST="$site"',
        *setup_lines(profile),
        'exec %s "$@"' % profile.python,
    ]


def _resource_settings(request: JobRequest, profile: Profile) -> dict[str, str]:
    settings = {
        "request_cpus": "%d" % request.cpus,
        # HTCondor's megabytes and kilobytes are powers of two.
        "request_memory": "%d" % math.ceil(request.memory / 2**20),
        "request_disk": "%d" % math.ceil(request.disk / 2**10),
        "allowed_execute_duration": "%d" % math.ceil(request.time),
    }
    if request.gpus:
        settings["request_gpus"] = "%d" % request.gpus
        if profile.gpus:
            settings["require_gpus"] = fill_template(profile.gpus, request)
    requirements = [found[1] for line in profile.directives if (found := _REQUIREMENTS.match(line))]
    if request.avoid:
        names = ", ".join('"%s"' % _checked(name) for name in request.avoid)
        requirements.append("member(TARGET.GLIDEIN_ResourceName ?: TARGET.Machine, {%s}) =!= true" % names)
    if requirements:
        settings["requirements"] = " && ".join("(%s)" % expression for expression in requirements)
    if profile.project:
        settings["My.ProjectName"] = '"%s"' % _checked(profile.project)
    if profile.commit == "chirp":
        # The sites can then do on the access point everything that the owner of the job can: only on request.
        settings["My.WantIOProxy"] = "true"
    return {**settings, **_container_settings(profile.container)}


def _container_settings(image: str) -> dict[str, str]:
    if not image:
        return {}
    if image.startswith("/cvmfs/"):
        # Every site of the pool has mounted the image; `container_image` would transfer it from here.
        return {"My.SingularityImage": '"%s"' % _checked(image)}
    settings = {"container_image": _checked(image)}
    if "://" in image:
        return settings
    if Path(image).is_dir():
        # HTCondor cannot transfer the links to directories in every image: the sites must have it themselves.
        return {**settings, "transfer_container": "false"}
    if not Path(image).exists():
        raise UnfitRequest("container: %s does not exist; build it, or correct the profile" % image)
    return settings


def _make_item(request: JobRequest) -> dict[str, str]:
    directory = request.directory or str(Path(request.order).parent)
    inputs = [request.order, request.zipapp, *request.inputs]
    # Relative, because a blank or a comma ends a name for HTCondor, and these are often in the part of the
    # path that all inputs have in common.
    relative = [path if _is_url(path) else os.path.relpath(path, directory) for path in inputs]
    for path in relative:
        if re.search(r"[\s,]", path):
            raise UnfitRequest("HTCondor cannot transfer %r: its name has a blank or a comma" % path)
    values = (request.token, directory, Path(request.order).name, request.log, ",".join(relative))
    return {name: _checked(value) for name, value in zip(_ITEM, values, strict=True)}


def _is_url(path: str) -> bool:
    return "://" in path


def _checked(text: str) -> str:
    """Return the text. Raises UnfitRequest if it has special characters."""
    if _SPECIAL.search(text):
        raise UnfitRequest("%r cannot be part of an HTCondor submit description" % text)
    return text
