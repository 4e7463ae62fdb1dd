"""HTCondor: the adapter to the schedd of this access point.

The event log that HTCondor writes next to the zipapp tells what became of each job; the queue tells why one
waits, and, with the history, of jobs that the log does not tell.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from outlast.errors import BadInput
from outlast.filesystem import write_durably
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
from outlast.schedulers.command_runner import CommandNotRun, CommandTimeout, call
from outlast.schedulers.htcondor.job_event_log import JobEventLog
from outlast.schedulers.htcondor.job_history import JobHistory
from outlast.schedulers.htcondor.listing import by_token, story_of, why_idle
from outlast.schedulers.htcondor.submit import JobCluster, UnfitRequest, clusters, event_log, event_log_in
from outlast.schedulers.profile import Profile
from outlast.schedulers.unreadable_output import UnreadableOutput

#: An event is in the log this many seconds after it happened, at the latest.
LOG_LAGS = 60.0
#: Seconds for which what the pool's slots offer is taken as it was.
OFFER_LASTS = 600.0
#: How often `wait` looks whether the event log has grown, in seconds.
GLANCE = 0.25


class HTCondorScheduler(Scheduler):
    """The local access point, seen by one experiment (`group`)."""

    shares_files = False
    chains_in_place = True
    #: The event log is what tells of changes.
    hears = True

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
            raise BadInput("HTCondor is talked to by its Python package: `pip install 'outlast[htcondor]'`")
        self.group = group
        self.profile = profile
        self.timeout = timeout
        self.patience = patience
        self.interval = interval
        #: That of `place` is known from the start: it tells of jobs that have left queue and history.
        self._logs: dict[Path, JobEventLog] = {}
        if place is not None:
            self._logs[event_log_in(place)] = JobEventLog(event_log_in(place))
        self._forgotten: set[str] = set()
        self._offer: list[dict[str, Any]] = []
        self._offer_until = 0.0
        self._asked = 0.0
        self._oddities = UnreadableOutput()

    def render(self, requests: Sequence[JobRequest]) -> str:
        parts = []
        for cluster in clusters(requests, self.group, self.profile):
            parts.append("# %s\n%s\n%s" % (cluster.program, cluster.script, cluster.text()))
        return "\n".join(parts)

    def submit(self, requests: Sequence[JobRequest]) -> Mapping[str, Submission]:
        answers: dict[str, Submission] = {}
        told = self._stories(event_log(request) for request in requests)
        fit: list[JobRequest] = []
        for request in {request.token: request for request in requests}.values():
            if request.token in told:
                answers[request.token] = Submission(SubmitAnswer.ACCEPTED, told[request.token].job)
                continue
            try:
                clusters([request], self.group, self.profile)
            except UnfitRequest as error:
                answers[request.token] = Submission(SubmitAnswer.REJECTED, reason=str(error))
            else:
                fit.append(request)
        if fit:
            answers.update(self._send(fit))
        return answers

    def _send(self, requests: Sequence[JobRequest]) -> dict[str, Submission]:
        sent = clusters(requests, self.group, self.profile)
        try:
            for cluster in sent:
                _provide(cluster)
            for request in requests:
                Path(request.log).parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            reason = "%s: %s" % (error.filename, error.strerror)
            return {
                one.token: Submission(SubmitAnswer.REJECTED, reason=reason, transient=True)
                for one in requests
            }
        submissions = [{"description": one.description, "items": one.items} for one in sent]
        try:
            reply = self._ask("submit", submissions=submissions)
        except CommandNotRun as error:
            one = Submission(SubmitAnswer.REJECTED, reason=str(error), transient=True)
        except (CommandTimeout, ValueError) as error:
            one = Submission(SubmitAnswer.UNKNOWN, reason=str(error))
        else:
            return {request.token: _answer(request.token, reply) for request in requests}
        return {request.token: one for request in requests}

    def poll(self, sought: Sequence[Sought] = ()) -> Mapping[str, JobView]:
        told = self._stories()
        wanted = [one for one in sought if not _over(told.get(one.token))]
        now = time.monotonic()
        reply = self._question(
            "poll",
            tokens=[one.token for one in wanted],
            since=int(min((one.since for one in wanted), default=time.time())) - 60,
            offer=now > self._offer_until,
        )
        self._asked = now
        self._learn(reply)
        queue = by_token(reply["queue"], self._oddities.of("condor_q"))
        history = by_token(reply["history"], self._oddities.of("condor_history"))
        ads = {**history, **queue}
        # Read after the queue was: what has left the queue is in the log by now.
        told = self._stories(Path(str(ad["UserLog"])) for ad in ads.values() if "UserLog" in ad)
        views: dict[str, JobView] = {}
        for token in (*told, *(token for token in ads if token not in told)):
            story = told.get(token)
            if story is None or not (_over(story) or token in queue) or _is_behind(story, queue.get(token)):
                # The log does not tell, or not to the end; a job that has left the queue without a trace is
                # not told of.
                story = story_of(ads[token]) if token in ads else None
            if story is not None and token not in self._forgotten:
                views[token] = self._view(story, queue.get(token))
        return views

    def _view(self, story: JobHistory, ad: Mapping[str, Any] | None) -> JobView:
        view = story.view()
        if view.phase is not JobPhase.QUEUED or view.reason or ad is None:
            return view
        return replace(view, reason=why_idle(ad, self._offer))

    def cancel(self, views: Sequence[JobView]) -> None:
        self._act("remove", views)

    def release(self, views: Sequence[JobView]) -> None:
        self._act("release", views)

    def _act(self, action: str, views: Sequence[JobView]) -> None:
        tokens = [view.token for view in views]
        self._question("act", action=action, tokens=tokens, reason="asked for by outlast")

    def forget(self, tokens: Sequence[str]) -> None:
        self._forgotten.update(tokens)
        for log in self._logs.values():
            log.forget(set(tokens))

    def wait(self, seconds: float) -> None:
        """Until an event log has grown, if the schedd was not asked just now."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(left, GLANCE))
            rested = time.monotonic() - self._asked >= self.interval / 5
            if rested and any(log.grown for log in self._logs.values()):
                return

    def remarks(self) -> Sequence[str]:
        return self._oddities.take()

    def hosts(self) -> Sequence[str]:
        if time.monotonic() > self._offer_until:
            # Best effort: else what was known before.
            with suppress(CommandNotRun, CommandTimeout, ValueError):
                self._learn(self._ask("offer"))
        names = {one.get("GLIDEIN_ResourceName") or one.get("Machine") for one in self._offer}
        return tuple(sorted(str(name) for name in names if name))

    def _learn(self, reply: Mapping[str, Any]) -> None:
        if "offer" in reply:
            self._offer, self._offer_until = reply["offer"], time.monotonic() + OFFER_LASTS

    def _stories(self, paths: Iterable[Path] = ()) -> dict[str, JobHistory]:
        for path in paths:
            if path not in self._logs:
                self._logs[path] = JobEventLog(path)
        told: dict[str, JobHistory] = {}
        for log in self._logs.values():
            log.read()
            told.update(log.stories())
        return {token: story for token, story in told.items() if token not in self._forgotten}

    def _question(self, do: str, **asked: Any) -> dict[str, Any]:
        try:
            return self._ask(do, **asked)
        except (CommandNotRun, CommandTimeout, ValueError) as error:
            raise SchedulerUnavailable("HTCondor: %s" % error) from error

    def _ask(self, do: str, **asked: Any) -> dict[str, Any]:
        """Raises NotCalled if nothing was done, NoReply or ValueError if that is not known."""
        given = json.dumps({"do": do, "group": self.group, **asked})
        reply = call([sys.executable, "-m", "outlast.schedulers.htcondor.worker"], self.timeout, given)
        if reply.code:
            raise ValueError(reply.complaint)
        answer: dict[str, Any] = json.loads(reply.out)
        if "trouble" in answer:
            raise CommandNotRun(answer["trouble"])
        return answer


def _over(story: JobHistory | None) -> bool:
    return story is not None and story.phase is JobPhase.ENDED


def _is_behind(story: JobHistory, ad: Mapping[str, Any] | None) -> bool:
    """The log lacks what became of a job a while ago: its disk was full, or a line is torn."""
    if ad is None or story_of(ad).phase is story.phase:
        return False
    return time.time() - float(ad.get("EnteredCurrentStatus") or time.time()) > LOG_LAGS


def _provide(cluster: JobCluster) -> None:
    """The program is named by its content: one that is there is the right one."""
    if not cluster.program.exists():
        write_durably(cluster.program, cluster.script.encode())
        cluster.program.chmod(0o755)


def _answer(token: str, reply: Mapping[str, Any]) -> Submission:
    if token in reply["jobs"]:
        return Submission(SubmitAnswer.ACCEPTED, job=reply["jobs"][token])
    if token in reply["refused"]:
        return Submission(SubmitAnswer.REJECTED, reason=reply["refused"][token])
    return Submission(SubmitAnswer.UNKNOWN, reason=reply["unsure"].get(token, "HTCondor did not say why"))
