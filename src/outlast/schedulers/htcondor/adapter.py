"""The HTCondor adapter: talks to the schedd of this access point.

The event log that HTCondor writes next to the zipapp shows what happened to each job. The queue shows why one
is pending; queue and history are also used for jobs that the log does not cover.
"""

from __future__ import annotations

import glob
import importlib.util
import json
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from outlast.errors import BadInput
from outlast.filesystem import write_durably
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
from outlast.schedulers.command_runner import CommandNotRun, CommandTimeout, run_command
from outlast.schedulers.htcondor.job_event_log import JobEventLog
from outlast.schedulers.htcondor.job_history import JobHistory
from outlast.schedulers.htcondor.listing import parse_ads
from outlast.schedulers.htcondor.spool import save_spooled
from outlast.schedulers.htcondor.states import parse_submit_response
from outlast.schedulers.htcondor.submit import (
    JobCluster,
    UnfitRequest,
    event_log_in,
    event_log_of,
    group_into_clusters,
)
from outlast.schedulers.htcondor.views import build_views
from outlast.schedulers.profile import Profile
from outlast.schedulers.unreadable_output import UnreadableOutput
from outlast.untrusted_files import is_plain_name

#: Seconds for which the list of the pool's slots is cached.
_SLOTS_LIFETIME = 600.0
#: How often `wait` checks whether an event log has grown, in seconds.
_CHECK_INTERVAL = 0.25


class HTCondorScheduler(Scheduler):
    """The adapter to the local access point, for one experiment (`group`)."""

    shares_files = False
    chains_in_place = True
    wakes_on_change = True

    def __init__(
        self,
        group: str,
        profile: Profile,
        place: Path | None = None,
        *,
        timeout: float = 30.0,
        patience: Patience = Patience(missing=60.0, heartbeat=7200.0, pause=5.0, longest_pause=600.0),  # noqa: B008
        interval: float = 20.0,
    ) -> None:
        if importlib.util.find_spec("htcondor2") is None:
            raise BadInput("HTCondor needs its Python package: type `pip install 'outlast[htcondor]'`")
        self.group = group
        self.profile = profile
        self.timeout = timeout
        self.patience = patience
        self.interval = interval
        self._place = place
        #: HTCondor's spool directory, once it is known.
        self._spool: Path | None = None
        self._notes: list[str] = []
        #: The log in `place` is read from the start: it also has jobs that have left queue and history.
        self._logs: dict[Path, JobEventLog] = {}
        if place is not None:
            self._logs[event_log_in(place)] = JobEventLog(event_log_in(place))
        self._forgotten: set[str] = set()
        self._slots: list[dict[str, Any]] = []
        self._slots_expire = 0.0
        self._last_poll = 0.0
        self._unreadable = UnreadableOutput()

    # Submit.

    def render(self, requests: Sequence[JobRequest]) -> str:
        parts = []
        for cluster in group_into_clusters(requests, self.group, self.profile):
            parts.append("# %s\n%s\n%s" % (cluster.program, cluster.script, cluster.render()))
        return "\n".join(parts)

    def submit(self, requests: Sequence[JobRequest]) -> Mapping[str, Submission]:
        results: dict[str, Submission] = {}
        logged = self._read_logs(event_log_of(request) for request in requests)
        valid: list[JobRequest] = []
        for request in {request.token: request for request in requests}.values():
            if request.token in logged:
                results[request.token] = Submission(SubmitStatus.ACCEPTED, logged[request.token].job)
                continue
            try:
                group_into_clusters([request], self.group, self.profile)
            except UnfitRequest as error:
                results[request.token] = Submission(SubmitStatus.REJECTED, reason=str(error))
            else:
                valid.append(request)
        if valid:
            results.update(self._send(valid))
        return results

    def _send(self, requests: Sequence[JobRequest]) -> dict[str, Submission]:
        clusters = group_into_clusters(requests, self.group, self.profile)
        try:
            for cluster in clusters:
                _write_program(cluster)
            for request in requests:
                Path(request.log).parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            reason = "%s: %s" % (error.filename, error.strerror)
            result = Submission(SubmitStatus.REJECTED, reason=reason, transient=True)
            return {request.token: result for request in requests}
        submissions = [{"description": one.description, "items": one.items} for one in clusters]
        try:
            response = self._call_worker("submit", submissions=submissions)
        except CommandNotRun as error:
            result = Submission(SubmitStatus.REJECTED, reason=str(error), transient=True)
        except (CommandTimeout, ValueError) as error:
            result = Submission(SubmitStatus.UNKNOWN, reason=str(error))
        else:
            return {request.token: parse_submit_response(request.token, response) for request in requests}
        return {request.token: result for request in requests}

    # Poll.

    def poll(self, expected: Sequence[JobRef] = ()) -> Mapping[str, JobView]:
        logged = self._read_logs()
        unfinished = [one for one in expected if not _has_ended(logged.get(one.token))]
        now = time.monotonic()
        response = self._query(
            "poll",
            tokens=[one.token for one in unfinished],
            since=int(min((one.submitted for one in unfinished), default=time.time())) - 60,
            offer=now > self._slots_expire,
        )
        self._last_poll = now
        self._cache_slots(response)
        queue = parse_ads(response["queue"], self._unreadable.reporter("condor_q"))
        archived = parse_ads(response["history"], self._unreadable.reporter("condor_history"))
        ads = {**archived, **queue}
        # The logs are read after the queue: what has left the queue is logged by now.
        logged = self._read_logs(Path(str(ad["UserLog"])) for ad in ads.values() if "UserLog" in ad)
        views = build_views(logged, queue, archived, self._slots)
        return {token: view for token, view in views.items() if token not in self._forgotten}

    def _read_logs(self, paths: Iterable[Path] = ()) -> dict[str, JobHistory]:
        """Read the known event logs, and those at `paths`, to their ends; return the histories by token."""
        for path in paths:
            if path not in self._logs:
                self._logs[path] = JobEventLog(path)
        histories: dict[str, JobHistory] = {}
        for log in self._logs.values():
            log.read()
            histories.update(log.histories())
        return {token: history for token, history in histories.items() if token not in self._forgotten}

    def wait(self, seconds: float) -> None:
        """Wait until an event log has grown, but not right after a poll; for at most `seconds`."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(left, _CHECK_INTERVAL))
            has_rested = time.monotonic() - self._last_poll >= self.interval / 5
            if has_rested and any(log.has_grown for log in self._logs.values()):
                return

    def hosts(self) -> Sequence[str]:
        if time.monotonic() > self._slots_expire:
            # Best effort: otherwise the last known slots are used.
            with suppress(CommandNotRun, CommandTimeout, ValueError):
                self._cache_slots(self._call_worker("offer"))
        names = {slot.get("GLIDEIN_ResourceName") or slot.get("Machine") for slot in self._slots}
        return tuple(sorted(str(name) for name in names if name))

    def _cache_slots(self, response: Mapping[str, Any]) -> None:
        if "offer" in response:
            self._slots, self._slots_expire = response["offer"], time.monotonic() + _SLOTS_LIFETIME

    def pop_notes(self) -> Sequence[str]:
        notes, self._notes = self._notes, []
        return [*self._unreadable.pop_notes(), *notes]

    def forget(self, tokens: Sequence[str]) -> None:
        self._forgotten.update(tokens)
        for log in self._logs.values():
            log.forget(set(tokens))

    # Cancel and release.

    def cancel(self, views: Sequence[JobView]) -> None:
        for view in views:
            self._save_spooled(view)
        self._act("remove", views)

    def _save_spooled(self, view: JobView) -> None:
        """Copy what the job has saved into its directory: with the job it would be deleted."""
        home = self._home_of(view.token)
        if home is None:
            return
        if self._spool is None:
            self._spool = Path(self._query("spool")["spool"])
        try:
            save_spooled(self._spool, view.job, home, self.heartbeat)
        except (OSError, ValueError) as error:
            self._notes.append("what job %s had saved could not be kept: %s" % (view.job, error))

    def _home_of(self, token: str) -> Path | None:
        """Return the directory of an attempt that is not over; None if there is none."""
        if self._place is None or not is_plain_name(token):
            return None
        # Once an attempt is over, its work order has another name.
        orders = list(self._place.glob("runs/*/*-%s/order.json" % glob.escape(token)))
        return orders[0].parent if len(orders) == 1 else None

    def release(self, views: Sequence[JobView]) -> None:
        self._act("release", views)

    def _act(self, action: str, views: Sequence[JobView]) -> None:
        tokens = [view.token for view in views]
        self._query("act", action=action, tokens=tokens, reason="requested by outlast")

    def _query(self, operation: str, **arguments: Any) -> dict[str, Any]:
        """Call the worker. Raises SchedulerUnavailable."""
        try:
            return self._call_worker(operation, **arguments)
        except (CommandNotRun, CommandTimeout, ValueError) as error:
            raise SchedulerUnavailable("HTCondor: %s" % error) from error

    def _call_worker(self, operation: str, **arguments: Any) -> dict[str, Any]:
        """Run one operation of `worker` and return its response.

        Raises CommandNotRun if nothing was done, CommandTimeout or ValueError if that is not known.
        """
        request = json.dumps({"do": operation, "group": self.group, **arguments})
        command = [sys.executable, "-m", "outlast.schedulers.htcondor.worker"]
        output = run_command(command, self.timeout, request)
        if output.code:
            raise ValueError(output.error_message)
        response: dict[str, Any] = json.loads(output.out)
        if "trouble" in response:
            raise CommandNotRun(response["trouble"])
        return response


def _has_ended(history: JobHistory | None) -> bool:
    return history is not None and history.phase is JobPhase.ENDED


def _write_program(cluster: JobCluster) -> None:
    # Its name contains the checksum of its content: one that exists is the right one.
    if not cluster.program.exists():
        write_durably(cluster.program, cluster.script.encode())
        cluster.program.chmod(0o755)
