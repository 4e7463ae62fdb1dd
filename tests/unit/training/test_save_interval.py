"""The save interval: rare enough to cost little, often enough to lose little, always in time."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlast.training import env
from outlast.training.deadline import Deadline
from outlast.training.save_interval import (
    FIRST_SAVE_SECONDS,
    PRIOR_INTERVAL,
    SaveInterval,
    SavePlan,
    daly,
    read_plan,
)

HOUR = 3600.0


@dataclass
class Job:
    """A training run with a simulated clock, saves that block it or run in the background, and a deadline."""

    limit: float = math.inf
    grace: float = 30.0
    step: float = 1.0
    blocked: float = 0.0
    durable: float = 0.0
    plan: SavePlan = SavePlan()  # noqa: RUF009 - frozen
    #: True if the stop signal arrives; signals can get lost.
    signal: bool = False
    now: float = 1000.0
    #: When each save began, on a clock that starts with the job, and why.
    saves: list[tuple[float, str]] = field(default_factory=list)
    worked: float = 0.0
    kept: float = 0.0

    def __post_init__(self) -> None:
        self._began = self.now
        ends = None if math.isinf(self.limit) else self.now + self.limit
        self.deadline = Deadline(ends, self.grace, now=lambda: self.now)
        self.save_interval = SaveInterval(self.deadline, self.plan)
        self._writing: list[tuple[float, float]] = []

    @property
    def time(self) -> float:
        return self.now - self._began

    def run(self, until: float = math.inf) -> Job:
        """Run until the deadline, or until the job is killed at `until`."""
        end = min(self.limit, until)
        self.save_interval.is_due()
        while self.time + self.step <= end:
            self.now += self.step
            self.worked += self.step
            self._report_saved()
            if self.signal and self.time >= self.limit - self.grace:
                self.deadline._on_signal(15, None)
            if self.save_interval.is_due():
                began = self.time
                self.now += self.blocked
                if began + self.durable <= end:
                    self.kept = self.worked
                self.save_interval.note_copied(self.blocked)
                self.saves.append((began, self.save_interval.why))
                self._writing.append((began + self.durable, self.durable))
        return self

    def _report_saved(self) -> None:
        while self._writing and self._writing[0][0] <= self.time:
            self.save_interval.note_saved(self.blocked, self._writing.pop(0)[1])

    @property
    def times(self) -> list[float]:
        return [began for began, _ in self.saves]

    @property
    def gaps(self) -> list[float]:
        """Seconds of work from the end of one save to the beginning of the next."""
        return [later - one - self.blocked for one, later in zip(self.times, self.times[1:], strict=False)]


def test_the_best_interval_follows_young_and_daly() -> None:
    assert daly(1.0, 24 * HOUR) == pytest.approx(math.sqrt(2 * 24 * HOUR), rel=0.01)
    assert daly(120.0, 24 * HOUR) == pytest.approx(4474.0, abs=5.0)
    # The formula does not hold if a save takes longer than the time between interruptions.
    assert daly(100.0, 10.0) == 10.0


@pytest.mark.parametrize(("cost", "between"), [(0.5, 7200.0), (5.0, 3600.0), (60.0, 20_000.0)])
def test_no_other_interval_loses_less(cost: float, between: float) -> None:
    def lost(interval: float) -> float:
        """Return the share of time lost to saving and repeated work, with random interruptions."""
        return 1 - interval / (between * math.expm1((interval + cost) / between))

    best = daly(cost, between)
    assert lost(best) <= min(lost(best * factor) for factor in (0.5, 0.8, 1.25, 2.0))


def test_the_first_save_comes_early_because_its_cost_is_not_known_yet() -> None:
    job = Job(limit=10 * HOUR, blocked=2.0, durable=2.0).run()
    assert job.times[0] == pytest.approx(FIRST_SAVE_SECONDS, abs=2 * job.step)
    assert job.saves[0][1] == "the first, to measure what a save costs"
    assert job.times[1] - job.times[0] > 5 * FIRST_SAVE_SECONDS


def test_in_a_short_job_the_first_save_comes_after_a_small_part_of_it() -> None:
    job = Job(limit=20.0, grace=2.0, step=0.1, blocked=0.01, durable=0.1).run()
    assert job.times[0] <= 2.1


def test_if_an_earlier_attempt_measured_the_cost_no_save_is_made_to_measure_it() -> None:
    job = Job(limit=HOUR, blocked=0.2, durable=1.0, plan=SavePlan(blocked=0.2, durable=1.0)).run()
    assert job.times[0] == pytest.approx(daly(0.28, PRIOR_INTERVAL), rel=0.2)
    assert job.saves[0][1].startswith("every ")


def test_more_interruptions_lead_to_more_saves() -> None:
    calm = Job(until := 8 * HOUR, blocked=1.0, durable=1.0).run()
    stormy = Job(until, blocked=1.0, durable=1.0, plan=SavePlan(observed=4 * HOUR, interruptions=6)).run()
    assert len(stormy.saves) > 1.5 * len(calm.saves)
    assert "an interruption is expected every 4 h" in stormy.saves[1][1]
    assert "(6 so far)" in stormy.saves[1][1]


def test_background_writing_costs_less_than_blocking_the_loop() -> None:
    waiting = Job(8 * HOUR, blocked=5.0, durable=5.0).run()
    background = Job(8 * HOUR, blocked=0.1, durable=5.0).run()
    assert len(background.saves) > 2 * len(waiting.saves)


def test_no_save_is_due_while_the_one_before_is_being_written() -> None:
    job = Job(8 * HOUR, blocked=0.0, durable=300.0, plan=SavePlan(observed=HOUR, interruptions=500)).run()
    assert min(job.gaps[:-1]) >= 300.0
    assert "as long as it takes to write one" in job.saves[2][1]


def test_a_save_whose_result_never_arrives_does_not_end_all_saving() -> None:
    job = Job(plan=SavePlan(longest=600.0), durable=math.inf).run(until=2000.0)
    assert len(job.saves) == 4


def test_the_last_save_is_due_although_the_one_before_is_still_being_written() -> None:
    job = Job(limit=600.0, grace=40.0, durable=math.inf).run()
    assert [why for _, why in job.saves] == [
        "the first, to measure what a save costs",
        "the last before the deadline",
    ]


def test_a_failed_save_is_retried_and_does_not_count_as_a_measured_cost() -> None:
    job = Job(limit=HOUR)
    while not job.save_interval.is_due():
        job.now += 1.0
    job.save_interval.note_copied(0.5)
    job.save_interval.note_failed()
    assert not job.save_interval.is_due()
    while not job.save_interval.is_due():
        job.now += 1.0
    assert job.time <= 2 * FIRST_SAVE_SECONDS + 2
    assert job.save_interval.why == "the first, to measure what a save costs"


def test_a_result_that_arrives_before_the_loop_continues_is_counted() -> None:
    job = Job(limit=HOUR, grace=10.0)
    while not job.save_interval.is_due():
        job.now += 1.0
    job.save_interval.note_saved(0.1, 0.1)
    job.save_interval.note_copied(0.1)
    job.blocked = job.durable = 0.1
    assert job.run().gaps[0] < 200.0


def test_a_fixed_interval_is_kept_and_the_last_save_still_comes_in_time() -> None:
    job = Job(limit=1000.0, grace=20.0, blocked=0.5, durable=0.5, plan=SavePlan(every=300.0)).run()
    assert job.times[:3] == pytest.approx([300.0, 600.5, 901.0], abs=2.0)
    assert job.times[3] == pytest.approx(989.0, abs=2.0)
    whys = [why.partition(";")[0] for _, why in job.saves]
    assert whys == ["every 5 min, as configured"] * 3 + ["the last before the deadline"]


def test_the_users_limits_hold() -> None:
    longest = Job(8 * HOUR, blocked=60.0, durable=60.0, plan=SavePlan(longest=900.0)).run()
    assert max(longest.gaps) <= 900.0 + longest.step
    assert "the longest allowed" in longest.saves[2][1]
    shortest = Job(8 * HOUR, plan=SavePlan(shortest=1200.0)).run()
    assert min(shortest.gaps[:-1]) >= 1200.0
    assert "the shortest allowed" in shortest.saves[2][1]


def test_saves_divide_the_time_until_the_deadline_into_equal_parts() -> None:
    job = Job(limit=5000.0, blocked=0.2, durable=0.2, plan=SavePlan(blocked=0.2, durable=0.2)).run()
    assert len(job.gaps) > 5
    inner = job.gaps[:-1]
    assert max(inner) - min(inner) <= 3 * job.step


def test_after_the_last_save_no_other_is_due() -> None:
    job = Job(limit=600.0, grace=40.0, blocked=1.0, durable=5.0).run()
    assert job.saves[-1][1].startswith("the last before the deadline")
    assert [why for _, why in job.saves if why.startswith("the last")] == [job.saves[-1][1]]


def test_a_stop_signal_makes_one_save_due() -> None:
    job = Job(limit=HOUR, grace=60.0, durable=1.0, signal=True).run()
    assert job.saves[-1][0] == pytest.approx(HOUR - 60.0, abs=2.0)
    assert job.saves[-1][1].startswith("at the stop signal; else every ")
    assert sum(why.startswith("at the stop signal") for _, why in job.saves) == 1


def test_a_slow_first_step_does_not_make_the_first_save_the_last() -> None:
    job = Job(limit=1300.0, grace=10.0)
    job.save_interval.is_due()
    job.now += 700.0
    assert job.save_interval.is_due(), "another step like this one would be too long"
    job.save_interval.note_copied(0.0)
    job.save_interval.note_saved(0.0, 0.1)
    job.run()
    assert job.kept == pytest.approx(1300.0 - 700.0, abs=10.0)


def test_a_save_requested_by_the_script_moves_the_next_one() -> None:
    job = Job(blocked=1.0, durable=1.0, plan=SavePlan(blocked=1.0, durable=1.0))
    job.run(until=200.0)
    job.save_interval.note_copied(1.0)
    assert job.save_interval.why.startswith("requested by the script; else every ")
    job.save_interval.note_saved(1.0, 1.0)
    job.run(until=800.0)
    assert job.times[0] == pytest.approx(200.0 + daly(1.0, PRIOR_INTERVAL), abs=5.0)


def test_the_reason_names_no_interval_if_the_script_never_calls_should_save() -> None:
    job = Job(limit=HOUR, plan=SavePlan(blocked=0.5, durable=0.5))
    for _ in range(2):
        job.now += 30.0
        job.save_interval.note_copied(0.5)
        job.save_interval.note_saved(0.5, 0.5)
        assert job.save_interval.why == "requested by the script"


seconds = st.floats(0.0, 120.0)


@settings(deadline=None)
@given(
    limit=st.floats(600.0, 10_000.0),
    grace=st.floats(0.0, 120.0),
    step=st.floats(2.0, 60.0),
    durable=seconds,
    share=st.floats(0.0, 1.0),
    interruptions=st.integers(0, 50),
)
def test_whatever_it_costs_the_last_save_is_durable_before_the_deadline(
    limit: float, grace: float, step: float, durable: float, share: float, interruptions: int
) -> None:
    plan = SavePlan(observed=50 * HOUR, interruptions=interruptions)
    job = Job(limit, grace, step, durable * share, durable, plan).run()
    assert job.saves[-1][0] + durable <= limit
    assert job.saves[-1][1].startswith("the last before the deadline")
    # At most the margin and one or two steps are lost.
    assert job.worked - job.kept <= max(grace / 2, 2 * durable) + 2 * step
    assert job.kept > 0


@settings(deadline=None)
@given(
    limit=st.floats(3000.0, 10_000.0),
    step=st.floats(5.0, 20.0),
    durable=st.floats(0.0, 30.0),
    share=st.floats(0.0, 1.0),
    shortest=st.floats(0.0, 100.0),
    room=st.floats(100.0, 3000.0),
    interruptions=st.integers(0, 50),
)
def test_two_saves_are_never_further_apart_than_the_best_interval_or_the_users_limit(
    limit: float,
    step: float,
    durable: float,
    share: float,
    shortest: float,
    room: float,
    interruptions: int,
) -> None:
    blocked = durable * share
    plan = SavePlan(None, shortest, shortest + room, 50 * HOUR, interruptions, blocked, durable)
    job = Job(limit, 10.0, step, blocked, durable, plan).run()
    cost = blocked + 0.1 * (durable - blocked)
    best = daly(cost, (50 * HOUR + limit + PRIOR_INTERVAL) / (interruptions + 1))
    # Parts are made longer if they would be too short, and the last one ends at the deadline itself.
    allowed = max(min(best, plan.longest), 2 * shortest, 2 * durable)
    assert max(job.gaps, default=0.0) <= min(allowed, max(plan.longest, 2 * durable)) + 2 * step + 10.0
    assert min(job.gaps[:-1], default=math.inf) >= min(shortest, plan.longest / 2) - 1e-6


@settings(deadline=None)
@given(
    numbers=st.dictionaries(
        st.sampled_from(sorted(name for name in vars(env) if name.startswith(("SAVE_", "OBS", "INTERR")))),
        st.floats(-1e9, 1e9),
    ),
    limit=st.floats(1.0, 1000.0),
)
def test_with_any_environment_no_call_fails_and_the_last_save_is_made(
    numbers: Mapping[str, float], limit: float
) -> None:
    variables = {getattr(env, name): repr(value) for name, value in numbers.items()}
    plan = read_plan(variables, lambda name: float(variables[name]) if name in variables else None)
    job = Job(limit, 1.0, limit / 50, plan=plan).run()
    assert job.saves


def test_the_plan_is_read_from_the_environment() -> None:
    variables = {
        env.SAVE_EVERY: "auto",
        env.SAVE_SHORTEST: "5",
        env.SAVE_LONGEST: "700",
        env.OBSERVED: "7200.5",
        env.INTERRUPTIONS: "3",
        env.SAVE_BLOCKED: "0.25",
        env.SAVE_DURABLE: "4",
    }

    def number(name: str) -> float | None:
        return float(variables[name]) if name in variables else None

    assert read_plan(variables, number) == SavePlan(None, 5.0, 700.0, 7200.5, 3, 0.25, 4.0)
    variables[env.SAVE_EVERY] = "90"
    assert read_plan(variables, number).every == 90.0
    del variables[env.SAVE_DURABLE]
    assert replace(read_plan(variables, number), every=None) == SavePlan(None, 5.0, 700.0, 7200.5, 3)
    variables.clear()
    assert read_plan(variables, number) == SavePlan()


class Blind:
    """Young and Daly without a deadline: save after a fixed amount of work."""

    def __init__(self, interval: float) -> None:
        self.interval = interval

    def kept(self, limit: float, start: float, cost: float) -> float:
        """Return the seconds of work that a job saves."""
        whole = int((limit - start) // (self.interval + cost))
        return whole * self.interval


def test_under_a_limit_where_plain_daly_saves_nothing_most_of_the_job_is_kept() -> None:
    cost, start, between, limit = 120.0, 600.0, 24 * HOUR, HOUR
    assert Blind(daly(cost, between)).kept(limit, start, cost) == 0.0
    first = Job(limit - start, 30.0, 1.0, cost, cost).run()
    # The next attempt knows the cost of a save and needs none to measure it.
    known = SavePlan(observed=limit - start, blocked=cost, durable=cost)
    later = Job(limit - start, 30.0, 1.0, cost, cost, known).run()
    assert first.kept / limit > 0.7
    assert later.kept / limit > 0.75
    assert len(later.saves) == 1


def test_under_random_interruptions_it_keeps_about_as_much_as_the_best_fixed_interval() -> None:
    """The best fixed interval is found by trying; the automatic one must learn the interruption rate."""
    blocked, between, limit = 3.0, HOUR, 6 * HOUR

    def share(plan_for: Mapping[str, float], learns: bool) -> float:
        dice = random.Random(7)
        observed, interruptions, kept, spent = 0.0, 0, 0.0, 0.0
        for _ in range(60):
            plan = SavePlan(**plan_for)  # type: ignore[arg-type]
            if learns:
                plan = replace(plan, observed=observed, interruptions=interruptions)
            end = dice.expovariate(1 / between)
            job = Job(limit, 30.0, 5.0, blocked, blocked, plan).run(until=end)
            kept += job.kept
            spent += min(end, limit)
            observed += min(end, limit)
            interruptions += end < limit
        return kept / spent

    fixed = [
        share({"every": every, "longest": every}, learns=False) for every in (40, 80, 150, 300, 600, 1200)
    ]
    learned = share({"blocked": blocked, "durable": blocked}, learns=True)
    assert learned >= max(fixed) - 0.01
    assert learned > min(fixed) + 0.05
