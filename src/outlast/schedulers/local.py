"""This machine as a cluster: the adapter to the daemon in `outlast.local_cluster`."""

from __future__ import annotations

import json
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
    JobRequest,
    JobView,
    Patience,
    Scheduler,
    SchedulerUnavailable,
    Sought,
    Submission,
    SubmitAnswer,
)

__all__ = ["DaemonOptions", "Host", "LocalScheduler"]

#: Jobs in one request: far below the largest message, and an answer within a fraction of a second.
_BATCH = 2000
_LONGEST_WAIT = 60.0


class LocalScheduler(Scheduler):
    """One local cluster, seen by one experiment (`group`)."""

    interval = 1.0
    hears = True

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
        self._offer = dict(hosts) if hosts else this_machine()
        self._client = Client(cluster_directory(name, root), options)
        self._seen = ""

    def render(self, requests: Sequence[JobRequest]) -> str:
        sent = json.dumps(self._submission(requests), indent=2)
        table = "\n".join(
            "  %-20s %3d cpus %3d gpus" % (name, host.cpus, host.gpus) for name, host in self._offer.items()
        )
        return "%s\nhosts of local cluster %s:\n%s" % (sent, self.name, table)

    def submit(self, requests: Sequence[JobRequest]) -> Mapping[str, Submission]:
        answers: dict[str, Submission] = {}
        for begin in range(0, len(requests), _BATCH):
            batch = requests[begin : begin + _BATCH]
            answers.update(self._submit_batch(batch))
        return answers

    def _submit_batch(self, batch: Sequence[JobRequest]) -> dict[str, Submission]:
        try:
            reply = self._client.ask("submit", self.timeout, **self._submission(batch))
            told = list(reply["answers"])
        except NotSent as error:
            one = Submission(SubmitAnswer.REJECTED, reason=str(error), transient=True)
        except Refused as error:
            one = Submission(SubmitAnswer.REJECTED, reason=str(error), transient=error.transient)
        except BadMessage as error:
            one = Submission(SubmitAnswer.REJECTED, reason=str(error))
        except (NoResponse, KeyError, TypeError) as error:
            one = Submission(SubmitAnswer.UNKNOWN, reason=str(error))
        else:
            return {request.token: _answer(raw) for request, raw in zip(batch, told, strict=True)}
        return {request.token: one for request in batch}

    def _submission(self, batch: Sequence[JobRequest]) -> dict[str, Any]:
        return {
            "group": self.group,
            "code": code_fingerprint(),
            "hosts": hosts_to_json(self._offer),
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

    def poll(self, sought: Sequence[Sought] = ()) -> Mapping[str, JobView]:
        reply = self._ask("poll", group=self.group)
        self._seen = reply["version"]
        return {raw["token"]: _view(raw) for raw in reply["jobs"]}

    def cancel(self, views: Sequence[JobView]) -> None:
        self._ask("cancel", tokens=[view.token for view in views])

    def kill(self, token: str) -> None:
        """End a running job at once and without warning, as a node that dies does."""
        self._ask("kill", tokens=[token])

    def evict(self, token: str) -> None:
        """Ask a running job to leave, and end it when its grace is over, as a busy cluster does."""
        self._ask("evict", tokens=[token])

    def forget(self, tokens: Sequence[str]) -> None:
        if tokens:
            try:
                self._ask("forget", tokens=list(tokens))
            except SchedulerUnavailable:
                return  # best effort: the daemon forgets them by itself after a day

    def wait(self, seconds: float) -> None:
        """Until something happened to this group's jobs since the last poll, `seconds` at the longest."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            pause = min(left, _LONGEST_WAIT)
            try:
                reply = self._client.ask(
                    "wait",
                    pause + self.timeout,
                    start=False,
                    group=self.group,
                    since=self._seen,
                    seconds=pause,
                )
            except (NotSent, NoResponse, Refused):
                # No daemon, nothing to hear: the next poll starts one, or says that it cannot.
                time.sleep(max(0.0, min(until - time.monotonic(), self.interval)))
                return
            if reply.get("version") != self._seen:
                return

    def stop(self, force: bool = False) -> None:
        """End the daemon. With jobs queued or running it refuses, unless they may be killed."""
        try:
            self._client.ask("stop", self.timeout, start=False, force=force)
        except NotSent:
            return  # it is not running
        except Refused as error:
            raise BadInput(
                "local cluster %s: %s; cancel them first, or stop it by force" % (self.name, error)
            ) from error
        except NoResponse as error:
            raise SchedulerUnavailable("local cluster %s: %s" % (self.name, error)) from error

    def hosts(self) -> Sequence[str]:
        return tuple(self._offer)

    def daemon_pid(self) -> int:
        """The daemon's process id; it is started if it was not there."""
        return int(self._ask("hello", hosts=hosts_to_json(self._offer))["pid"])

    def _ask(self, operation: str, **arguments: Any) -> dict[str, Any]:
        try:
            return self._client.ask(operation, self.timeout, **arguments)
        except (NotSent, NoResponse, Refused) as error:
            raise SchedulerUnavailable("local cluster %s: %s" % (self.name, error)) from error


def _view(raw: dict[str, Any]) -> JobView:
    told = {key: value for key, value in raw.items() if key != "over_time"}
    outcome = Outcome.OVER_TIME if raw.get("over_time") else None
    return JobView(**{**told, "phase": JobPhase(raw["phase"]), "outcome": outcome})


def _answer(raw: dict[str, Any]) -> Submission:
    if "job" in raw:
        return Submission(SubmitAnswer.ACCEPTED, job=raw["job"])
    return Submission(SubmitAnswer.REJECTED, reason=raw["rejected"])
