"""What the next attempt requests after one that ran out of memory, disk or time."""

from __future__ import annotations

from typing import Any

from outlast.domain.model import (
    Attempt,
    AttemptState,
    Cause,
    Ending,
    Limits,
    Outcome,
    Resources,
    Run,
    RunState,
    Spec,
)
from outlast.domain.resource_requests import apply_request, describe, next_request, raised

GB = 10**9
RESOURCES = Resources(memory=2 * GB, disk=5 * GB, time=3600.0)
CONDOR = {"scheduler": "htcondor"}


def a_spec(limits: Limits | None = None, **profile: Any) -> Spec:
    return Spec("s", "train", resources=RESOURCES, limits=limits or Limits(), profile=profile)


def a_run(outcome: Outcome, ending: dict[str, Any], **changes: Any) -> Run:
    last = Ending(1, "a", outcome, "why", 1.0, **ending)
    return Run("r", 0, 1, {}, RunState.WAITING, 0.0, 0.0, last=last, **changes)


def test_without_a_measured_peak_the_memory_is_doubled_up_to_four_times() -> None:
    for before, after, most in ((None, 4 * GB, False), (4 * GB, 8 * GB, True)):
        run = a_run(Outcome.OUT_OF_MEMORY, {"lacked_memory": True}, memory=before)
        growth = next_request(run, a_spec())
        assert raised(growth, a_spec()) == {"memory": after, **({"most": True} if most else {})}
    at_most = a_run(Outcome.OUT_OF_MEMORY, {"lacked_memory": True}, memory=8 * GB)
    growth = next_request(at_most, a_spec())
    assert growth.request == growth.before
    assert describe(growth, "retrying once").endswith("allows no more than 8 GB of memory")


def test_a_measured_peak_above_the_request_counts_and_limits_and_hosts_bound_it() -> None:
    run = a_run(Outcome.OUT_OF_MEMORY, {"lacked_memory": True, "peak": 4 * GB})
    assert next_request(run, a_spec()).request.memory == 6 * GB
    assert next_request(run, a_spec(Limits(memory=3 * GB))).request.memory == 3 * GB
    assert next_request(run, a_spec(), memory=5 * GB).request.memory == 5 * GB
    # A host with less than was requested before does not make the request smaller.
    assert next_request(run, a_spec(), memory=GB).request.memory == 2 * GB


def test_a_larger_request_is_kept_for_attempts_after_other_ends() -> None:
    run = a_run(Outcome.EVICTED, {}, memory=4 * GB)
    assert raised(next_request(run, a_spec()), a_spec()) == {"memory": 4 * GB}


def test_disk_grows_only_where_jobs_request_it_and_not_for_the_access_point() -> None:
    run = a_run(Outcome.OUT_OF_DISK, {})
    assert raised(next_request(run, a_spec(**CONDOR)), a_spec(**CONDOR)) == {"disk": 10 * GB}
    assert not raised(next_request(run, a_spec(scheduler="slurm")), a_spec())
    full = a_run(Outcome.OUT_OF_DISK, {"cause": Cause.ACCESS_POINT})
    assert not raised(next_request(full, a_spec(**CONDOR)), a_spec())


def test_time_grows_only_if_nothing_was_saved_and_within_the_limit_of_the_cluster() -> None:
    run = a_run(Outcome.OVER_TIME, {"unsaved": True})
    assert next_request(run, a_spec()).request.time == 7200.0
    assert next_request(run, a_spec(longest=5400.0)).request.time == 5400.0
    assert next_request(a_run(Outcome.OVER_TIME, {}), a_spec()).request.time == 3600.0


def test_the_request_of_an_attempt_replaces_the_resources_of_its_spec() -> None:
    attempt = Attempt("r", 2, "b", AttemptState.INTENDED, 0.0, memory=4 * GB, time=7200.0)
    spec = apply_request(a_spec(), attempt)
    assert (spec.resources.memory, spec.resources.disk, spec.job_time) == (4 * GB, 5 * GB, 7200.0)
