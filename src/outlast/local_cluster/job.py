"""One job as the daemon knows it, and how it is written down and told."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from outlast.local_cluster.hosts import Need


class JobState(Enum):
    QUEUED = "queued"
    RUNNING = "running"
    ENDED = "ended"


class JobEnding(Enum):
    """Why the cluster itself is ending a job; the value is the sentence people read."""

    CANCELLED = "cancelled"
    EVICTED = "evicted"
    KILLED = "killed without warning"
    OVER_TIME = "reached its wall-time limit"
    STOPPED = "the local cluster was stopped by force"


_KINDS: dict[str, tuple[type, ...]] = {
    "token": (str,),
    "name": (str,),
    "order": (str,),
    "log": (str,),
    "cpus": (int,),
    "gpus": (int,),
    "time": (int, float),
    "grace": (int, float),
}


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked for."""

    token: str
    name: str
    order: str
    log: str
    time: float
    grace: float
    need: Need

    @classmethod
    def from_json(cls, raw: Any) -> Request:
        if not isinstance(raw, dict):
            raise ValueError("a job must be a table of its properties")
        for key, kinds in _KINDS.items():
            if not isinstance(raw.get(key), kinds) or isinstance(raw[key], bool):
                raise ValueError("%s is missing or of the wrong type" % key)
        for key in ("token", "order", "log"):
            if not raw[key] or "\0" in raw[key]:
                raise ValueError("%s is empty or holds a zero byte" % key)
        if not raw["time"] > 0 or raw["grace"] < 0:
            raise ValueError("the wall-time limit must be above 0 and the grace not below it")
        avoid = raw.get("avoid", [])
        if not isinstance(avoid, list) or not all(isinstance(name, str) for name in avoid):
            raise ValueError("avoid must be a list of host names")
        need = Need(max(1, raw["cpus"]), max(0, raw["gpus"]), frozenset(avoid))
        return cls(
            token=raw["token"],
            name=raw["name"],
            order=raw["order"],
            log=raw["log"],
            time=float(raw["time"]),
            grace=float(raw["grace"]),
            need=need,
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "token": self.token,
            "name": self.name,
            "order": self.order,
            "log": self.log,
            "cpus": self.need.cpus,
            "gpus": self.need.gpus,
            "time": self.time,
            "grace": self.grace,
            "avoid": sorted(self.need.avoid),
        }

    @property
    def warning_after(self) -> float:
        """Seconds after the start at which the node program is told, in a short job at three quarters."""
        return self.time - min(self.grace, 0.25 * self.time)


@dataclass(slots=True)
class LocalJob:
    id: int
    group: str
    request: Request
    #: Names the environment it was submitted with.
    environment: str
    submitted: float
    phase: JobState = JobState.QUEUED
    host: str = ""
    gpus: tuple[int, ...] = ()
    pid: int = 0
    #: With the pid, the identity of the process; see `processes.start_ticks`.
    ticks: int = 0
    boot: str = ""
    started: float | None = None
    started_monotonic: float = 0.0
    ended: float | None = None
    elapsed: float | None = None
    exit_code: int | None = None
    signal: int | None = None
    reason: str = ""
    ending: JobEnding | None = None
    #: Not our child: it was started by a daemon before this one.
    adopted: bool = False
    #: When it was first passed over by a later job (monotonic); None if never.
    passed_over: float | None = None

    def view(self, monotonic: float) -> dict[str, Any]:
        """What a poll tells; absent keys have their usual value."""
        told: dict[str, Any] = {
            "token": self.request.token,
            "job": str(self.id),
            "phase": self.phase.value,
        }
        if self.phase is JobState.QUEUED:
            return told
        elapsed = monotonic - self.started_monotonic if self.phase is JobState.RUNNING else self.elapsed
        told.update(host=self.host, started=self.started, elapsed=elapsed)
        reason = self.reason or (self.ending.value if self.ending else "")
        for key, value in (
            ("ended", self.ended),
            ("exit_code", self.exit_code),
            ("signal", self.signal),
            ("reason", reason or None),
        ):
            if value is not None:
                told[key] = value
        if self.phase is JobState.ENDED and self.ending is JobEnding.OVER_TIME:
            told["over_time"] = True
        return told

    def submit_record(self) -> dict[str, Any]:
        return {
            "event": "submit",
            "id": self.id,
            "group": self.group,
            "environment": self.environment,
            "at": self.submitted,
            "request": self.request.to_json(),
        }

    def start_record(self) -> dict[str, Any]:
        return {
            "event": "start",
            "id": self.id,
            "host": self.host,
            "gpus": list(self.gpus),
            "pid": self.pid,
            "ticks": self.ticks,
            "boot": self.boot,
            "at": self.started,
            "monotonic": self.started_monotonic,
        }

    def ending_record(self) -> dict[str, Any]:
        return {"event": "ending", "id": self.id, "why": self.ending.name if self.ending else None}

    def end_record(self) -> dict[str, Any]:
        return {
            "event": "end",
            "id": self.id,
            "at": self.ended,
            "elapsed": self.elapsed,
            "exit_code": self.exit_code,
            "signal": self.signal,
            "reason": self.reason,
            "why": self.ending.name if self.ending else None,
        }

    def records(self) -> list[dict[str, Any]]:
        """Everything there is to write down about it."""
        written = [self.submit_record()]
        if self.started is not None:
            written.append(self.start_record())
        if self.phase is JobState.ENDED:
            written.append(self.end_record())
        elif self.ending is not None:
            written.append(self.ending_record())
        return written

    def apply(self, record: dict[str, Any]) -> None:
        """Take over what one line of the book says."""
        event = record["event"]
        if event == "start":
            self.phase = JobState.RUNNING
            self.host, self.gpus = record["host"], tuple(record["gpus"])
            self.pid, self.ticks, self.boot = record["pid"], record["ticks"], record["boot"]
            self.started, self.started_monotonic = record["at"], record["monotonic"]
        elif event in ("ending", "end"):
            self.ending = JobEnding[record["why"]] if record["why"] else None
        if event == "end":
            self.phase = JobState.ENDED
            self.ended, self.elapsed = record["at"], record["elapsed"]
            self.exit_code, self.signal = record["exit_code"], record["signal"]
            self.reason = record["reason"]


def job_from_record(record: dict[str, Any]) -> LocalJob:
    return LocalJob(
        id=record["id"],
        group=record["group"],
        request=Request.from_json(record["request"]),
        environment=record["environment"],
        submitted=record["at"],
    )
