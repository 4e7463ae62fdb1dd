"""A job of the local cluster: its request, its state, and its records on disk."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from outlast.local_cluster.hosts import Need
from outlast.node.time_limits import stop_margin


class JobState(Enum):
    QUEUED = "queued"
    RUNNING = "running"
    ENDED = "ended"


class JobEnding(Enum):
    """Why the cluster itself ends a job; the value is the text that users see."""

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
    """The request for a job, as the client sends it."""

    token: str
    name: str
    order: str
    log: str
    time: float
    grace: float
    need: Need

    @classmethod
    def from_json(cls, raw: Any) -> Request:
        """Return a validated request. Raises ValueError."""
        if not isinstance(raw, dict):
            raise ValueError("a job must be a JSON object")
        for key, kinds in _KINDS.items():
            if not isinstance(raw.get(key), kinds) or isinstance(raw[key], bool):
                raise ValueError("%s is missing or of the wrong type" % key)
        for key in ("token", "order", "log"):
            if not raw[key] or "\0" in raw[key]:
                raise ValueError("%s is empty or contains a zero byte" % key)
        if not raw["time"] > 0 or raw["grace"] < 0:
            raise ValueError("the wall-time limit must be above 0, and the grace must not be negative")
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
        """Seconds from the start to the warning: a grace before the limit, at most a quarter of the time."""
        return self.time - stop_margin(self.time, self.grace)


@dataclass(slots=True)
class LocalJob:
    """The daemon's view of one job."""

    id: int
    group: str
    request: Request
    #: The key of the environment with which it was submitted.
    environment: str
    submitted: float
    phase: JobState = JobState.QUEUED
    host: str = ""
    gpus: tuple[int, ...] = ()
    pid: int = 0
    #: Identifies the process together with the pid; see `processes.start_ticks`.
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
    #: Started by an earlier daemon, so not a child of this one.
    adopted: bool = False
    #: When a later job first started before it (monotonic clock); None if never.
    passed_over: float | None = None

    def view(self, monotonic: float) -> dict[str, Any]:
        """Return the job as a poll reports it; keys with default values are left out."""
        reported: dict[str, Any] = {
            "token": self.request.token,
            "job": str(self.id),
            "phase": self.phase.value,
        }
        if self.phase is JobState.QUEUED:
            return reported
        elapsed = monotonic - self.started_monotonic if self.phase is JobState.RUNNING else self.elapsed
        reported.update(host=self.host, started=self.started, elapsed=elapsed)
        reason = self.reason or (self.ending.value if self.ending else "")
        for key, value in (
            ("ended", self.ended),
            ("exit_code", self.exit_code),
            ("signal", self.signal),
            ("reason", reason or None),
        ):
            if value is not None:
                reported[key] = value
        if self.phase is JobState.ENDED and self.ending is JobEnding.OVER_TIME:
            reported["over_time"] = True
        return reported

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
        """Return all records that restore the job from the log."""
        written = [self.submit_record()]
        if self.started is not None:
            written.append(self.start_record())
        if self.phase is JobState.ENDED:
            written.append(self.end_record())
        elif self.ending is not None:
            written.append(self.ending_record())
        return written

    def apply(self, record: dict[str, Any]) -> None:
        """Update the job from one record of the log."""
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
    """Return the queued job of a "submit" record."""
    return LocalJob(
        id=record["id"],
        group=record["group"],
        request=Request.from_json(record["request"]),
        environment=record["environment"],
        submitted=record["at"],
    )
