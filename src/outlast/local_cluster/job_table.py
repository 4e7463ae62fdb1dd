"""All jobs of the daemon, in memory and in the job log."""

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
    """The jobs by id, token and group. Every change is also written to the log file."""

    def __init__(self, path: Path, log: Callable[[str], None]) -> None:
        self._log = log
        self._job_log = JobLog(path)
        self._state = self._job_log.load()
        if self._state.bad_lines:
            log("%s: %d invalid lines were ignored" % (path, self._state.bad_lines))
        self._state.drop_old(time.time())
        self._job_log.rewrite(self._state)
        self.slots = Slots(self._state.hosts or this_machine())
        self.queue = JobQueue()
        self._by_token: dict[str, LocalJob] = {}
        self._groups: dict[str, dict[int, LocalJob]] = {}
        #: The number of changes to each group's jobs, for clients that wait for one.
        self.changes: dict[str, int] = {}
        for job in self._state.jobs.values():
            self._index(job)

    def __iter__(self) -> Iterator[LocalJob]:
        return iter(list(self._state.jobs.values()))

    def get(self, identity: int) -> LocalJob | None:
        return self._state.jobs.get(identity)

    def find(self, tokens: Iterable[str]) -> list[LocalJob]:
        """Return the jobs with these tokens; unknown tokens are ignored."""
        return [self._by_token[token] for token in tokens if token in self._by_token]

    def environment(self, job: LocalJob) -> Mapping[str, str]:
        return self._state.environments.get(job.environment, {})

    def configure(self, hosts: Mapping[str, Host]) -> None:
        """Set the hosts. Raises OSError if the log cannot be written."""
        if hosts != self.slots.hosts:
            self._job_log.append([{"event": "hosts", "hosts": hosts_to_json(hosts)}], sync=False)
            self._state.hosts = dict(hosts)
            self.slots.configure(hosts)

    def submit(self, group: str, raw: Sequence[Any], environment: dict[str, str]) -> list[dict[str, Any]]:
        """Return one result per job, in order; accepted jobs are on disk. A known token is the existing job.

        Raises OSError if the log cannot be written; then no job is accepted.
        """
        results: list[dict[str, Any]] = []
        fresh: dict[str, LocalJob] = {}
        key = hashlib.sha256(json.dumps(environment, sort_keys=True).encode()).hexdigest()[:16]
        for one in raw:
            try:
                request = Request.from_json(one)
            except ValueError as error:
                results.append({"rejected": str(error)})
                continue
            job = self._by_token.get(request.token) or fresh.get(request.token)
            impossible = "" if job else self.slots.why_impossible(request.need)
            if impossible:
                results.append({"rejected": impossible})
                continue
            if job is None:
                job = LocalJob(self._state.next_id, group, request, key, submitted=time.time())
                self._state.next_id += 1
                fresh[request.token] = job
            results.append({"job": str(job.id)})
        if fresh:
            self._add(list(fresh.values()), key, environment)
        return results

    def _add(self, jobs: Sequence[LocalJob], key: str, environment: dict[str, str]) -> None:
        records = [job.submit_record() for job in jobs]
        if key not in self._state.environments:
            records.insert(0, {"event": "environment", "key": key, "values": environment})
        self._job_log.append(records, sync=True)
        self._state.environments[key] = environment
        for job in jobs:
            self._state.jobs[job.id] = job
            self._index(job)

    def _index(self, job: LocalJob) -> None:
        self._by_token[job.request.token] = job
        self._groups.setdefault(job.group, {})[job.id] = job
        if job.phase is JobState.QUEUED:
            self.queue.add(job)
        self.changed(job)

    def changed(self, job: LocalJob) -> None:
        """Count a change to the job's group, which wakes up waiting clients."""
        self.changes[job.group] = self.changes.get(job.group, 0) + 1

    def views(self, group: str) -> list[dict[str, Any]]:
        """Return the jobs of a group as a poll reports them."""
        now = time.monotonic()
        views = []
        reasons: dict[Need, str] = {}
        for job in self._groups.get(group, {}).values():
            view = job.view(now)
            if job.phase is JobState.QUEUED:
                need = job.request.need
                if need not in reasons:
                    reasons[need] = self.slots.why_impossible(need) or "waits for free cpus or gpus"
                view["reason"] = reasons[need]
            views.append(view)
        return views

    def listing(self) -> list[dict[str, Any]]:
        """Return the jobs of all groups in the order of their ids, with name, group and submission time."""
        listed = [
            {**view, "name": job.request.name, "group": group, "submitted": job.submitted}
            for group, jobs in self._groups.items()
            for view, job in zip(self.views(group), jobs.values(), strict=True)
        ]
        return sorted(listed, key=lambda view: int(view["job"]))

    def forget(self, tokens: Iterable[str]) -> None:
        """Remove the ended jobs among these."""
        ended = [job for job in self.find(tokens) if job.phase is JobState.ENDED]
        if not ended:
            return
        self._job_log.append([{"event": "forget", "ids": [job.id for job in ended]}], sync=False)
        for job in ended:
            del self._state.jobs[job.id]
            del self._by_token[job.request.token]
            del self._groups[job.group][job.id]
            if not self._groups[job.group]:
                del self._groups[job.group]

    def record(self, event: dict[str, Any]) -> None:
        """Append a record to the log. Raises OSError."""
        self._job_log.append([event], sync=False)

    def try_record(self, event: dict[str, Any]) -> bool:
        """Append a record to the log; return False if that fails. The state in memory is not affected."""
        try:
            self.record(event)
        except OSError as error:
            self._log("%s: %s" % (self._job_log.path, error))
            return False
        return True

    def compact(self) -> None:
        """Rewrite the log if it has grown long."""
        if self._job_log.is_long:
            try:
                self._job_log.rewrite(self._state)
            except OSError as error:  # the long file remains valid
                self._log("%s: %s" % (self._job_log.path, error))
