"""When to save by itself: seldom enough to cost little, often enough to lose little, always in time."""

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
from outlast.training.save_interval import FIRST, PRIOR, SaveInterval, SavePlan, daly, read_plan

HOUR = 3600.0


@dataclass
class Job:
    """A training on a clock of its own: steps, saves that block it and go on behind, a deadline."""

    limit: float = math.inf
    grace: float = 30.0
    step: float = 1.0
    blocked: float = 0.0
    durable: float = 0.0
    plan: SavePlan = SavePlan()  # noqa: RUF009 - frozen
    #: Stop signals get lost on the way.
    signal: bool = False
    now: float = 1000.0
    #: When each save began, on a clock that starts with the job, and why.
    saves: list[tuple[float, str]] = field(default_factory=list)
    worked: float = 0.0
    kept: float = 0.0

    def __post_init__(self) -> None:
        self._began = self.now
        deadline = None if math.isinf(self.limit) else 50_000.0 + self.limit
        self.clock = Deadline(deadline, self.grace, wall=lambda: 50_000.0, now=lambda: self.now)
        self.rhythm = SaveInterval(self.clock, self.plan)
        self._writing: list[tuple[float, float]] = []

    @property
    def time(self) -> float:
        return self.now - self._began

    def run(self, until: float = math.inf) -> Job:
        """Until the deadline, or until somebody pulls the plug at `until`."""
        end = min(self.limit, until)
        self.rhythm.due()
        while self.time + self.step <= end:
            self.now += self.step
            self.worked += self.step
            self._tell()
            if self.signal and self.time >= self.limit - self.grace:
                self.clock._on_signal(15, None)
            if self.rhythm.due():
                began = self.time
                self.now += self.blocked
                if began + self.durable <= end:
                    self.kept = self.worked
                self.rhythm.taken(self.blocked)
                self.saves.append((began, self.rhythm.why))
                self._writing.append((began + self.durable, self.durable))
        return self

    def _tell(self) -> None:
        while self._writing and self._writing[0][0] <= self.time:
            self.rhythm.saved(self.blocked, self._writing.pop(0)[1])

    @property
    def times(self) -> list[float]:
        return [began for began, _ in self.saves]

    @property
    def gaps(self) -> list[float]:
        """Seconds of work from the end of one save to the beginning of the next."""
        return [later - one - self.blocked for one, later in zip(self.times, self.times[1:], strict=False)]


def test_the_best_interval_is_that_of_young_and_daly() -> None:
    assert daly(1.0, 24 * HOUR) == pytest.approx(math.sqrt(2 * 24 * HOUR), rel=0.01)
    assert daly(120.0, 24 * HOUR) == pytest.approx(4474.0, abs=5.0)
    # Where a save takes longer than the cluster leaves it alone, the formula does not hold.
    assert daly(100.0, 10.0) == 10.0


@pytest.mark.parametrize(("cost", "between"), [(0.5, 7200.0), (5.0, 3600.0), (60.0, 20_000.0)])
def test_no_other_interval_loses_less(cost: float, between: float) -> None:
    def lost(interval: float) -> float:
        """Share of the time that saving and work done twice take, interruptions coming at random."""
        return 1 - interval / (between * math.expm1((interval + cost) / between))

    best = daly(cost, between)
    assert lost(best) <= min(lost(best * factor) for factor in (0.5, 0.8, 1.25, 2.0))


def test_the_first_save_comes_early_because_its_cost_is_not_known_yet() -> None:
    job = Job(limit=10 * HOUR, blocked=2.0, durable=2.0).run()
    assert job.times[0] == pytest.approx(FIRST, abs=2 * job.step)
    assert job.saves[0][1] == "the first, to learn what a save costs"
    assert job.times[1] - job.times[0] > 5 * FIRST


def test_in_a_short_job_the_first_save_comes_after_a_small_part_of_it() -> None:
    job = Job(limit=20.0, grace=2.0, step=0.1, blocked=0.01, durable=0.1).run()
    assert job.times[0] <= 2.1


def test_where_an_earlier_attempt_knew_the_cost_no_save_is_made_to_learn_it() -> None:
    job = Job(limit=HOUR, blocked=0.2, durable=1.0, plan=SavePlan(blocked=0.2, durable=1.0)).run()
    assert job.times[0] == pytest.approx(daly(0.28, PRIOR), rel=0.2)
    assert job.saves[0][1].startswith("every ")


def test_the_more_interruptions_were_seen_the_more_often_it_saves() -> None:
    calm = Job(until := 8 * HOUR, blocked=1.0, durable=1.0).run()
    stormy = Job(until, blocked=1.0, durable=1.0, plan=SavePlan(observed=4 * HOUR, interruptions=6)).run()
    assert len(stormy.saves) > 1.5 * len(calm.saves)
    assert "an interruption is expected every 4 h" in stormy.saves[1][1]
    assert "(6 so far)" in stormy.saves[1][1]


def test_what_is_written_behind_costs_less_than_what_the_loop_waits_for() -> None:
    waiting = Job(8 * HOUR, blocked=5.0, durable=5.0).run()
    behind = Job(8 * HOUR, blocked=0.1, durable=5.0).run()
    assert len(behind.saves) > 2 * len(waiting.saves)


def test_no_save_is_due_while_the_one_before_is_being_written() -> None:
    job = Job(8 * HOUR, blocked=0.0, durable=300.0, plan=SavePlan(observed=HOUR, interruptions=500)).run()
    assert min(job.gaps[:-1]) >= 300.0
    assert "as long as it takes to write one" in job.saves[2][1]


def test_a_save_whose_end_is_never_told_does_not_end_all_saving() -> None:
    job = Job(plan=SavePlan(longest=600.0), durable=math.inf).run(until=2000.0)
    assert len(job.saves) == 4


def test_the_last_save_is_due_although_the_one_before_is_still_being_written() -> None:
    job = Job(limit=600.0, grace=40.0, durable=math.inf).run()
    assert [why for _, why in job.saves] == [
        "the first, to learn what a save costs",
        "the last before the deadline",
    ]


def test_a_save_that_failed_is_tried_again_and_says_nothing_of_costs() -> None:
    job = Job(limit=HOUR)
    while not job.rhythm.due():
        job.now += 1.0
    job.rhythm.taken(0.5)
    job.rhythm.failed()
    assert not job.rhythm.due()
    while not job.rhythm.due():
        job.now += 1.0
    assert job.time <= 2 * FIRST + 2
    assert job.rhythm.why == "the first, to learn what a save costs"


def test_a_word_from_the_writer_that_is_faster_than_the_loop_is_understood() -> None:
    job = Job(limit=HOUR, grace=10.0)
    while not job.rhythm.due():
        job.now += 1.0
    job.rhythm.saved(0.1, 0.1)
    job.rhythm.taken(0.1)
    job.blocked = job.durable = 0.1
    assert job.run().gaps[0] < 200.0


def test_a_fixed_interval_is_kept_and_the_last_save_still_comes_in_time() -> None:
    job = Job(limit=1000.0, grace=20.0, blocked=0.5, durable=0.5, plan=SavePlan(every=300.0)).run()
    assert job.times[:3] == pytest.approx([300.0, 600.5, 901.0], abs=2.0)
    assert job.times[3] == pytest.approx(989.0, abs=2.0)
    whys = [why.partition(";")[0] for _, why in job.saves]
    assert whys == ["every 5 min, as was asked for"] * 3 + ["the last before the deadline"]


def test_bounds_of_the_users_hold() -> None:
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
    assert job.saves[-1][1].startswith("told to stop; else every ")
    assert sum(why.startswith("told to stop") for _, why in job.saves) == 1


def test_a_slow_first_step_does_not_make_the_first_save_the_last() -> None:
    job = Job(limit=1300.0, grace=10.0)
    job.rhythm.due()
    job.now += 700.0
    assert job.rhythm.due(), "another step like this one would be too long"
    job.rhythm.taken(0.0)
    job.rhythm.saved(0.0, 0.1)
    job.run()
    assert job.kept == pytest.approx(1300.0 - 700.0, abs=10.0)


def test_a_save_that_the_training_chose_moves_the_next_one() -> None:
    job = Job(blocked=1.0, durable=1.0, plan=SavePlan(blocked=1.0, durable=1.0))
    job.run(until=200.0)
    job.rhythm.taken(1.0)
    assert job.rhythm.why.startswith("the training's own choice; else every ")
    job.rhythm.saved(1.0, 1.0)
    job.run(until=800.0)
    assert job.times[0] == pytest.approx(200.0 + daly(1.0, PRIOR), abs=5.0)


def test_a_training_that_never_asks_is_told_nothing_of_a_rhythm() -> None:
    job = Job(limit=HOUR, plan=SavePlan(blocked=0.5, durable=0.5))
    for _ in range(2):
        job.now += 30.0
        job.rhythm.taken(0.5)
        job.rhythm.saved(0.5, 0.5)
        assert job.rhythm.why == "the training's own choice"


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
    # What is lost is what the margin is for, and a step or two.
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
def test_between_two_saves_there_is_never_more_than_the_best_interval_or_the_bound_of_the_users(
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
    best = daly(cost, (50 * HOUR + limit + PRIOR) / (interruptions + 1))
    # Parts are made longer so as not to be too short; and the last one reaches to the deadline itself.
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
def test_whatever_the_environment_says_no_call_fails_and_the_last_save_is_made(
    numbers: Mapping[str, float], limit: float
) -> None:
    told = {getattr(env, name): repr(value) for name, value in numbers.items()}
    plan = read_plan(told, lambda name: float(told[name]) if name in told else None)
    job = Job(limit, 1.0, limit / 50, plan=plan).run()
    assert job.saves


def test_the_plan_is_what_the_environment_says() -> None:
    told = {
        env.SAVE_EVERY: "auto",
        env.SAVE_SHORTEST: "5",
        env.SAVE_LONGEST: "700",
        env.OBSERVED: "7200.5",
        env.INTERRUPTIONS: "3",
        env.SAVE_BLOCKED: "0.25",
        env.SAVE_DURABLE: "4",
    }

    def number(name: str) -> float | None:
        return float(told[name]) if name in told else None

    assert read_plan(told, number) == SavePlan(None, 5.0, 700.0, 7200.5, 3, 0.25, 4.0)
    told[env.SAVE_EVERY] = "90"
    assert read_plan(told, number).every == 90.0
    del told[env.SAVE_DURABLE]
    assert replace(read_plan(told, number), every=None) == SavePlan(None, 5.0, 700.0, 7200.5, 3)
    told.clear()
    assert read_plan(told, number) == SavePlan()


class Blind:
    """Young and Daly without a deadline: after so much work, whatever the clock says."""

    def __init__(self, interval: float) -> None:
        self.interval = interval

    def kept(self, limit: float, start: float, cost: float) -> float:
        """Seconds of work that a job brings to safety."""
        whole = int((limit - start) // (self.interval + cost))
        return whole * self.interval


def test_where_blind_daly_gets_nowhere_under_a_limit_most_of_the_job_is_kept() -> None:
    cost, start, between, limit = 120.0, 600.0, 24 * HOUR, HOUR
    assert Blind(daly(cost, between)).kept(limit, start, cost) == 0.0
    first = Job(limit - start, 30.0, 1.0, cost, cost).run()
    # The next attempt knows what a save costs and needs none to learn it.
    known = SavePlan(observed=limit - start, blocked=cost, durable=cost)
    later = Job(limit - start, 30.0, 1.0, cost, cost, known).run()
    assert first.kept / limit > 0.7
    assert later.kept / limit > 0.75
    assert len(later.saves) == 1


def test_under_random_interruptions_it_keeps_about_as_much_as_the_best_fixed_interval() -> None:
    """The best one is found afterwards, by trying; the rhythm has to learn how often it is interrupted."""
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
