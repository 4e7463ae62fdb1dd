"""The adapter to the local cluster, whose daemon is in `outlast.local_cluster`."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from outlast.errors import BadInput
from outlast.job_environment import filter_environment
from outlast.local_cluster.client import (
    Client,
    DaemonOptions,
    NoResponse,
    NotSent,
    Refused,
)
from outlast.local_cluster.directory import cluster_directory
from outlast.local_cluster.fingerprint import code_fingerprint
from outlast.local_cluster.hosts import Host, hosts_to_json, this_machine
from outlast.local_cluster.messages import BadMessage
from outlast.node.protocol import Outcome
from outlast.schedulers.base import (
    JobPhase,
    JobRef,
    JobRequest,
    JobView,
    Patience,
    Scheduler,
    SchedulerUnavailable,
    Submission,
    SubmitStatus,
)

__all__ = ["DaemonOptions", "Host", "LocalScheduler"]

#: Jobs in one request: far below the largest message, and handled within a fraction of a second.
_BATCH = 2000
_LONGEST_WAIT = 60.0
#: What a response raises that is none of our daemon's, and what is reported then.
_INVALID = (KeyError, TypeError, ValueError, AttributeError)
_INVALID_RESPONSE = "the local cluster's daemon sent an invalid response; is it another program?"
#: The types of what a poll reports of a job.
_VIEW_TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("token", "job", "phase", "host", "reason"), (str,)),
    **dict.fromkeys(("started", "elapsed", "ended"), (int, float, type(None))),
    **dict.fromkeys(("exit_code", "signal"), (int,)),
    "over_time": (bool,),
}


class LocalScheduler(Scheduler):
    """The adapter to one local cluster, for one experiment (`group`)."""

    interval = 1.0
    wakes_on_change = True

    def __init__(
        self,
        group: str,
        *,
        name: str = "local",
        hosts: Mapping[str, Host] | None = None,
        root: Path | None = None,
        timeout: float = 10.0,
        patience: Patience = Patience(missing=3.0, heartbeat=40.0, pause=0.5, longest_pause=60.0),  # noqa: B008
        options: DaemonOptions = DaemonOptions(),  # noqa: B008
    ) -> None:
        self.group = group
        self.name = name
        self.patience = patience
        self.timeout = timeout
        self._hosts = dict(hosts) if hosts else this_machine()
        self._client = Client(cluster_directory(name, root), options)
        #: The version of the job list at the last poll.
        self._version = ""

    def render(self, requests: Sequence[JobRequest]) -> str:
        message = json.dumps(self._submission(requests), indent=2)
        table = "\n".join(
            "  %-20s %3d cpus %3d gpus" % (name, host.cpus, host.gpus) for name, host in self._hosts.items()
        )
        return "%s\nhosts of local cluster %s:\n%s" % (message, self.name, table)

    def submit(self, requests: Sequence[JobRequest]) -> Mapping[str, Submission]:
        results: dict[str, Submission] = {}
        for begin in range(0, len(requests), _BATCH):
            batch = requests[begin : begin + _BATCH]
            results.update(self._submit_batch(batch))
        return results

    def _submit_batch(self, batch: Sequence[JobRequest]) -> dict[str, Submission]:
        try:
            reply = self._client.ask("submit", self.timeout, **self._submission(batch))
            parsed = [_parse_result(raw) for raw in reply["answers"]]
            return {request.token: one for request, one in zip(batch, parsed, strict=True)}
        except NotSent as error:
            result = Submission(SubmitStatus.REJECTED, reason=str(error), transient=True)
        except Refused as error:
            result = Submission(SubmitStatus.REJECTED, reason=str(error), transient=error.transient)
        except BadMessage as error:
            result = Submission(SubmitStatus.REJECTED, reason=str(error))
        except NoResponse as error:
            result = Submission(SubmitStatus.UNKNOWN, reason=str(error))
        except _INVALID:
            result = Submission(SubmitStatus.UNKNOWN, reason=_INVALID_RESPONSE)
        return {request.token: result for request in batch}

    def _submission(self, batch: Sequence[JobRequest]) -> dict[str, Any]:
        return {
            "group": self.group,
            "code": code_fingerprint(),
            "hosts": hosts_to_json(self._hosts),
            "environment": filter_environment(os.environ),
            "requests": [
                {
                    "token": request.token,
                    "name": request.name,
                    "order": request.order,
                    "log": request.log,
                    "cpus": request.cpus,
                    "gpus": request.gpus,
                    "time": request.time,
                    "grace": request.grace,
                    "avoid": list(request.avoid),
                }
                for request in batch
            ],
        }

    def poll(self, expected: Sequence[JobRef] = ()) -> Mapping[str, JobView]:
        reply = self._request("poll", group=self.group)
        try:
            views = [_parse_view(raw) for raw in reply["jobs"]]
            self._version = str(reply["version"])
        except _INVALID as error:
            raise SchedulerUnavailable("local cluster %s: %s" % (self.name, _INVALID_RESPONSE)) from error
        return {view.token: view for view in views}

    def cancel(self, views: Sequence[JobView]) -> None:
        self._request("cancel", tokens=[view.token for view in views])

    def kill(self, token: str) -> None:
        """Kill a running job at once and without warning, like a node that dies."""
        self._request("kill", tokens=[token])

    def evict(self, token: str) -> None:
        """Evict a running job like a busy cluster: signal it, and kill it after its grace time."""
        self._request("evict", tokens=[token])

    def forget(self, tokens: Sequence[str]) -> None:
        if tokens:
            try:
                self._request("forget", tokens=list(tokens))
            except SchedulerUnavailable:
                return  # best effort: the daemon drops them by itself after a day

    def wait(self, seconds: float) -> None:
        """Wait until a job of this group changed since the last poll, for at most `seconds`."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            pause = min(left, _LONGEST_WAIT)
            try:
                reply = self._client.ask(
                    "wait",
                    pause + self.timeout,
                    start=False,
                    group=self.group,
                    since=self._version,
                    seconds=pause,
                )
            except (NotSent, NoResponse, Refused):
                # There is no daemon to wait for: the next poll starts one, or raises.
                time.sleep(max(0.0, min(until - time.monotonic(), self.interval)))
                return
            if reply.get("version") != self._version:
                return

    def stop(self, force: bool = False) -> None:
        """Stop the daemon. Raises BadInput if jobs are queued or running, unless `force` kills them."""
        try:
            self._client.ask("stop", self.timeout, start=False, force=force)
        except NotSent:
            return  # it is not running
        except Refused as error:
            raise BadInput(
                "local cluster %s: %s; type `outlast cancel` first, or use --force" % (self.name, error)
            ) from error
        except NoResponse as error:
            raise SchedulerUnavailable("local cluster %s: %s" % (self.name, error)) from error

    def hosts(self) -> Sequence[str]:
        return tuple(self._hosts)

    def daemon_pid(self) -> int:
        """Return the daemon's process id; the daemon is started if it is not running."""
        pid = self._request("hello", hosts=hosts_to_json(self._hosts)).get("pid")
        if not isinstance(pid, int):
            raise SchedulerUnavailable("local cluster %s: %s" % (self.name, _INVALID_RESPONSE))
        return pid

    def _request(self, operation: str, **arguments: Any) -> dict[str, Any]:
        try:
            return self._client.ask(operation, self.timeout, **arguments)
        except (NotSent, NoResponse, Refused) as error:
            raise SchedulerUnavailable("local cluster %s: %s" % (self.name, error)) from error


def _parse_view(raw: dict[str, Any]) -> JobView:
    """Return a job as the daemon reports it. Raise one of `_INVALID` if it is none."""
    facts = {key: _typed(value, _VIEW_TYPES[key]) for key, value in raw.items()}
    outcome = Outcome.OVER_TIME if facts.pop("over_time", False) else None
    return JobView(**{**facts, "phase": JobPhase(raw["phase"]), "outcome": outcome})


def _parse_result(raw: dict[str, Any]) -> Submission:
    if "job" in raw:
        return Submission(SubmitStatus.ACCEPTED, job=_typed(raw["job"], (str,)))
    return Submission(SubmitStatus.REJECTED, reason=_typed(raw["rejected"], (str,)))


def _typed(value: Any, kinds: tuple[type, ...]) -> Any:
    """Return the value. Raise TypeError if it has another type, or is a number that no clock shows."""
    is_other = not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds)
    if is_other or (isinstance(value, float) and not math.isfinite(value)):
        raise TypeError("a wrong type")
    return value
