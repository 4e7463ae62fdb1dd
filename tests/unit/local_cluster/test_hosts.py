"""Who runs where, and who next."""

from __future__ import annotations

import pytest

from outlast.local_cluster.hosts import Host, Need, Slots, hosts_from_json, hosts_to_json, this_machine
from outlast.local_cluster.job import JobState, LocalJob, Request
from outlast.local_cluster.queue import PASSED_OVER_SECONDS, JobQueue

ONE = Need(1, 0, frozenset())
TWO = Need(2, 0, frozenset())


def job(identity: int, need: Need = ONE) -> LocalJob:
    request = Request(str(identity), "", "/order", "/log", 60.0, 5.0, need)
    return LocalJob(identity, "group", request, "", submitted=0.0)


def start_all(waiting: JobQueue, slots: Slots, now: float = 0.0) -> list[tuple[int, str]]:
    started = []
    while (following := waiting.take_next(slots, now)) is not None:
        found, host = following
        slots.take(host, found.request.need)
        started.append((found.id, host))
    return started


def waiting_line(*jobs: LocalJob) -> JobQueue:
    waiting = JobQueue()
    for one in jobs:
        waiting.add(one)
    return waiting


def test_jobs_go_to_the_hosts_in_turn() -> None:
    slots = Slots({"a": Host(2), "b": Host(2), "c": Host(2)})
    started = start_all(waiting_line(*(job(n) for n in range(6))), slots)
    assert [host for _, host in started] == ["a", "b", "c", "a", "b", "c"]


def test_a_job_starts_in_the_order_of_submission_whatever_its_needs() -> None:
    slots = Slots({"a": Host(4)})
    started = start_all(waiting_line(job(1), job(2, TWO), job(3), job(4)), slots)
    assert [identity for identity, _ in started] == [1, 2, 3]


def test_a_job_that_does_not_fit_now_is_passed_over_by_one_that_does() -> None:
    slots = Slots({"a": Host(2)})
    slots.hold("a", 1, ())
    assert start_all(waiting_line(job(1, TWO), job(2)), slots) == [(2, "a")]


def test_a_job_passed_over_for_a_minute_keeps_smaller_ones_from_its_hosts_only() -> None:
    slots = Slots({"big": Host(2), "small": Host(1)})
    slots.hold("big", 1, ())
    waiting = waiting_line(job(1, TWO), job(2), job(3), job(4))
    assert start_all(waiting, slots, now=0.0) == [(2, "big"), (3, "small")]
    slots.give_back("big", 1, ())
    slots.give_back("small", 1, ())
    assert start_all(waiting, slots, now=PASSED_OVER_SECONDS) == [(4, "small")]
    slots.give_back("big", 1, ())
    assert start_all(waiting, slots, now=PASSED_OVER_SECONDS) == [(1, "big")]


def test_a_job_that_nobody_passed_has_not_been_passed_over_however_long_it_waits() -> None:
    slots = Slots({"a": Host(2)})
    slots.hold("a", 1, ())
    waiting = waiting_line(job(1, TWO))
    assert start_all(waiting, slots, now=0.0) == []
    waiting.add(job(2))
    assert start_all(waiting, slots, now=10 * PASSED_OVER_SECONDS) == [(2, "a")]


def test_a_job_that_ended_while_it_waited_is_not_started() -> None:
    ended = job(1)
    waiting = waiting_line(ended, job(2))
    ended.phase = JobState.ENDED
    assert [one.id for one in waiting] == [2]
    assert start_all(waiting, Slots({"a": Host(1)})) == [(2, "a")]
    assert not waiting


def test_each_gpu_goes_to_one_job_at_a_time() -> None:
    slots = Slots({"a": Host(8, gpus=3)})
    need = Need(1, 2, frozenset())
    first = slots.take("a", need)
    assert first == (0, 1)
    assert slots.find(need) is None
    assert slots.take("a", Need(1, 1, frozenset())) == (2,)
    slots.give_back("a", 1, first)
    assert slots.take("a", need) == (0, 1)


def test_a_host_that_shrank_or_went_takes_no_job_until_it_has_room_again() -> None:
    slots = Slots({"a": Host(4), "b": Host(1)})
    slots.hold("a", 3, ())
    slots.hold("b", 1, ())
    slots.configure({"a": Host(2)})
    assert slots.find(ONE) is None
    slots.give_back("a", 3, ())
    slots.give_back("b", 1, ())
    assert slots.find(ONE) == "a"


def test_why_no_host_can_ever_do_it_names_each_host_and_what_it_offers() -> None:
    slots = Slots({"a": Host(4), "b": Host(8)})
    why = slots.why_never(Need(5, 0, frozenset({"b"})))
    assert why == "no host can ever give 5 cpus and 0 gpus: a (4 cpus, 0 gpus), b (8 cpus, 0 gpus, avoided)"
    assert slots.why_never(Need(5, 0, frozenset())) == ""


def test_hosts_survive_the_way_through_json() -> None:
    hosts = {"a": Host(1, 2), "b": Host(3)}
    assert hosts_from_json(hosts_to_json(hosts)) == hosts


@pytest.mark.parametrize(
    "raw", [{}, [], None, {"a": 1}, {"a": {"cpus": 0}}, {"a": {"cpus": "2"}}, {"a": {"cpus": 1, "gpus": -1}}]
)
def test_a_table_of_hosts_that_cannot_be_meant_is_refused(raw: object) -> None:
    with pytest.raises(ValueError, match="host"):
        hosts_from_json(raw)


def test_without_a_profile_the_one_host_is_this_machine() -> None:
    ((name, host),) = this_machine().items()
    assert name
    assert host.cpus >= 1
