"""One request to HTCondor's daemons in a process of its own: JSON request on stdin, JSON response on stdout.

While `htcondor2` waits for a daemon that does not respond (20 seconds and more), no other thread of its
process runs and no signal is handled. A process can be killed at its timeout.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import htcondor2

#: The attributes of a job to return, from the queue as well as from the history.
ATTRIBUTES = [
    "OutlastToken",
    "ClusterId",
    "ProcId",
    "JobStatus",
    "UserLog",
    "QDate",
    "NumShadowStarts",
    "JobCurrentStartExecutingDate",
    "EnteredCurrentStatus",
    "CompletionDate",
    "RemoteWallClockTime",
    "ExitBySignal",
    "ExitCode",
    "ExitSignal",
    "HoldReason",
    "HoldReasonCode",
    "HoldReasonSubCode",
    "RemoveReason",
    "LastRejMatchReason",
    "LastRejMatchTime",
    "LastRemoteHost",
    "RemoteHost",
    "MachineAttrGLIDEIN_ResourceName0",
    "MachineAttrMachine0",
    "MemoryUsage",
    "RequestCpus",
    "RequestGPUs",
    "RequestMemory",
    "RequestDisk",
]
#: The attributes of a slot to return. Totals include what was split off for running jobs.
SLOT_ATTRIBUTES = [
    "GLIDEIN_ResourceName",
    "Machine",
    "TotalSlotCpus",
    "TotalSlotMemory",
    "TotalSlotDisk",
    "TotalSlotGPUs",
]

#: The error of a description that cannot be read; no daemon was contacted.
_BAD_DESCRIPTION = "Failed to create job ad"
#: `JobStatus` of a pending job. Not imported from `states`: this process must start fast.
IDLE = 1


def submit(request: Mapping[str, Any]) -> dict[str, Any]:
    """Submit one cluster of jobs for each submission, without the tokens that are in the queue already.

    Return job ids, reasons of refusal, and errors that leave a token's state unknown, each by token.
    """
    schedd = htcondor2.Schedd()
    jobs = _jobs_by_token(schedd, request["group"])
    refused: dict[str, str] = {}
    unsure: dict[str, str] = {}
    for submission in request["submissions"]:
        items = [item for item in submission["items"] if item["the_token"] not in jobs]
        if not items:
            continue
        tokens = [item["the_token"] for item in items]
        try:
            sent = schedd.submit(htcondor2.Submit(submission["description"]), itemdata=iter(items))
        except (htcondor2.HTCondorException, ValueError) as error:
            if isinstance(error, ValueError) or _BAD_DESCRIPTION in str(error):
                refused.update((token, _shorten(error)) for token in tokens)
                continue
            # It may have failed after the jobs were queued. If that is not visible now, the next poll does.
            with contextlib.suppress(htcondor2.HTCondorException):
                jobs.update(_jobs_by_token(schedd, request["group"]))
            unsure.update((token, _shorten(error)) for token in tokens if token not in jobs)
        else:
            first = sent.first_proc()
            jobs.update((token, "%d.%d" % (sent.cluster(), first + at)) for at, token in enumerate(tokens))
    return {"jobs": jobs, "refused": refused, "unsure": unsure}


def _shorten(error: Exception) -> str:
    """Return the message without the prefix that all errors share."""
    if isinstance(error, ValueError):
        return "a line of the submit description cannot be read; check `directives` in the profile"
    return " ".join(str(error).split()).partition("Submit:-1:")[2] or " ".join(str(error).split())


def poll(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ads of the group's jobs in the queue, and of the other `tokens` in the history."""
    schedd = htcondor2.Schedd()
    queue = schedd.query(_in_group(request["group"]), ATTRIBUTES)
    listed = {ad.get("OutlastToken") for ad in queue}
    gone = [token for token in request["tokens"] if token not in listed]
    history: Iterable[Any] = ()
    if gone:
        # Newest first, back to the time when the oldest of them was submitted.
        constraint = "%s && %s" % (_in_group(request["group"]), one_of("OutlastToken", gone))
        until = "CompletionDate > 0 && CompletionDate < %d" % request["since"]
        # The ads of the queue are valid without the history.
        with contextlib.suppress(htcondor2.HTCondorException, OSError):
            history = list(schedd.history(constraint, ATTRIBUTES, match=len(gone), since=until))
    response = {"queue": _to_json(queue), "history": _to_json(history)}
    if request["offer"] and any(ad.get("JobStatus") == IDLE for ad in queue):
        # Needed only to explain why jobs are pending.
        with contextlib.suppress(htcondor2.HTCondorException):
            response.update(offer(request))
    return response


def offer(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the pool's slots. Dynamic slots are parts of others and are left out."""
    undivided = 'SlotType =!= "Dynamic"'
    slots = htcondor2.Collector().query(htcondor2.AdType.Slot, undivided, SLOT_ATTRIBUTES)
    return {"offer": _to_json(slots)}


def spool(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the path of HTCondor's spool directory on this access point."""
    return {"spool": htcondor2.param["SPOOL"]}


def act(request: Mapping[str, Any]) -> dict[str, Any]:
    """Remove or release jobs; return the number of those for which permission was denied."""
    constraint = "%s && %s" % (_in_group(request["group"]), one_of("OutlastToken", request["tokens"]))
    action = htcondor2.JobAction.Remove if request["action"] == "remove" else htcondor2.JobAction.Release
    if action == htcondor2.JobAction.Release:
        constraint += " && JobStatus == 5"
    done = htcondor2.Schedd().act(action, constraint, (request["reason"], 0))
    return {"refused": int(done["TotalPermissionDenied"]) if done is not None else 0}


def one_of(attribute: str, values: Iterable[str]) -> str:
    """Return the ClassAd expression for an attribute that is one of these values."""
    return "member(%s, {%s})" % (attribute, ", ".join(json.dumps(value) for value in values))


def _in_group(group: str) -> str:
    return "OutlastGroup == %s" % json.dumps(group)


def _jobs_by_token(schedd: Any, group: str) -> dict[str, str]:
    found = schedd.query(_in_group(group), ["OutlastToken", "ClusterId", "ProcId"])
    return {ad["OutlastToken"]: "%d.%d" % (ad["ClusterId"], ad["ProcId"]) for ad in found}


def _to_json(ads: Iterable[Any]) -> list[dict[str, Any]]:
    """Return the ads as JSON, without attributes whose value is an error or undefined."""
    return [
        {key: value for key, value in _values(ad) if isinstance(value, (str, int, float, bool))} for ad in ads
    ]


def _values(ad: Any) -> Iterable[tuple[str, Any]]:
    return ((key, ad.eval(key)) for key in ad)


OPERATIONS: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "submit": submit,
    "poll": poll,
    "offer": offer,
    "spool": spool,
    "act": act,
}


def main() -> None:
    """Handle the request on stdin."""
    request = json.load(sys.stdin)
    try:
        response = OPERATIONS[request["do"]](request)
    except (htcondor2.HTCondorException, OSError, RuntimeError) as error:
        response = {"trouble": "%s" % error}
    json.dump(response, sys.stdout)


if __name__ == "__main__":
    main()
