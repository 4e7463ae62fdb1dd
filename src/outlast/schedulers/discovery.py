"""Find out what of each scheduler is on this machine: programs, versions, and whether it responds."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outlast.schedulers.command_runner import CommandNotRun, CommandOutput, CommandTimeout, run_command
from outlast.schedulers.profile import Profile
from outlast.text import counted

#: The programs that an adapter runs, best known first.
PROGRAMS: Mapping[str, tuple[str, ...]] = {
    "slurm": ("sbatch", "squeue", "scancel", "scontrol"),
    "sge": ("qsub", "qstat", "qdel", "qacct"),
}
#: What to do if they are missing.
_REMEDIES = {
    "slurm": "load your site's Slurm module, or run this on a login node",
    "sge": "load your site's Grid Engine settings (settings.sh), or run this on a login node",
    "htcondor": "run this on an access point, or set CONDOR_CONFIG to its configuration",
}
_CONTAINER_PROGRAMS = ("apptainer", "singularity")
#: The most sites of a pool to name.
MOST_SITES = 10

#: Runs in its own process: these calls have no timeout, and the import may write to stderr.
_QUERY_HTCONDOR = """
import json, sys
try:
    import htcondor2
except ImportError as error:
    sys.exit(json.dumps({"problem": "import", "why": str(error)}))
facts = {"version": htcondor2.version().split()[1]}
facts["name"] = htcondor2.param.get("SCHEDD_NAME") or htcondor2.param.get("FULL_HOSTNAME")
facts["limits"] = {kind: htcondor2.param.get("MAX_TRANSFER_%s_MB" % kind) for kind in ("INPUT", "OUTPUT")}
try:
    schedd = htcondor2.Schedd()
    schedd.query(constraint="false", projection=["ClusterId"], limit=1)
except Exception as error:
    facts.update(problem="schedd", why=" ".join(str(error).split()) or type(error).__name__)
print(json.dumps(facts))
"""


@dataclass(frozen=True)
class Presence:
    """The parts of a scheduler on this machine; without `problems`, jobs can be submitted from here."""

    version: str = ""
    #: Where it is: paths of programs, variables and their values.
    found: tuple[str, ...] = ()
    #: Sentences that name the remedy.
    problems: tuple[str, ...] = ()
    #: Further facts that are no problem.
    notes: tuple[str, ...] = ()


def missing_programs(scheduler: str) -> tuple[str, ...]:
    """Return a sentence about what this machine lacks for the scheduler, or nothing. Runs no program."""
    missing = [name for name in PROGRAMS.get(scheduler, ()) if shutil.which(name) is None]
    if missing:
        verb = "was" if len(missing) == 1 else "were"
        return ("%s %s not found on the PATH: %s" % (_enumerate(missing), verb, _REMEDIES[scheduler]),)
    if scheduler == "htcondor":
        from importlib.util import find_spec

        if find_spec("htcondor2") is None:
            return ("htcondor2 is not installed: type `pip install 'outlast[htcondor]'`",)
    return ()


def missing_requirements(scheduler: str, profile: Profile) -> tuple[str, ...]:
    """Return `missing_programs`, and a sentence for each file of the profile that is not on this machine."""
    files = {"environment": profile.environment, "container": profile.container}
    if scheduler != "htcondor" and not profile.container:
        # With a container, `python` is a path in the image.
        files["python"] = profile.python
    missing = [
        "%s: %s is not on this machine" % (key, path)
        for key, path in files.items()
        if path.startswith("/") and not os.path.lexists(path)
    ]
    return (*missing_programs(scheduler), *missing)


def find_scheduler(scheduler: str, timeout: float) -> Presence:
    """Return what this machine has of one scheduler. Takes at most twice `timeout`."""
    problems = missing_programs(scheduler)
    if problems:
        return Presence(found=_find_paths(PROGRAMS.get(scheduler, ())), problems=problems)
    return _FINDERS[scheduler](timeout)


def describe_pool(timeout: float) -> str:
    """Return a sentence about the slots that the HTCondor pool has now; glideins come and go."""
    worker = [sys.executable, "-m", "outlast.schedulers.htcondor.worker"]
    output, error = _query(worker, timeout, stdin=json.dumps({"do": "offer"}))
    response = (_parse_last_line(output.out) if output is not None else None) or {"trouble": error}
    if "offer" not in response:
        return "its slots are not known (%s)" % (response.get("trouble") or "the response cannot be read")
    slots: Sequence[Mapping[str, Any]] = response["offer"]
    cpus, gpus = (int(sum(slot.get(key, 0) for slot in slots)) for key in ("TotalSlotCpus", "TotalSlotGPUs"))
    text = "%s with %s and %s" % (counted(len(slots), "slot"), counted(cpus, "cpu"), counted(gpus, "gpu"))
    sites = sorted({str(slot["GLIDEIN_ResourceName"]) for slot in slots if "GLIDEIN_ResourceName" in slot})
    if not sites:
        return text
    names = ", ".join(sites[:MOST_SITES]) + (", …" if len(sites) > MOST_SITES else "")
    return "%s at %s (%s)" % (text, counted(len(sites), "site"), names)


def find_container_program(timeout: float) -> Presence:
    """Return what this machine has of Apptainer, or of Singularity. Only the nodes need it."""
    for name in _CONTAINER_PROGRAMS:
        if path := shutil.which(name):
            output, error = _query([name, "--version"], timeout)
            version = output.out.split()[-1] if output and output.out.split() else ""
            return Presence(version, (path,), ("%s cannot be used: %s" % (name, error),) if error else ())
    return Presence(notes=("no apptainer or singularity on the PATH; only compute nodes need one",))


def _find_slurm(timeout: float) -> Presence:
    paths = _find_paths((*PROGRAMS["slurm"], "sacct"))
    output, error = _query(["sbatch", "--version"], timeout)
    if output is None:
        return Presence(found=paths, problems=(_problem("sbatch cannot be used", error, "slurm"),))
    version = output.out.split()[-1] if output.out.split() else ""
    config, error = _query(["scontrol", "show", "config"], timeout)
    if config is None:
        problem = "the Slurm controller does not respond (%s): try again later" % error
        return Presence(version, paths, (problem,))
    pairs = dict(line.partition("=")[::2] for line in config.out.splitlines() if "=" in line)
    settings = {key.strip(): value.strip() for key, value in pairs.items()}
    notes = ["cluster %s" % settings.get("ClusterName", "without a name")]
    has_accounting = settings.get("AccountingStorageType", "").endswith("/slurmdbd")
    if not has_accounting or shutil.which("sacct") is None:
        age = settings.get("MinJobAge", "a while")
        notes.append("no accounting (sacct): the end of a job is known for %s" % age)
    return Presence(version, paths, notes=tuple(notes))


def _find_sge(timeout: float) -> Presence:
    root = os.environ.get("SGE_ROOT", "")
    found = (*_find_paths(PROGRAMS["sge"]), *(["SGE_ROOT=%s" % root] if root else []))
    queues, error = _query(["qstat", "-g", "c"], timeout)
    if queues is None:
        unset = "SGE_ROOT is not set, and " if not root else ""
        return Presence(found=found, problems=(_problem(unset + "no qmaster responds", error, "sge"),))
    # It always exits with 1 after it printed its version.
    usage, _ = _query(["qstat", "-help"], timeout, codes=(0, 1))
    first = usage.out.splitlines()[0].split() if usage and usage.out.strip() else []
    names = [line.split()[0] for line in queues.out.splitlines()[2:] if line.split()]
    notes = ("queues %s" % ", ".join(names),) if names else ()
    return Presence(first[-1] if first else "", found, notes=notes)


def _find_htcondor(timeout: float) -> Presence:
    config = os.environ.get("CONDOR_CONFIG", "")
    found = ("CONDOR_CONFIG=%s" % config,) if config else ()
    output, error = _query([sys.executable, "-c", _QUERY_HTCONDOR], timeout, codes=(0, 1))
    if output is None:
        problem = "the schedd does not respond (%s): try again later" % error
        return Presence(found=found, problems=(problem,))
    facts = _parse_last_line(output.out) or _parse_last_line(output.err)
    if facts is None:
        return Presence(found=found, problems=("htcondor2 cannot be used: %s" % output.error_message,))
    version, error = facts.get("version", ""), facts.get("why", "")
    if facts.get("problem") == "import":
        return Presence(found=found, problems=("htcondor2 cannot be imported: %s" % error,))
    if facts.get("problem"):
        return Presence(version, found, (_problem("no schedd responds", error, "htcondor"),))
    notes = ["access point %s" % facts["name"]] if facts.get("name") else []
    for kind, limit in facts.get("limits", {}).items():
        if isinstance(limit, (int, float)) and limit >= 0:
            notes.append("a job may transfer at most %g MB of %s" % (limit, kind.lower()))
    return Presence(version, found, notes=tuple(notes))


_FINDERS = {
    "local": lambda timeout: Presence(),
    "slurm": _find_slurm,
    "sge": _find_sge,
    "htcondor": _find_htcondor,
}


def _problem(what: str, error: str, scheduler: str) -> str:
    return "%s (%s): %s" % (what, error, _REMEDIES[scheduler])


def _query(
    arguments: list[str], timeout: float, codes: Iterable[int] = (0,), stdin: str = ""
) -> tuple[CommandOutput | None, str]:
    """Run a program; return its output, or None and a short error if its exit code is not among `codes`."""
    try:
        output = run_command(arguments, timeout, stdin)
    except (CommandNotRun, CommandTimeout) as error:
        return None, str(error)
    if output.code in codes:
        return output, ""
    # These programs print errors of several lines; the last one is the conclusion.
    last = (output.err.strip() or output.out.strip()).splitlines()[-1:]
    return None, " ".join(last[0].split())[:200] if last else output.error_message


def _parse_last_line(text: str) -> dict[str, Any] | None:
    """Parse the last line as a JSON object; an import may have printed others before."""
    try:
        facts = json.loads(text.strip().splitlines()[-1])
    except (ValueError, IndexError):
        return None
    return facts if isinstance(facts, dict) else None


def _find_paths(programs: Iterable[str]) -> tuple[str, ...]:
    return tuple(path for path in map(shutil.which, programs) if path)


def _enumerate(names: list[str]) -> str:
    return names[0] if len(names) == 1 else "%s and %s" % (", ".join(names[:-1]), names[-1])
