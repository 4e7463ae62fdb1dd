"""One schedule: the real controller works on a scenario until all of its runs are over."""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from outlast.controller import crashpoints
from outlast.controller.controller import Controller
from outlast.domain.engine import CANCEL_AGAIN
from outlast.domain.model import Attempt, EntryKind, JournalEntry, Outcome, Run, RunState
from outlast.journal.records import Records
from outlast.simulation.history import History, Violation
from outlast.simulation.invariants import violations
from outlast.simulation.job_lifecycle import JobLifecycle
from outlast.simulation.pass_checks import PassChecks
from outlast.simulation.scenario import Scenario, Weather, draw_scenario
from outlast.simulation.simulated_checkpoints import SimulatedCheckpoints
from outlast.simulation.simulated_cluster import SimulatedCluster
from outlast.simulation.simulated_exchange import SimulatedExchange
from outlast.simulation.simulated_node import NodeProgram, RunTruth
from outlast.simulation.timeline import Timeline

__all__ = ["History", "carry_out", "simulate"]

BEGIN = 1_800_000_000.0
#: A schedule with more passes than this counts as one that never ends.
MOST_PASSES = 2500
MOST_DEATHS = 12
#: The largest error of the controller's clock, in seconds.
FARTHEST_CLOCK = 6 * 3600.0


class ControllerDied(BaseException):
    """A simulated SIGKILL of the controller. Not an Exception, so that nothing catches it."""


class KeptRecords(Records):
    """Records that keep every entry and ended runs, as the journal on disk does."""

    def __init__(self, on_entry: Callable[[JournalEntry], None]) -> None:
        super().__init__()
        self.entries: list[JournalEntry] = []
        self.all_runs: dict[str, Run] = {}
        self._on_entry = on_entry

    def run(self, name: str) -> Run | None:
        return self.all_runs.get(name)

    def all_attempts(self) -> dict[str, Attempt]:
        return dict(self._attempts)

    def _persist(
        self, entries: Sequence[JournalEntry], runs: Iterable[Run], attempts: Iterable[Attempt]
    ) -> None:
        self.entries.extend(entries)
        self.all_runs.update((run.name, run) for run in runs)
        for entry in entries:
            self._on_entry(entry)


def simulate(seed: int) -> list[Violation]:
    """Draw a scenario, carry it out, and return the broken promises."""
    return carry_out(draw_scenario(seed)).violations


def carry_out(scenario: Scenario, trace: list[str] | None = None) -> History:
    """Run the scenario to its end. Every event is appended to `trace`, if given."""
    return _Schedule(scenario, trace).carry_out()


@dataclass
class _Wall:
    """The controller's clock: true time plus an error."""

    timeline: Timeline
    offset: float = 0.0

    def __call__(self) -> float:
        return self.timeline.now + self.offset


@dataclass
class _Schedule:
    scenario: Scenario
    trace: list[str] | None
    found: list[Violation] = field(default_factory=list)
    deaths: int = 0
    passes: int = 0
    batches: int = 0
    #: Attempts that had to be considered over, although their jobs may still have been running.
    excused: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        scenario = self.scenario
        self.rng = random.Random("schedule %d" % scenario.seed)
        self.weather = scenario.weather
        self.timeline = Timeline(BEGIN)
        self.wall = _Wall(self.timeline)
        self.records = KeptRecords(self._on_entry)
        self.exchange = SimulatedExchange(self.timeline, self.rng, self.weather, self._report_violation)
        self.truths = {
            "run%d" % number: RunTruth(
                name="run%d" % number,
                training=training,
                store=SimulatedCheckpoints(scenario.spec.checkpoints.keep),
                fluke_at=training.fluke_at,
                refused=self.rng.random() < self.weather.refused_for_good,
                most_starts=self._draw_most_starts(),
                held_for_good=self.rng.random() < self.weather.held_for_good,
            )
            for number, training in enumerate(scenario.trainings)
        }
        lifecycle = JobLifecycle(
            self.timeline, self.rng, scenario, self.truths, self.exchange, self._on_compute, self._record
        )
        self.cluster = SimulatedCluster(
            self.timeline, self.rng, scenario, self.truths, self.exchange, lifecycle
        )
        self.pass_checks = PassChecks(
            scenario, self.timeline, self.records, self.cluster, self.exchange, self._report_violation
        )
        self.controller = self._new_controller()

    def _draw_most_starts(self) -> float:
        never = self.rng.random() < self.weather.never_started
        return self.rng.choice((0, 1)) if never else float("inf")

    def carry_out(self) -> History:
        self._submit_runs()
        with _reach(self._maybe_die):
            try:
                self._run_until_over()
                self._finish_without_faults()
            except Exception as error:  # any error of the controller is a violation
                place = traceback.extract_tb(error.__traceback__)[-1]
                where = "%s line %s" % (Path(place.filename).name, place.lineno)
                text = "the controller failed with %s: %s (%s)" % (type(error).__name__, error, where)
                self.found.append(Violation("1", "", text))
        history = History(
            scenario=self.scenario,
            entries=self.records.entries,
            runs=self.records.all_runs,
            attempts=self.records.all_attempts(),
            truths=self.truths,
            jobs=self.cluster.jobs,
            exchange=self.exchange,
            violations=self.found,
            passes=self.passes,
            deaths=self.deaths,
        )
        if not self.found:
            self.found.extend(violations(history))
        return history

    def _submit_runs(self) -> None:
        spec = self.records.add_spec(self.scenario.spec)
        now = self.wall()
        self.records.append(
            [
                JournalEntry(
                    now, name, EntryKind.ADDED, None, {"position": position, "spec": spec, "params": {}}
                )
                for position, name in enumerate(self.truths)
            ]
        )
        longest = 6 * self.scenario.spec.resources.time
        for name in self.truths:
            if self.rng.random() < self.weather.user_cancels:
                after = self.timeline.now + self.rng.uniform(0.0, longest)
                self.timeline.at(after, lambda name=name: self._request(name, EntryKind.CANCEL_ASKED))  # type: ignore[misc]
            if self.rng.random() < self.weather.user_retries:
                after = self.timeline.now + self.rng.uniform(0.0, 2 * longest)
                self.timeline.at(after, lambda name=name: self._request(name, EntryKind.RETRIED))  # type: ignore[misc]

    def _request(self, name: str, kind: EntryKind) -> None:
        """Record a user's request, if the state of the run allows it."""
        run = self.records.run(name)
        assert run is not None
        cancellable = run.state in (RunState.WAITING, RunState.ACTIVE, RunState.HELD_BACK)
        retriable = run.state in (RunState.FAILED, RunState.CANCELLED)
        if cancellable if kind is EntryKind.CANCEL_ASKED else retriable:
            data = {"reason": "cancelled by the user"} if kind is EntryKind.CANCEL_ASKED else {}
            self.records.append([JournalEntry(self.wall(), name, kind, None, data)])

    def _run_until_over(self) -> None:
        wait = self.scenario.interval
        while not self._is_over():
            if self.passes >= MOST_PASSES:
                left = ", ".join(self.records.live())
                self.found.append(Violation("1", left, "not over after %d passes" % self.passes))
                return
            before = len(self.records.entries)
            self._pass()
            # While nothing changes the steps become longer, like a `tick` that cron runs now and then.
            idle = len(self.records.entries) == before
            wait = min(wait * 1.5, 8 * self.scenario.interval) if idle else self.scenario.interval
            self.timeline.advance(self.timeline.now + wait * self.rng.uniform(0.3, 1.5))

    def _is_over(self) -> bool:
        """Return True if all runs are over. If only held-back runs are left, their user resumes them."""
        if not self.controller.done:
            return False
        held_back = list(self.records.live())
        resumed = [JournalEntry(self.wall(), name, EntryKind.RESUMED) for name in held_back]
        self.records.append(resumed)
        return not held_back

    def _finish_without_faults(self) -> None:
        """Let the controller clean up after the runs, first with the same faults, then without any."""
        for _ in range(3):
            self._pass()
            self.timeline.advance(self.timeline.now + self.scenario.interval)
        self.timeline.drain()
        self.weather = self.exchange.weather = Weather()
        self.cluster.stop_faults()
        for _ in range(MOST_PASSES):
            self._pass()
            if self._is_over():
                break
            # A user retried a run in the meantime.
            self.timeline.advance(self.timeline.now + self.scenario.interval)
        for _ in range(3):
            # Jobs that missed a cancellation, or were hidden from the listing, are cancelled again.
            self.timeline.drain()
            self.timeline.advance(self.timeline.now + CANCEL_AGAIN + 4 * self.scenario.patience.missing)
            self._pass()
        self.timeline.drain()
        self._pass()

    def _pass(self) -> None:
        self.passes += 1
        if self.rng.random() < self.weather.clock_jumps:
            jump = self.rng.choice((-1.0, 1.0)) * self.rng.uniform(1.0, FARTHEST_CLOCK)
            self.wall.offset = max(-FARTHEST_CLOCK, min(FARTHEST_CLOCK, self.wall.offset + jump))
            self._record("the controller's clock is wrong by %.0f s" % self.wall.offset)
        try:
            self.controller.step()
            self.pass_checks.after_pass()
        except ControllerDied as death:
            self._record("the controller died at %s" % death)
            self.deaths += 1
            self.pass_checks.forget_submissions()
            self.controller = self._new_controller()
            if self.rng.random() < 0.3:
                away = self.rng.uniform(0.0, 2 * self.scenario.spec.resources.time)
                self.timeline.advance(self.timeline.now + away)

    def _new_controller(self) -> Controller:
        return Controller(
            self.records, self.cluster, self.exchange, clock=self.wall, new_batch=self._new_batch
        )

    def _new_batch(self) -> str:
        self.batches += 1
        return "t%03d" % self.batches

    def _maybe_die(self, point: str) -> None:
        if self.deaths < MOST_DEATHS and self.rng.random() < self.weather.controller_dies:
            raise ControllerDied(point)

    # Checks while the schedule runs.

    def _on_entry(self, entry: JournalEntry) -> None:
        if self.trace is not None:
            what = entry.data.get("outcome", "")
            why = entry.data.get("detail") or entry.data.get("reason") or ""
            parts = (entry.run, entry.token or "", entry.kind.value, what, why)
            self._record("  %s" % "  ".join(part for part in parts if part))
        if entry.kind is not EntryKind.ENDED or entry.token is None:
            return
        self.exchange.given_up.add(entry.token)
        if entry.data.get("blocked"):
            self.exchange.blocked.add(entry.token)
        job = self.cluster.jobs.get(entry.token)
        # One listing may be stale: at least two must lack a running job before it may be given up.
        if job is not None and (job.missing_listings >= 2 or self._is_misled(entry.token)):
            self.excused.add(entry.token)
        elif job is not None and job.computing and entry.data["outcome"] != Outcome.FINISHED.value:
            self._report_violation(entry.run, "%s was given up while it was listed" % entry.token)
        collected = self.exchange.settled | self.exchange.blocked
        if "account" in entry.data and entry.token not in collected:
            self._report_violation(
                entry.run, "the end of %s was recorded before it was settled" % entry.token
            )

    def _on_compute(self, program: NodeProgram) -> None:
        token, number = program.leg
        self._record("%s: leg %d computes from step %s" % (token, number, program.log.resumed))
        for other in program.run.computing:
            if not self._is_written_off(other) and not self._is_written_off(program):
                text = "%s and %s compute at the same time" % (other.leg[0], token)
                self._report_violation(program.run.name, text)

    def _is_written_off(self, program: NodeProgram) -> bool:
        """Return True if the controller could not have ended the job: the scheduler had lost it."""
        attempt = self.records.attempt(program.leg[0])
        lost = attempt is not None and attempt.outcome is Outcome.LOST
        lost = lost or program.leg[0] in self.exchange.blocked
        return lost or program.log.cut_off or program.leg[0] in self.excused

    def _is_misled(self, token: str) -> bool:
        """Return True if all known starts had reported an end other than an eviction."""
        attempt, report = self.records.attempt(token), self.exchange.last_reports.get(token)
        if attempt is None or report is None or len(report.legs) <= attempt.restarts:
            return False
        lost = self.exchange.logs(token)[len(report.legs) - 1].cut_off
        return lost or report.logged_outcome not in (None, Outcome.EVICTED)

    def _report_violation(self, run: str, text: str) -> None:
        self.found.append(Violation("2", run, text))

    def _record(self, text: str) -> None:
        if self.trace is not None:
            self.trace.append("%9.1f  %s" % (self.timeline.now - BEGIN, text))


@contextmanager
def _reach(hook: Callable[[str], None]) -> Iterator[None]:
    """Make the controller call `hook` at its crash points, where tests kill a real process."""
    original = crashpoints.reach
    setattr(crashpoints, "reach", hook)  # noqa: B010 - a function is replaced, which types do not allow
    try:
        yield
    finally:
        setattr(crashpoints, "reach", original)  # noqa: B010
