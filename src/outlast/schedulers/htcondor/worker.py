"""One question to HTCondor's daemons, asked in a process of its own: JSON in on stdin, JSON out on stdout.

While `htcondor2` waits for a daemon that does not answer (20 seconds and more), no other thread of its
process runs and no signal is seen to. A process can be ended when its time is over; that bounds the wait.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import htcondor2

#: What is told of each job, in the queue as afterwards.
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
#: What a slot offers, whether it is whole or the rest of one that is divided.
OFFER = [
    "GLIDEIN_ResourceName",
    "Machine",
    "TotalSlotCpus",
    "TotalSlotMemory",
    "TotalSlotDisk",
    "TotalSlotGPUs",
]


#: How a complaint begins that no daemon was needed for.
_BAD_DESCRIPTION = "Failed to create job ad"
#: `JobStatus` of a job that waits.
IDLE = 1


def submit(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Send what is not there already, one cluster of jobs for each submission."""
    schedd = htcondor2.Schedd()
    jobs = _jobs_by_token(schedd, asked["group"])
    refused: dict[str, str] = {}
    unsure: dict[str, str] = {}
    for submission in asked["submissions"]:
        items = [item for item in submission["items"] if item["the_token"] not in jobs]
        if not items:
            continue
        tokens = [item["the_token"] for item in items]
        try:
            sent = schedd.submit(htcondor2.Submit(submission["description"]), itemdata=iter(items))
        except (htcondor2.HTCondorException, ValueError) as error:
            if isinstance(error, ValueError) or _BAD_DESCRIPTION in str(error):
                refused.update((token, _in_short(error)) for token in tokens)
                continue
            # It may have failed after the jobs were in. What cannot be seen now, the next poll sees.
            with contextlib.suppress(htcondor2.HTCondorException):
                jobs.update(_jobs_by_token(schedd, asked["group"]))
            unsure.update((token, _in_short(error)) for token in tokens if token not in jobs)
        else:
            first = sent.first_proc()
            jobs.update((token, "%d.%d" % (sent.cluster(), first + at)) for at, token in enumerate(tokens))
    return {"jobs": jobs, "refused": refused, "unsure": unsure}


def _in_short(error: Exception) -> str:
    """Without the part that is the same for all."""
    if isinstance(error, ValueError):
        return "a line of the submit description cannot be read; look at `directives` in the profile"
    return " ".join(str(error).split()).partition("Submit:-1:")[2] or " ".join(str(error).split())


def poll(asked: Mapping[str, Any]) -> dict[str, Any]:
    """The group's jobs in the queue; and of `tokens`, those that are no longer there, from the history."""
    schedd = htcondor2.Schedd()
    queue = schedd.query(_of_group(asked["group"]), ATTRIBUTES)
    listed = {ad.get("OutlastToken") for ad in queue}
    gone = [token for token in asked["tokens"] if token not in listed]
    history: Iterable[Any] = ()
    if gone:
        # Newest first, and not past the time at which the oldest of them was submitted.
        constraint = "%s && %s" % (_of_group(asked["group"]), one_of("OutlastToken", gone))
        until = "CompletionDate > 0 && CompletionDate < %d" % asked["since"]
        # The queue's word counts without it.
        with contextlib.suppress(htcondor2.HTCondorException, OSError):
            history = list(schedd.history(constraint, ATTRIBUTES, match=len(gone), since=until))
    told = {"queue": _plain(queue), "history": _plain(history)}
    if asked["offer"] and any(ad.get("JobStatus") == IDLE for ad in queue):
        # Only to say why jobs wait.
        with contextlib.suppress(htcondor2.HTCondorException):
            told.update(offer(asked))
    return told


def offer(asked: Mapping[str, Any]) -> dict[str, Any]:
    """The pool's slots; what jobs have cut out of them is part of the whole."""
    whole = 'SlotType =!= "Dynamic"'
    return {"offer": _plain(htcondor2.Collector().query(htcondor2.AdType.Slot, whole, OFFER))}


def act(asked: Mapping[str, Any]) -> dict[str, Any]:
    constraint = "%s && %s" % (_of_group(asked["group"]), one_of("OutlastToken", asked["tokens"]))
    action = htcondor2.JobAction.Remove if asked["action"] == "remove" else htcondor2.JobAction.Release
    if action == htcondor2.JobAction.Release:
        constraint += " && JobStatus == 5"
    done = htcondor2.Schedd().act(action, constraint, (asked["reason"], 0))
    return {"refused": int(done["TotalPermissionDenied"]) if done is not None else 0}


def one_of(attribute: str, values: Iterable[str]) -> str:
    return "member(%s, {%s})" % (attribute, ", ".join(json.dumps(value) for value in values))


def _of_group(group: str) -> str:
    return "OutlastGroup == %s" % json.dumps(group)


def _jobs_by_token(schedd: Any, group: str) -> dict[str, str]:
    found = schedd.query(_of_group(group), ["OutlastToken", "ClusterId", "ProcId"])
    return {ad["OutlastToken"]: "%d.%d" % (ad["ClusterId"], ad["ProcId"]) for ad in found}


def _plain(ads: Iterable[Any]) -> list[dict[str, Any]]:
    """What JSON can hold; an attribute whose value is an error or undefined says nothing."""
    return [
        {key: value for key, value in _values(ad) if isinstance(value, (str, int, float, bool))} for ad in ads
    ]


def _values(ad: Any) -> Iterable[tuple[str, Any]]:
    return ((key, ad.eval(key)) for key in ad)


OPERATIONS: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "submit": submit,
    "poll": poll,
    "offer": offer,
    "act": act,
}


def main() -> None:
    asked = json.load(sys.stdin)
    try:
        answer = OPERATIONS[asked["do"]](asked)
    except (htcondor2.HTCondorException, OSError, RuntimeError) as error:
        answer = {"trouble": "%s" % error}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
