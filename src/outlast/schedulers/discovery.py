"""What of each scheduler is on this machine: programs, versions, and whether it answers. Bounded in time."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outlast.schedulers.command_runner import CommandNotRun, CommandOutput, CommandTimeout, call
from outlast.schedulers.profile import Profile
from outlast.text import counted

#: The programs that an adapter calls, in the order in which people know them.
PROGRAMS: Mapping[str, tuple[str, ...]] = {
    "slurm": ("sbatch", "squeue", "scancel", "scontrol"),
    "sge": ("qsub", "qstat", "qdel", "qacct"),
}
#: What to do where they are not.
_REMEDIES = {
    "slurm": "load your site's Slurm module, or run this on a login node",
    "sge": "load your site's Grid Engine settings (settings.sh), or run this on a login node",
    "htcondor": "run this on an access point, or set CONDOR_CONFIG to its configuration",
}
_CONTAINERS = ("apptainer", "singularity")
#: Sites of a pool that are named.
MOST_SITES = 10

#: Runs in a process of its own: these calls know no bound, and importing may complain on stderr.
_ASK_HTCONDOR = """
import json, sys
try:
    import htcondor2
except ImportError as error:
    sys.exit(json.dumps({"problem": "import", "why": str(error)}))
told = {"version": htcondor2.version().split()[1]}
told["name"] = htcondor2.param.get("SCHEDD_NAME") or htcondor2.param.get("FULL_HOSTNAME")
told["limits"] = {kind: htcondor2.param.get("MAX_TRANSFER_%s_MB" % kind) for kind in ("INPUT", "OUTPUT")}
try:
    schedd = htcondor2.Schedd()
    schedd.query(constraint="false", projection=["ClusterId"], limit=1)
except Exception as error:
    told.update(problem="schedd", why=" ".join(str(error).split()) or type(error).__name__)
print(json.dumps(told))
"""


@dataclass(frozen=True)
class Presence:
    """`problems` are sentences that say what to do; without one, jobs can be submitted from here."""

    version: str = ""
    #: Where it is: paths of programs, variables and their values.
    found: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    #: What is good to know and no problem.
    notes: tuple[str, ...] = ()


def missing_programs(scheduler: str) -> tuple[str, ...]:
    """The sentence about what this machine lacks, without asking anybody; none if it lacks nothing."""
    missing = [name for name in PROGRAMS.get(scheduler, ()) if shutil.which(name) is None]
    if missing:
        verb = "was" if len(missing) == 1 else "were"
        return ("%s %s not found on the PATH: %s" % (_listed(missing), verb, _REMEDIES[scheduler]),)
    if scheduler == "htcondor":
        from importlib.util import find_spec

        if find_spec("htcondor2") is None:
            return ("htcondor2 is not installed: type `pip install 'outlast[htcondor]'`",)
    return ()


def missing_here(scheduler: str, profile: Profile) -> tuple[str, ...]:
    """The same, and files that the profile names and that are not to be seen from here."""
    files = {"environment": profile.environment, "container": profile.container}
    if scheduler != "htcondor" and not profile.container:
        # With a container it is the one inside.
        files["python"] = profile.python
    gone = [
        "%s: %s is not on this machine" % (key, place)
        for key, place in files.items()
        if place.startswith("/") and not os.path.lexists(place)
    ]
    return (*missing_programs(scheduler), *gone)


def look_for(scheduler: str, timeout: float) -> Presence:
    """What is there of one scheduler. Takes `timeout` twice at the longest."""
    lacks = missing_programs(scheduler)
    if lacks:
        return Presence(found=_paths(PROGRAMS.get(scheduler, ())), problems=lacks)
    return _LOOKS[scheduler](timeout)


def pool(timeout: float) -> str:
    """What HTCondor's pool has now, in a sentence; glideins come and go."""
    asking = [sys.executable, "-m", "outlast.schedulers.htcondor.worker"]
    reply, why = _ask(asking, timeout, given=json.dumps({"do": "offer"}))
    told = (_read(reply.out) if reply is not None else None) or {"trouble": why}
    if "offer" not in told:
        return "its slots are not known (%s)" % (told.get("trouble") or "the answer cannot be read")
    slots: Sequence[Mapping[str, Any]] = told["offer"]
    cpus, gpus = (int(sum(slot.get(key, 0) for slot in slots)) for key in ("TotalSlotCpus", "TotalSlotGPUs"))
    text = "%s with %s and %s" % (counted(len(slots), "slot"), counted(cpus, "cpu"), counted(gpus, "gpu"))
    sites = sorted({str(slot["GLIDEIN_ResourceName"]) for slot in slots if "GLIDEIN_ResourceName" in slot})
    if not sites:
        return text
    named = ", ".join(sites[:MOST_SITES]) + (", …" if len(sites) > MOST_SITES else "")
    return "%s at %s (%s)" % (text, counted(len(sites), "site"), named)


def containers(timeout: float) -> Presence:
    """Apptainer, or Singularity as it was called before. Nodes need it, this machine does not."""
    for name in _CONTAINERS:
        if path := shutil.which(name):
            reply, why = _ask([name, "--version"], timeout)
            version = reply.out.split()[-1] if reply and reply.out.split() else ""
            return Presence(version, (path,), ("%s cannot be used: %s" % (name, why),) if why else ())
    return Presence(notes=("neither is here; only nodes where jobs run need one",))


def _look_at_slurm(timeout: float) -> Presence:
    paths = _paths((*PROGRAMS["slurm"], "sacct"))
    version, why = _ask(["sbatch", "--version"], timeout)
    if version is None:
        return Presence(found=paths, problems=(_useless("sbatch cannot be used", why, "slurm"),))
    told = version.out.split()[-1] if version.out.split() else ""
    config, why = _ask(["scontrol", "show", "config"], timeout)
    if config is None:
        return Presence(told, paths, ("the Slurm controller does not answer (%s): try again later" % why,))
    facts = dict(line.partition("=")[::2] for line in config.out.splitlines() if "=" in line)
    settings = {key.strip(): value.strip() for key, value in facts.items()}
    notes = ["cluster %s" % settings.get("ClusterName", "without a name")]
    accounting = settings.get("AccountingStorageType", "").endswith("/slurmdbd")
    if not accounting or shutil.which("sacct") is None:
        age = settings.get("MinJobAge", "a while")
        notes.append("no accounting (sacct): how a job ended can be told for %s" % age)
    return Presence(told, paths, notes=tuple(notes))


def _look_at_sge(timeout: float) -> Presence:
    root = os.environ.get("SGE_ROOT", "")
    places = (*_paths(PROGRAMS["sge"]), *(["SGE_ROOT=%s" % root] if root else []))
    queues, why = _ask(["qstat", "-g", "c"], timeout)
    if queues is None:
        unset = "SGE_ROOT is not set, and " if not root else ""
        return Presence(found=places, problems=(_useless(unset + "no qmaster answers", why, "sge"),))
    # It exits with 1 after telling its version, whatever is asked with it.
    usage, _ = _ask(["qstat", "-help"], timeout, codes=(0, 1))
    first = usage.out.splitlines()[0].split() if usage and usage.out.strip() else []
    names = [line.split()[0] for line in queues.out.splitlines()[2:] if line.split()]
    notes = ("queues %s" % ", ".join(names),) if names else ()
    return Presence(first[-1] if first else "", places, notes=notes)


def _look_at_htcondor(timeout: float) -> Presence:
    config = os.environ.get("CONDOR_CONFIG", "")
    found = ("CONDOR_CONFIG=%s" % config,) if config else ()
    reply, why = _ask([sys.executable, "-c", _ASK_HTCONDOR], timeout, codes=(0, 1))
    if reply is None:
        return Presence(found=found, problems=("the schedd does not answer (%s): try again later" % why,))
    told = _read(reply.out) or _read(reply.err)
    if told is None:
        return Presence(found=found, problems=("htcondor2 cannot be used: %s" % reply.complaint,))
    version, why = told.get("version", ""), told.get("why", "")
    if told.get("problem") == "import":
        return Presence(found=found, problems=("htcondor2 cannot be imported: %s" % why,))
    if told.get("problem"):
        return Presence(version, found, (_useless("no schedd answers", why, "htcondor"),))
    notes = ["access point %s" % told["name"]] if told.get("name") else []
    for kind, limit in told.get("limits", {}).items():
        if isinstance(limit, (int, float)) and limit >= 0:
            notes.append("a job may carry at most %g MB of %s" % (limit, kind.lower()))
    return Presence(version, found, notes=tuple(notes))


_LOOKS = {
    "local": lambda timeout: Presence(),
    "slurm": _look_at_slurm,
    "sge": _look_at_sge,
    "htcondor": _look_at_htcondor,
}


def _useless(what: str, why: str, scheduler: str) -> str:
    return "%s (%s): %s" % (what, why, _REMEDIES[scheduler])


def _ask(
    arguments: list[str], timeout: float, codes: Iterable[int] = (0,), given: str = ""
) -> tuple[CommandOutput | None, str]:
    """The reply; or None and, in a few words, why there is none that says anything."""
    try:
        reply = call(arguments, timeout, given)
    except (CommandNotRun, CommandTimeout) as error:
        return None, str(error)
    if reply.code in codes:
        return reply, ""
    # These programs complain on several lines, of which the last says what it comes to.
    last = (reply.err.strip() or reply.out.strip()).splitlines()[-1:]
    return None, " ".join(last[0].split())[:200] if last else reply.complaint


def _read(text: str) -> dict[str, Any] | None:
    """The last line, as JSON; importing may have printed others before."""
    try:
        told = json.loads(text.strip().splitlines()[-1])
    except (ValueError, IndexError):
        return None
    return told if isinstance(told, dict) else None


def _paths(programs: Iterable[str]) -> tuple[str, ...]:
    return tuple(path for path in map(shutil.which, programs) if path)


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else "%s and %s" % (", ".join(words[:-1]), words[-1])
