"""The daemon's job log on disk: one JSON line per event, so that no job is lost when the daemon is killed.

A submission is synced to disk before the daemon replies. Starts and ends are only written: they survive the
daemon's death, and after a crash of the machine no job is running anyway.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from outlast.filesystem import sync_directory
from outlast.local_cluster.hosts import Host, hosts_from_json, hosts_to_json
from outlast.local_cluster.job import JobState, LocalJob, job_from_record

#: How long an ended job is kept if no client asks the daemon to forget it.
REMEMBER_SECONDS = 24 * 3600.0
#: The log is rewritten when it has grown by this much (and doubled) since the last time.
REWRITE_BYTES = 32 * 1024 * 1024


@dataclass
class JobLogState:
    """The state of the daemon that survives a restart."""

    jobs: dict[int, LocalJob] = field(default_factory=dict)
    environments: dict[str, dict[str, str]] = field(default_factory=dict)
    hosts: dict[str, Host] | None = None
    next_id: int = 1
    #: Lines that could not be parsed, not counting an incomplete last one.
    bad_lines: int = 0

    def apply(self, record: dict[str, Any]) -> None:
        """Update the state from one record. Raises ValueError, TypeError or KeyError if it is invalid."""
        event = record["event"]
        if event == "submit":
            job = job_from_record(record)
            self.jobs[job.id] = job
            self.next_id = max(self.next_id, job.id + 1)
        elif event in ("start", "ending", "end"):
            if record["id"] in self.jobs:  # else the job was forgotten
                self.jobs[record["id"]].apply(record)
        elif event == "forget":
            for identity in record["ids"]:
                self.jobs.pop(identity, None)
        elif event == "environment":
            self.environments[record["key"]] = record["values"]
        elif event == "hosts":
            self.hosts = hosts_from_json(record["hosts"])
        elif event == "next":
            self.next_id = max(self.next_id, record["id"])
        else:
            raise ValueError("unknown event %r" % event)

    def drop_old(self, now: float) -> None:
        """Remove jobs that ended more than a day ago, and environments that no job uses."""
        self.jobs = {
            job.id: job
            for job in self.jobs.values()
            if job.phase is not JobState.ENDED or job.ended is None or now - job.ended < REMEMBER_SECONDS
        }
        used = {job.environment for job in self.jobs.values()}
        self.environments = {key: values for key, values in self.environments.items() if key in used}

    def records(self) -> Iterable[dict[str, Any]]:
        """Yield the records that restore this state."""
        yield {"event": "next", "id": self.next_id}
        if self.hosts is not None:
            yield {"event": "hosts", "hosts": hosts_to_json(self.hosts)}
        for key, values in self.environments.items():
            yield {"event": "environment", "key": key, "values": values}
        for job in self.jobs.values():
            yield from job.records()


class JobLog:
    """The log file. `rewrite` opens it for `append`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = -1
        self._length = 0
        self._length_when_rewritten = 0

    def load(self) -> JobLogState:
        """Return the state from the file; an empty one if there is no file."""
        state = JobLogState()
        try:
            lines = self.path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return state
        for number, line in enumerate(lines, start=1):
            if not line:
                continue
            try:
                state.apply(json.loads(line))
            except (ValueError, TypeError, KeyError):
                # The last line is incomplete if the daemon was killed while writing: no client got a reply.
                state.bad_lines += number != len(lines)
        return state

    def rewrite(self, state: JobLogState) -> None:
        """Replace the file atomically by the records of the state."""
        fresh = self.path.with_name(self.path.name + ".new")
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            data = b"".join(map(_line, state.records()))
            _write_all(descriptor, data)
            os.fsync(descriptor)
            fresh.rename(self.path)
            sync_directory(self.path.parent)
        except BaseException:
            os.close(descriptor)
            raise
        self.close()
        self._file, self._length, self._length_when_rewritten = descriptor, len(data), len(data)

    @property
    def is_long(self) -> bool:
        return self._length > 2 * self._length_when_rewritten + REWRITE_BYTES

    def append(self, records: Iterable[dict[str, Any]], *, sync: bool) -> None:
        """Append all records, or none. Raises OSError."""
        data = b"".join(map(_line, records))
        try:
            _write_all(self._file, data)
            if sync:
                os.fdatasync(self._file)
        except OSError:
            os.ftruncate(self._file, self._length)
            raise
        self._length += len(data)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _line(record: dict[str, Any]) -> bytes:
    return json.dumps(record, separators=(",", ":")).encode() + b"\n"


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
