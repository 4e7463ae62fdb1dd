"""The allocation of hosts, and the order of the queue."""

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


def start_all(queue: JobQueue, slots: Slots, now: float = 0.0) -> list[tuple[int, str]]:
    started = []
    while (startable := queue.pop_next(slots, now)) is not None:
        found, host = startable
        slots.allocate(host, found.request.need)
        started.append((found.id, host))
    return started


def queue_of(*jobs: LocalJob) -> JobQueue:
    queue = JobQueue()
    for one in jobs:
        queue.add(one)
    return queue


def test_jobs_are_allocated_to_the_hosts_in_rotation() -> None:
    slots = Slots({"a": Host(2), "b": Host(2), "c": Host(2)})
    started = start_all(queue_of(*(job(n) for n in range(6))), slots)
    assert [host for _, host in started] == ["a", "b", "c", "a", "b", "c"]


def test_jobs_start_in_the_order_of_submission_whatever_they_need() -> None:
    slots = Slots({"a": Host(4)})
    started = start_all(queue_of(job(1), job(2, TWO), job(3), job(4)), slots)
    assert [identity for identity, _ in started] == [1, 2, 3]


def test_a_job_that_fits_overtakes_one_that_does_not_fit_now() -> None:
    slots = Slots({"a": Host(2)})
    slots.mark_used("a", 1, ())
    assert start_all(queue_of(job(1, TWO), job(2)), slots) == [(2, "a")]


def test_a_job_overtaken_for_a_minute_reserves_its_hosts_only() -> None:
    slots = Slots({"big": Host(2), "small": Host(1)})
    slots.mark_used("big", 1, ())
    queue = queue_of(job(1, TWO), job(2), job(3), job(4))
    assert start_all(queue, slots, now=0.0) == [(2, "big"), (3, "small")]
    slots.release("big", 1, ())
    slots.release("small", 1, ())
    assert start_all(queue, slots, now=PASSED_OVER_SECONDS) == [(4, "small")]
    slots.release("big", 1, ())
    assert start_all(queue, slots, now=PASSED_OVER_SECONDS) == [(1, "big")]


def test_a_job_that_no_other_overtook_reserves_nothing_however_long_it_waits() -> None:
    slots = Slots({"a": Host(2)})
    slots.mark_used("a", 1, ())
    queue = queue_of(job(1, TWO))
    assert start_all(queue, slots, now=0.0) == []
    queue.add(job(2))
    assert start_all(queue, slots, now=10 * PASSED_OVER_SECONDS) == [(2, "a")]


def test_a_job_that_ended_while_it_waited_is_not_started() -> None:
    ended = job(1)
    queue = queue_of(ended, job(2))
    ended.phase = JobState.ENDED
    assert [one.id for one in queue] == [2]
    assert start_all(queue, Slots({"a": Host(1)})) == [(2, "a")]
    assert not queue


def test_each_gpu_goes_to_one_job_at_a_time() -> None:
    slots = Slots({"a": Host(8, gpus=3)})
    need = Need(1, 2, frozenset())
    first = slots.allocate("a", need)
    assert first == (0, 1)
    assert slots.find(need) is None
    assert slots.allocate("a", Need(1, 1, frozenset())) == (2,)
    slots.release("a", 1, first)
    assert slots.allocate("a", need) == (0, 1)


def test_a_host_that_shrank_or_was_removed_gets_no_job_until_it_has_room_again() -> None:
    slots = Slots({"a": Host(4), "b": Host(1)})
    slots.mark_used("a", 3, ())
    slots.mark_used("b", 1, ())
    slots.configure({"a": Host(2)})
    assert slots.find(ONE) is None
    slots.release("a", 3, ())
    slots.release("b", 1, ())
    assert slots.find(ONE) == "a"


def test_the_reason_why_no_host_fits_names_each_host_and_its_resources() -> None:
    slots = Slots({"a": Host(4), "b": Host(8)})
    why = slots.why_impossible(Need(5, 0, frozenset({"b"})))
    assert (
        why == "no host has 5 cpus and 0 gpus for this job: a (4 cpus, 0 gpus), b (8 cpus, 0 gpus, avoided)"
    )
    assert slots.why_impossible(Need(5, 0, frozenset())) == ""


def test_hosts_survive_a_round_trip_through_json() -> None:
    hosts = {"a": Host(1, 2), "b": Host(3)}
    assert hosts_from_json(hosts_to_json(hosts)) == hosts


@pytest.mark.parametrize(
    "raw", [{}, [], None, {"a": 1}, {"a": {"cpus": 0}}, {"a": {"cpus": "2"}}, {"a": {"cpus": 1, "gpus": -1}}]
)
def test_invalid_hosts_are_refused(raw: object) -> None:
    with pytest.raises(ValueError, match="host"):
        hosts_from_json(raw)


def test_without_a_profile_the_one_host_is_this_machine() -> None:
    ((name, host),) = this_machine().items()
    assert name
    assert host.cpus >= 1
