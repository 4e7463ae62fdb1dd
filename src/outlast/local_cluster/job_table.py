"""All jobs the daemon knows, in memory and in the book at once."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from outlast.local_cluster.hosts import Host, Need, Slots, hosts_to_json, this_machine
from outlast.local_cluster.job import JobState, LocalJob, Request
from outlast.local_cluster.job_log import JobLog
from outlast.local_cluster.queue import JobQueue


class JobTable:
    def __init__(self, path: Path, log: Callable[[str], None]) -> None:
        self._log = log
        self._book = JobLog(path)
        self._state = self._book.load()
        if self._state.bad_lines:
            log("%s: %d lines not understood, left out" % (path, self._state.bad_lines))
        self._state.drop_old(time.time())
        self._book.rewrite(self._state)
        self.slots = Slots(self._state.hosts or this_machine())
        self.waiting = JobQueue()
        self._by_token: dict[str, LocalJob] = {}
        self._groups: dict[str, dict[int, LocalJob]] = {}
        #: Counts what happened to each group's jobs, for those who wait for it.
        self.changes: dict[str, int] = {}
        for job in self._state.jobs.values():
            self._index(job)

    def __iter__(self) -> Iterator[LocalJob]:
        return iter(list(self._state.jobs.values()))

    def get(self, identity: int) -> LocalJob | None:
        return self._state.jobs.get(identity)

    def known(self, tokens: Iterable[str]) -> list[LocalJob]:
        return [self._by_token[token] for token in tokens if token in self._by_token]

    def environment(self, job: LocalJob) -> Mapping[str, str]:
        return self._state.environments.get(job.environment, {})

    def configure(self, hosts: Mapping[str, Host]) -> None:
        if hosts != self.slots.hosts:
            self._book.append([{"event": "hosts", "hosts": hosts_to_json(hosts)}], sync=False)
            self._state.hosts = dict(hosts)
            self.slots.configure(hosts)

    def submit(self, group: str, raw: Sequence[Any], environment: dict[str, str]) -> list[dict[str, Any]]:
        """One answer for each job, in order; the accepted are on disk. A known token is the known job."""
        answers: list[dict[str, Any]] = []
        fresh: dict[str, LocalJob] = {}
        key = hashlib.sha256(json.dumps(environment, sort_keys=True).encode()).hexdigest()[:16]
        for one in raw:
            try:
                request = Request.from_json(one)
            except ValueError as error:
                answers.append({"rejected": str(error)})
                continue
            job = self._by_token.get(request.token) or fresh.get(request.token)
            never = "" if job else self.slots.why_never(request.need)
            if never:
                answers.append({"rejected": never})
                continue
            if job is None:
                job = LocalJob(self._state.next_id, group, request, key, submitted=time.time())
                self._state.next_id += 1
                fresh[request.token] = job
            answers.append({"job": str(job.id)})
        if fresh:
            self._enter(list(fresh.values()), key, environment)
        return answers

    def _enter(self, jobs: Sequence[LocalJob], key: str, environment: dict[str, str]) -> None:
        records = [job.submit_record() for job in jobs]
        if key not in self._state.environments:
            records.insert(0, {"event": "environment", "key": key, "values": environment})
        self._book.append(records, sync=True)
        self._state.environments[key] = environment
        for job in jobs:
            self._state.jobs[job.id] = job
            self._index(job)

    def _index(self, job: LocalJob) -> None:
        self._by_token[job.request.token] = job
        self._groups.setdefault(job.group, {})[job.id] = job
        if job.phase is JobState.QUEUED:
            self.waiting.add(job)
        self.changed(job)

    def changed(self, job: LocalJob) -> None:
        self.changes[job.group] = self.changes.get(job.group, 0) + 1

    def views(self, group: str) -> list[dict[str, Any]]:
        now = time.monotonic()
        told = []
        reasons: dict[Need, str] = {}
        for job in self._groups.get(group, {}).values():
            view = job.view(now)
            if job.phase is JobState.QUEUED:
                need = job.request.need
                if need not in reasons:
                    reasons[need] = self.slots.why_never(need) or "waits for free cpus or gpus"
                view["reason"] = reasons[need]
            told.append(view)
        return told

    def listing(self) -> list[dict[str, Any]]:
        """The jobs of every group, in the order of their ids, with what people know them by."""
        told = [
            {**view, "name": job.request.name, "group": group, "submitted": job.submitted}
            for group, jobs in self._groups.items()
            for view, job in zip(self.views(group), jobs.values(), strict=True)
        ]
        return sorted(told, key=lambda view: int(view["job"]))

    def forget(self, tokens: Iterable[str]) -> None:
        gone = [job for job in self.known(tokens) if job.phase is JobState.ENDED]
        if not gone:
            return
        self._book.append([{"event": "forget", "ids": [job.id for job in gone]}], sync=False)
        for job in gone:
            del self._state.jobs[job.id]
            del self._by_token[job.request.token]
            del self._groups[job.group][job.id]
            if not self._groups[job.group]:
                del self._groups[job.group]

    def record(self, event: dict[str, Any]) -> None:
        """Write down or raise OSError."""
        self._book.append([event], sync=False)

    def note(self, event: dict[str, Any]) -> bool:
        """Write down if the disk lets us; the memory has it, a later daemon may have to find out anew."""
        try:
            self.record(event)
        except OSError as error:
            self._log("%s: %s" % (self._book.path, error))
            return False
        return True

    def tidy(self) -> None:
        """Rewrite a book that has grown long."""
        if self._book.is_long:
            try:
                self._book.rewrite(self._state)
            except OSError as error:  # the long one is as good
                self._log("%s: %s" % (self._book.path, error))
