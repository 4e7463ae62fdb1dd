"""The Slurm adapter, tested with the real output of Slurm 22.05 and with programs that fail like Slurm's."""

from __future__ import annotations

import shlex
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from outlast.node.protocol import Outcome
from outlast.schedulers import command_runner
from outlast.schedulers.base import (
    JobPhase,
    JobRef,
    JobRequest,
    JobView,
    Removal,
    SchedulerUnavailable,
    SubmitStatus,
)
from outlast.schedulers.command_runner import CommandNotRun, CommandOutput, CommandTimeout
from outlast.schedulers.profile import Profile
from outlast.schedulers.slurm.adapter import RECORD_DELAY, SlurmScheduler
from outlast.schedulers.slurm.listing import parse_sacct, parse_squeue
from outlast.schedulers.slurm.states import (
    describe_state,
    outcome_of,
    parse_sbatch_output,
    phase_of,
    removal_of,
)
from outlast.schedulers.slurm.submit import batch_script, group_into_arrays, sbatch_command
from outlast.schedulers.slurm.views import build_views

PLAIN = JobRequest(
    token="b7-1",
    name="train",
    order="/x/params/1/order.json",
    zipapp="/x/params/outlast.pyz",
    log="/x/logs/one.log",
    cpus=2,
    gpus=0,
    memory=3 * 10**9,
    disk=10**9,
    time=3600.0,
    grace=30.0,
)
NAME = "train.g.b7"


def squeue_output(*rows: str) -> str:
    """Return squeue output of rows array|task|state|wait status|restarts|host|start|end|used|reason|name."""
    return "".join(row + "|\n" for row in rows)


def view(squeue: str = "", sacct: str = "", token: str = "b7-1") -> JobView:
    return build_views(parse_squeue(squeue, "g"), parse_sacct(sacct, "g"))[token]


# Output of squeue and sacct.


def test_an_exit_code_is_read_from_the_wait_status_that_squeue_prints() -> None:
    shown = view(
        squeue_output("1|1|FAILED|768|0|n1|1794785937|1794785939|0:02|NonZeroExitCode|train.g.b7.1"),
        token="b7-1",
    )
    assert shown == JobView(
        token="b7-1",
        job="1_1",
        phase=JobPhase.ENDED,
        host="n1",
        started=1794785937.0,
        ended=1794785939.0,
        elapsed=2.0,
        exit_code=3,
    )


@pytest.mark.parametrize(
    ("state", "status", "code", "signal"),
    [
        ("COMPLETED", 0, 0, None),
        ("FAILED", 9, None, 9),
        ("CANCELLED", 2304, 9, None),
        ("CANCELLED", 0, None, None),
        ("TIMEOUT", 0, None, None),
        ("TIMEOUT", 15, None, 15),
        ("OUT_OF_MEMORY", 253, None, None),
    ],
)
def test_code_and_signal_are_distinguished_and_zero_counts_only_for_a_job_that_ended_by_itself(
    state: str, status: int, code: int | None, signal: int | None
) -> None:
    shown = view(squeue_output("1|1|%s|%d|0|n1|100|102|0:02|None|train.g.b7.1" % (state, status)))
    assert (shown.exit_code, shown.signal) == (code, signal)


def test_a_running_job_has_a_start_and_no_end_though_squeue_prints_the_expected_one() -> None:
    shown = view(
        squeue_output("9|2|RUNNING|0|0|n1|1794786076|1794789676|1-00:00:04|None|" + NAME), token="b7-2"
    )
    assert (shown.phase, shown.started, shown.ended) == (JobPhase.RUNNING, 1794786076.0, None)
    assert shown.elapsed == 86404.0


def test_a_waiting_job_has_no_start_though_squeue_prints_the_expected_one() -> None:
    shown = view(squeue_output("3|1|PENDING|0|0|n/a|1794789537|1794793137|0:00|Priority|train.g.b7.1"))
    assert (shown.phase, shown.started, shown.host, shown.elapsed) == (JobPhase.QUEUED, None, "", None)
    assert shown.reason == "pending behind jobs of higher priority (Priority)"


def test_jobs_of_other_experiments_and_other_people_are_skipped() -> None:
    text = squeue_output(
        "1|1|RUNNING|0|0|n1|1|2|0:02|None|train.other.b7.1",
        "2|N/A|RUNNING|0|0|n1|1|2|0:02|None|bash",
        "3|1|RUNNING|0|0|n1|1|2|0:02|None|odd|name",
        "",
    )
    assert parse_squeue(text, "g") == []


def test_a_submission_that_slurm_rejected_is_not_a_job_though_it_is_listed() -> None:
    assert parse_squeue(squeue_output("75|1|FAILED|0|0|n/a|9|9|0:00|BadConstraints|train.g.b7.1"), "g") == []


def test_an_array_of_one_that_was_cancelled_while_it_waited_is_known_by_its_name() -> None:
    shown = view(squeue_output("29|N/A|CANCELLED|0|0|n/a|1794786074|1794786074|0:00|None|train.g.b7.1"))
    assert (shown.job, shown.phase, shown.started, shown.elapsed) == ("29_1", JobPhase.ENDED, None, 0.0)
    assert shown.outcome is Outcome.CANCELLED


SACCT_REQUEUED = """\
9_1|REQUEUED|0:0|n1|1794786076|1794786078|2||train.g.b7
9_1.batch|CANCELLED|0:15|n1|1794786076|1794786078|2|5000K|batch
9_2|NODE_FAIL|0:0|n1|1794786076|1794786084|8||train.g.b7
9_2.batch|CANCELLED||n1|1794786076|1794786084|8||batch
9_1|FAILED|4:0|n2|1794786081|1794786084|3||train.g.b7
9_1.batch|FAILED|4:0|n2|1794786081|1794786084|3|9092K|batch
9_1.extern|COMPLETED|0:0|n2|1794786081|1794786084|3|1K|extern
9_2|CANCELLED by 0|0:0|None assigned|1794786086|1794786086|0||train.g.b7
"""


def test_all_starts_of_a_requeued_job_count_and_the_last_one_decides_how_it_ended() -> None:
    shown = view(sacct=SACCT_REQUEUED)
    assert (shown.elapsed, shown.restarts, shown.exit_code, shown.host) == (5.0, 1, 4, "n2")
    assert (shown.started, shown.ended, shown.outcome) == (1794786081.0, 1794786084.0, None)
    assert shown.memory == 9092 * 1024


def test_a_start_that_both_squeue_and_sacct_list_is_counted_once() -> None:
    squeue = squeue_output("9|1|FAILED|1024|1|n2|1794786081|1794786084|0:03|NonZeroExitCode|" + NAME)
    shown = view(squeue, SACCT_REQUEUED)
    assert (shown.elapsed, shown.restarts, shown.exit_code, shown.memory) == (5.0, 1, 4, 9092 * 1024)


def test_a_requeued_job_that_waits_has_not_been_started_again_yet() -> None:
    shown = view(squeue_output("9|1|PENDING|0|1|n/a|1794786199|1794789799|0:00|BeginTime|" + NAME))
    assert (shown.phase, shown.restarts, shown.started) == (JobPhase.QUEUED, 0, None)
    again = view(squeue_output("9|1|RUNNING|0|1|n2|1794786199|1794789799|0:07|None|" + NAME))
    assert (again.phase, again.restarts, again.elapsed) == (JobPhase.RUNNING, 1, 7.0)


@pytest.mark.parametrize(
    ("state", "begins"),
    [("NODE_FAIL", "requeued, node n1 failed; "), ("PREEMPTED", "requeued, preempted on n1; "),
     ("REQUEUED", "requeued from n1; "), ("", "requeued; ")],
)  # fmt: skip
def test_why_a_job_was_requeued_is_shown(state: str, begins: str) -> None:
    waits = squeue_output("9|1|PENDING|0|1|n/a|1794786199|1794789799|0:00|BeginTime|" + NAME)
    before = "9_1|%s|0:0|n1|1794786076|1794786084|8||train.g.b7\n" % state if state else ""
    shown = view(waits, before)
    assert shown.phase is JobPhase.QUEUED and shown.reason.startswith(begins + "pending until its earliest")


def test_a_requeued_job_that_was_cancelled_while_it_waited_has_used_its_first_start() -> None:
    shown = view(sacct=SACCT_REQUEUED, token="b7-2")
    assert (shown.outcome, shown.elapsed, shown.host) == (Outcome.CANCELLED, 8.0, "n1")


def test_without_accounting_only_the_last_start_of_a_requeued_job_is_known() -> None:
    shown = view(squeue_output("9|1|COMPLETED|0|1|n2|1794786081|1794786084|0:03|None|" + NAME))
    assert (shown.restarts, shown.elapsed, shown.since) == (1, 3.0, 1794786081.0)
    shown = view(squeue_output("9|1|COMPLETED|0|0|n2|1794786081|1794786084|0:03|None|" + NAME))
    assert (shown.elapsed, shown.since) == (3.0, None)
    shown = view(squeue_output("9|1|CANCELLED|0|1|n/a|1794786081|1794786084|0:00|None|" + NAME))
    assert (shown.elapsed, shown.since) == (None, None)


def test_without_accounting_the_time_of_a_chain_is_known_from_its_last_requeued_job_on() -> None:
    rows = [
        "%d|1|COMPLETED|0|%d|n2|%d|%d|0:03|None|train.g.b7.1" % (job, before, 100 * job, 100 * job + 3)
        for job, before in ((1, 0), (2, 1), (3, 0))
    ]
    shown = view(squeue_output(*rows))
    assert (shown.restarts, shown.elapsed, shown.since) == (3, 6.0, 200.0)


def test_the_exit_code_of_a_cancelled_job_is_that_of_its_batch_step() -> None:
    shown = view(
        sacct="5_1|CANCELLED by 1000|0:0|n1|100|102|2||train.g.b7.1\n"
        "5_1.batch|FAILED|9:0|n1|100|102|2||batch\n"
    )
    assert (shown.exit_code, shown.outcome) == (9, Outcome.CANCELLED)


def test_one_row_of_sacct_stands_for_all_tasks_that_never_started() -> None:
    rows = parse_sacct(
        "8_[1,3-5%2]|CANCELLED by 0|0:0|None assigned|1794786074|1794786074|0||" + NAME + "\n", "g"
    )
    assert [row.token for row in rows] == ["b7-1", "b7-3", "b7-4", "b7-5"]
    assert all(row.started is None for row in rows)


def test_a_job_that_only_sacct_calls_running_is_not_listed() -> None:
    rows = parse_sacct("5_1|RUNNING|0:0|n1|100|Unknown|9999||train.g.b7.1\n", "g")
    assert build_views([], rows) == {}


def test_a_chain_is_one_view_of_the_job_that_runs() -> None:
    shown = view(
        squeue_output(
            "12|1|PENDING|0|0|n/a|N/A|N/A|0:00|Dependency|train.g.b7.1",
            "11|1|RUNNING|0|0|n2|200|900|1:40|None|train.g.b7.1",
            "10|1|FAILED|21760|0|n1|100|190|1:30|NonZeroExitCode|train.g.b7.1",
        )
    )
    assert (shown.phase, shown.job, shown.host) == (JobPhase.RUNNING, "10_1,11_1,12_1", "n2")
    assert (shown.elapsed, shown.restarts) == (190.0, 1)


def test_a_chain_whose_rest_was_cancelled_ended_as_the_last_job_that_ran() -> None:
    shown = view(
        squeue_output(
            "10|1|FAILED|21760|0|n1|100|190|1:30|NonZeroExitCode|train.g.b7.1",
            "11|1|COMPLETED|0|0|n2|200|300|1:40|None|train.g.b7.1",
            "12|N/A|CANCELLED|0|0|n/a|301|301|0:00|Dependency|train.g.b7.1",
        )
    )
    assert (shown.phase, shown.exit_code, shown.outcome, shown.ended) == (JobPhase.ENDED, 0, None, 300.0)


# States and reasons.


@pytest.mark.parametrize(
    ("state", "phase", "outcome"),
    [
        ("PENDING", JobPhase.QUEUED, None),
        ("CONFIGURING", JobPhase.RUNNING, None),
        ("RUNNING", JobPhase.RUNNING, None),
        ("COMPLETING", JobPhase.RUNNING, None),
        ("SUSPENDED", JobPhase.RUNNING, None),
        ("STOPPED", JobPhase.RUNNING, None),
        ("SIGNALING", JobPhase.RUNNING, None),
        ("STAGE_OUT", JobPhase.RUNNING, None),
        ("RESIZING", JobPhase.RUNNING, None),
        ("REQUEUE_FED", JobPhase.QUEUED, None),
        ("REQUEUE_HOLD", JobPhase.QUEUED, None),
        ("RESV_DEL_HOLD", JobPhase.QUEUED, None),
        ("SPECIAL_EXIT", JobPhase.HELD, None),
        ("COMPLETED", JobPhase.ENDED, None),
        ("FAILED", JobPhase.ENDED, None),
        ("TIMEOUT", JobPhase.ENDED, Outcome.OVER_TIME),
        ("DEADLINE", JobPhase.ENDED, Outcome.OVER_TIME),
        ("OUT_OF_MEMORY", JobPhase.ENDED, Outcome.OUT_OF_MEMORY),
        ("NODE_FAIL", JobPhase.ENDED, Outcome.NODE_TROUBLE),
        ("BOOT_FAIL", JobPhase.ENDED, Outcome.NODE_TROUBLE),
        ("PREEMPTED", JobPhase.ENDED, Outcome.EVICTED),
        ("CANCELLED", JobPhase.ENDED, Outcome.CANCELLED),
        ("REVOKED", JobPhase.ENDED, Outcome.CANCELLED),
    ],
)
def test_every_slurm_state_has_its_phase_and_outcome(
    state: str, phase: JobPhase, outcome: Outcome | None
) -> None:
    assert (phase_of(state, "None"), outcome_of(state, "None")) == (phase, outcome)


@pytest.mark.parametrize(
    ("state", "removed"),
    [
        ("CANCELLED", Removal.YES),
        ("REVOKED", Removal.NO),
        ("PREEMPTED", Removal.NO),
        ("TIMEOUT", Removal.NO),
        ("FAILED", Removal.NO),
        ("COMPLETED", Removal.NO),
        ("MEDITATING", Removal.NO),
    ],
)
def test_only_a_cancelled_job_was_removed_by_somebody(state: str, removed: Removal) -> None:
    assert removal_of(state) is removed


@pytest.mark.parametrize("status", [0, 2304], ids=["no exit code", "exit code"])
def test_the_view_of_a_cancelled_job_shows_that_it_was_removed(status: int) -> None:
    shown = view(squeue_output("1|1|CANCELLED|%d|0|n1|100|102|0:02|None|train.g.b7.1" % status))
    assert (shown.outcome, shown.removed) == (Outcome.CANCELLED, Removal.YES)
    assert "scancel" in shown.reason
    accounted = view(sacct="5_1|CANCELLED by 1000|0:0|n1|100|102|2||train.g.b7.1\n")
    assert (accounted.outcome, accounted.removed) == (Outcome.CANCELLED, Removal.YES)


@pytest.mark.parametrize(("uid", "removed"), [(1000, Removal.YES), (0, Removal.OTHER)])
def test_a_job_that_another_user_cancelled_is_told_from_one_that_its_owner_did(
    uid: int, removed: Removal
) -> None:
    sacct = parse_sacct("5_1|CANCELLED by %d|0:0|n1|100|102|2||train.g.b7.1\n" % uid, "g")
    listed = parse_squeue(squeue_output("5|1|CANCELLED|0|0|n1|100|102|0:02|None|train.g.b7.1"), "g")
    for squeue in ([], listed):
        shown = build_views(squeue, sacct, owner=1000)["b7-1"]
        assert (shown.outcome, shown.removed) == (Outcome.CANCELLED, removed)
        assert ("uid 0" in shown.reason) is (removed is Removal.OTHER)


@pytest.mark.parametrize("reason", ["DependencyNeverSatisfied", "TimeLimit", "NodeDown", "SystemFailure"])
def test_a_job_that_slurm_itself_cancelled_was_not_removed_by_another_user(reason: str) -> None:
    sacct = parse_sacct("5_1|CANCELLED by 0|0:0|n1|100|102|2||train.g.b7.1\n", "g")
    listed = parse_squeue(squeue_output("5|1|CANCELLED|0|0|n1|100|102|0:02|%s|train.g.b7.1" % reason), "g")
    assert build_views(listed, sacct, owner=1000)["b7-1"].removed is Removal.YES


@pytest.mark.parametrize("state", ["CANCELLED", "CANCELLED by 4294967295", "CANCELLED by 4294967294"])
def test_a_record_without_a_user_is_not_the_removal_of_another(state: str) -> None:
    sacct = parse_sacct("5_1|%s|0:0|None assigned|None|102|0||train.g.b7.1\n" % state, "g")
    assert build_views([], sacct, owner=1000)["b7-1"].removed is Removal.YES


@pytest.mark.parametrize("state", ["NODE_FAIL", "TIMEOUT", "PREEMPTED", "OUT_OF_MEMORY"])
def test_only_a_cancelled_job_was_removed(state: str) -> None:
    sacct = parse_sacct("5_1|%s by 0|0:0|n1|100|102|2||train.g.b7.1\n" % state, "g")
    assert build_views([], sacct, owner=1000)["b7-1"].removed is Removal.NO


def test_a_job_that_another_cluster_took_over_was_not_removed() -> None:
    shown = view(squeue_output("1|1|REVOKED|0|0|n1|100|102|0:02|None|train.g.b7.1"))
    assert (shown.outcome, shown.removed) == (Outcome.CANCELLED, Removal.NO)


def test_a_chain_whose_rest_was_cancelled_was_not_removed_if_its_last_job_ended_by_itself() -> None:
    shown = view(
        squeue_output(
            "11|1|COMPLETED|0|0|n2|200|300|1:40|None|train.g.b7.1",
            "12|N/A|CANCELLED|0|0|n/a|301|301|0:00|Dependency|train.g.b7.1",
        )
    )
    assert (shown.phase, shown.removed) == (JobPhase.ENDED, Removal.NO)


def test_an_unknown_state_is_not_the_end_of_a_job() -> None:
    assert phase_of("MEDITATING", "None") is JobPhase.QUEUED
    assert outcome_of("MEDITATING", "None") is None
    assert describe_state("MEDITATING", "None") == "Slurm reports state MEDITATING"


@pytest.mark.parametrize(
    ("reason", "outcome"),
    [("launch failed requeued held", Outcome.NODE_TROUBLE), ("JobHoldMaxRequeue", Outcome.NODE_TROUBLE)],
)
def test_a_job_that_slurm_itself_holds_is_held_and_may_be_released(reason: str, outcome: Outcome) -> None:
    shown = view(squeue_output("9|1|PENDING|0|1|n/a|N/A|N/A|0:00|%s|train.g.b7.1" % reason))
    assert (shown.phase, shown.outcome, shown.releasable) == (JobPhase.HELD, outcome, True)
    assert reason in shown.reason


@pytest.mark.parametrize("reason", ["JobHeldUser", "JobHeldAdmin", "job requeued in held state"])
def test_a_job_that_a_person_holds_is_queued_and_the_reason_shows_it(reason: str) -> None:
    shown = view(squeue_output("9|1|PENDING|0|0|n/a|N/A|N/A|0:00|%s|train.g.b7.1" % reason))
    assert (shown.phase, shown.outcome, shown.releasable) == (JobPhase.QUEUED, None, False)
    assert "held" in shown.reason and reason in shown.reason


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("Resources", "pending until resources are free (Resources)"),
        ("ReqNodeNotAvail, UnavailableNodes:big", "needs nodes that are down, drained or reserved"),
        ("AssocGrpCPURunMinutesLimit", "a limit of its account or user is reached (AssocGrp"),
        ("QOSMaxJobsPerUserLimit", "a limit of its quality of service is reached (QOSMax"),
        ("AssocMaxCpuPerJobLimit", "requests more than its account or quality of service allows for one job"),
        ("InvalidQOS", "names a quality of service that its account may not use (InvalidQOS)"),
        ("PartitionTimeLimit", "lower resources.time (PartitionTimeLimit)"),
        ("FedJobLock", "pending (FedJobLock)"),
        ("None", "pending; not yet considered by Slurm"),
    ],
)
def test_why_a_job_is_pending_is_a_sentence_with_slurms_own_reason(reason: str, words: str) -> None:
    assert words in describe_state("PENDING", reason)


def test_the_sentence_for_a_timeout_names_the_limit() -> None:
    assert describe_state("TIMEOUT", "TimeLimit") == "ended by Slurm at its wall-time limit (TIMEOUT)"


# Submission.


@pytest.mark.parametrize(
    ("code", "printed", "status", "transient"),
    [
        (0, "17\n", SubmitStatus.ACCEPTED, False),
        (0, "welcome to the cluster\n17;beluga\n", SubmitStatus.ACCEPTED, False),
        (0, "", SubmitStatus.UNKNOWN, False),
        (-9, "", SubmitStatus.UNKNOWN, False),
        (
            1,
            "Batch job submission failed: Socket timed out on send/recv operation",
            SubmitStatus.UNKNOWN,
            False,
        ),
        (
            1,
            "Batch job submission failed: Unable to contact slurm controller (connect failure)",
            SubmitStatus.UNKNOWN,
            False,
        ),
        (
            1,
            "Batch job submission failed: Zero Bytes were transmitted or received",
            SubmitStatus.UNKNOWN,
            False,
        ),
        (1, "Batch job submission failed: Protocol authentication error", SubmitStatus.UNKNOWN, False),
        (
            1,
            "sbatch: error: slurm_receive_msgs: Socket timed out on send/recv operation",
            SubmitStatus.UNKNOWN,
            False,
        ),
        (1, "Batch job submission failed: Something new", SubmitStatus.UNKNOWN, False),
        (1, "Batch job submission failed: Invalid job array specification", SubmitStatus.REJECTED, True),
        (
            1,
            "sbatch: error: invalid partition specified: nope\n"
            "sbatch: error: Batch job submission failed: Invalid partition name specified",
            SubmitStatus.REJECTED,
            False,
        ),
        (
            1,
            "Batch job submission failed: Requested time limit is invalid (missing or exceeds some limit)",
            SubmitStatus.REJECTED,
            False,
        ),
        (
            1,
            "Batch job submission failed: More processors requested than permitted",
            SubmitStatus.REJECTED,
            False,
        ),
        (
            1,
            "Batch job submission failed: Requested node configuration is not available",
            SubmitStatus.REJECTED,
            False,
        ),
        (
            1,
            "Batch job submission failed: Job violates accounting/QOS policy (job submit limit, user's size "
            "and/or time limits)",
            SubmitStatus.REJECTED,
            True,
        ),
        (
            1,
            "Batch job submission failed: Required partition not available (inactive or drain)",
            SubmitStatus.REJECTED,
            True,
        ),
        (255, "sbatch: error: Invalid --mem specification", SubmitStatus.REJECTED, False),
        (255, "sbatch: unrecognized option '--nonsense'", SubmitStatus.REJECTED, False),
        (1, "sbatch: fatal: Unable to process configuration file", SubmitStatus.REJECTED, True),
        (127, "env: 'sbatch': No such file or directory", SubmitStatus.REJECTED, True),
    ],
)
def test_the_output_of_sbatch_means_accepted_rejected_or_unknown(
    code: int, printed: str, status: SubmitStatus, transient: bool
) -> None:
    output = CommandOutput(code, printed if code == 0 else "", "" if code == 0 else printed)
    result = parse_sbatch_output(output)
    assert (result.status, result.transient) == (status, transient)
    assert result.job == ("17" if status is SubmitStatus.ACCEPTED else "")
    assert status is SubmitStatus.ACCEPTED or result.reason


def test_requests_that_differ_only_in_order_and_log_are_one_array() -> None:
    requests = [
        replace(PLAIN, token="b7-%d" % number, order="/x/%d" % number, log="/l/%d" % number)
        for number in (1, 2, 3)
    ]
    (array,) = group_into_arrays([*requests, requests[0]], "g")
    assert array.name == NAME
    assert "--array=1,2,3" in sbatch_command(array, Profile(), {})


@pytest.mark.parametrize(
    "change",
    [
        {"cpus": 4},
        {"gpus": 1},
        {"memory": 10**9},
        {"time": 60.0},
        {"grace": 5.0},
        {"avoid": ("n1",)},
        {"zipapp": "/y/outlast.pyz"},
        {"jobs": 2},
        {"token": "c8-2"},
    ],
)
def test_requests_with_other_resources_are_another_array(change: Mapping[str, Any]) -> None:
    other = replace(PLAIN, **{"token": "b7-2", **change})
    assert [array.requests for array in group_into_arrays([PLAIN, other], "g")] == [(PLAIN,), (other,)]


def test_two_chains_have_two_names() -> None:
    chains = [replace(PLAIN, token="b7-%d" % number, jobs=3) for number in (1, 2)]
    assert [array.name for array in group_into_arrays(chains, "g")] == [NAME + ".1", NAME + ".2"]


def test_the_options_follow_the_request_and_the_profile() -> None:
    profile = Profile(
        project="def-me",
        queue="gpu",
        gpus="a100:{gpus}",
        directives=("#SBATCH --qos=gold", "#SBATCH --mem=0"),
    )
    (array,) = group_into_arrays([replace(PLAIN, gpus=2, avoid=("n1", "n3"), time=3601.0)], "g")
    lines = batch_script(array, profile).splitlines()
    options = [line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH")]
    assert {
        "--time=61",
        "--signal=B:USR1@60",
        "--cpus-per-task=2",
        "--mem=2862M",
        "--requeue",
        "--gres=a100:2",
        "--account=def-me",
        "--partition=gpu",
        "--exclude=n1,n3",
        "--qos=gold",
    } <= set(options)
    assert options.index("--mem=0") > options.index("--mem=2862M")


def test_gpus_are_requested_by_slurms_plain_option_unless_the_profile_has_another() -> None:
    (array,) = group_into_arrays([replace(PLAIN, gpus=2)], "g")
    assert "#SBATCH --gres=gpu:2\n" in batch_script(array, Profile())


def test_no_secret_of_the_shell_is_passed_to_sbatch() -> None:
    (array,) = group_into_arrays([PLAIN], "g")
    environ = {
        "PATH": "/bin",
        "HOME": "/h",
        "API_KEY": "secret",
        "SLURM_CONF": "/c",
        "SBATCH_ACCOUNT": "mine",
    }
    words = sbatch_command(array, Profile(), environ)
    assert words[:6] == ["env", "-i", "HOME=/h", "PATH=/bin", "SBATCH_ACCOUNT=mine", "SLURM_CONF=/c"]
    assert "secret" not in " ".join(words)
    assert "SBATCH_ACCOUNT=mine" not in sbatch_command(array, Profile(project="other"), environ)


def test_libraries_of_the_shell_are_not_passed_on_if_the_profile_sets_up_its_own() -> None:
    (array,) = group_into_arrays([PLAIN], "g")
    environ = {"PATH": "/bin", "PYTHONPATH": "/mine", "TMPDIR": "/login/tmp"}
    assert sbatch_command(array, Profile(modules=("python",)), environ)[2:4] == ["PATH=/bin", "sbatch"]
    assert sbatch_command(array, Profile(), environ)[2:5] == ["PATH=/bin", "PYTHONPATH=/mine", "sbatch"]


def run_script(text: str, directory: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", text],
        env={"PATH": "/usr/bin:/bin", "SLURMD_NODENAME": "n1", "SLURM_ARRAY_JOB_ID": "9", **variables},
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


@pytest.mark.parametrize("many", [False, True])
def test_the_script_execs_the_node_program_with_its_order_and_log(tmp_path: Path, many: bool) -> None:
    program = tmp_path / "it's a program.py"
    program.write_text(
        "import os, sys; print(sys.argv[1], os.environ['OUTLAST_HOST'], os.environ['OUTLAST_JOB'])"
    )
    requests = [
        replace(
            PLAIN,
            token="b7-%d" % number,
            order="/an order/$HOME/%d" % number,
            log=str(tmp_path / "new dir" / ("%d.log" % number)),
            zipapp=str(program),
        )
        for number in ((1, 2) if many else (2,))
    ]
    (array,) = group_into_arrays(requests, "g")
    done = run_script(batch_script(array, Profile()), tmp_path, SLURM_ARRAY_TASK_ID="2")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    words = (tmp_path / "new dir" / "2.log").read_text().rsplit(maxsplit=2)
    assert words == ["/an order/$HOME/2", "n1", "9_2"]


def test_the_command_to_cancel_the_rest_of_a_chain_names_only_that_chain() -> None:
    (array,) = group_into_arrays([replace(PLAIN, jobs=3)], "g")
    line = next(line for line in batch_script(array, Profile()).splitlines() if "CANCEL_REST" in line)
    assert line.partition("=")[2].strip('"').split() == [
        "scancel",
        "--quiet",
        "--state=PENDING",
        "--name=train.g.b7.1",
    ]
    assert "CANCEL_REST" not in batch_script(group_into_arrays([PLAIN], "g")[0], Profile())


# The adapter, with fake programs.

Fake = Callable[[Sequence[str], str], CommandOutput]


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> Callable[[Fake], tuple[SlurmScheduler, list[list[str]]]]:
    """Return a function that makes an adapter with a fake for all programs, and the list of its calls."""

    def make(fake: Fake) -> tuple[SlurmScheduler, list[list[str]]]:
        calls: list[list[str]] = []

        def call(
            arguments: Sequence[str],
            timeout: float,
            stdin: str = "",
            environment: Mapping[str, str] | None = None,
            final_words: str = "",
        ) -> CommandOutput:
            calls.append(list(arguments))
            return fake(arguments, stdin)

        monkeypatch.setattr(command_runner, "run_command", call)
        return SlurmScheduler("g", Profile(name="mine")), calls

    return make


MakeSlurm = Callable[[Fake], tuple[SlurmScheduler, list[list[str]]]]


def test_a_rejected_array_does_not_change_the_results_of_the_others(slurm: MakeSlurm) -> None:
    def fake(command: Sequence[str], stdin: str) -> CommandOutput:
        if "--cpus-per-task=900" in stdin:
            return CommandOutput(
                1, "", "sbatch: error: Batch job submission failed: Invalid qos specification"
            )
        if "--cpus-per-task=3" in stdin:
            raise CommandTimeout("sbatch did not respond")
        if "--cpus-per-task=4" in stdin:
            raise CommandNotRun("sbatch: no such file")
        return CommandOutput(0, "17\n", "")

    scheduler, _ = slurm(fake)
    requests = [
        replace(PLAIN, token="b7-%d" % n, cpus=cpus) for n, cpus in enumerate((2, 900, 3, 4), start=1)
    ]
    results = scheduler.submit(requests)
    assert [results["b7-%d" % n].status.value for n in (1, 2, 3, 4)] == [
        "accepted",
        "rejected",
        "unknown",
        "rejected",
    ]
    assert results["b7-1"].job == "17_1"
    assert results["b7-4"].transient and not results["b7-2"].transient


CONFIG = """\
Configuration data as of 2026-11-17T22:00:00
MaxArraySize            = %d
MaxJobCount             = %d
SchedulerParameters     = bf_interval=2%s
"""
NO_ARRAY = "sbatch: error: Batch job submission failed: Invalid job array specification"
QUEUE_FULL = "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying"
POLICY = (
    "sbatch: error: %s\nsbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job "
    "submit limit, user's size and/or time limits)"
)


class LimitedSlurm:
    """A Slurm with room for `room` jobs and task numbers below `size`; it refuses others with `refusal`."""

    def __init__(self, room: int = 10_000, size: int = 1001, refusal: str = QUEUE_FULL) -> None:
        self.room = room
        self.size = size
        self.refusal = refusal
        self.arrays: list[list[int]] = []
        self.tries = 0

    def __call__(self, command: Sequence[str], stdin: str) -> CommandOutput:
        if command[0] == "scontrol":
            return CommandOutput(0, CONFIG % (self.size, 10_000, ""), "")
        self.tries += 1
        (listed,) = (word.partition("=")[2] for word in command if word.startswith("--array="))
        tasks = [int(number) for number in listed.split(",")]
        if max(tasks) >= self.size:
            return CommandOutput(1, "", NO_ARRAY)
        if len(tasks) > self.room:
            return CommandOutput(-9 if self.refusal == QUEUE_FULL else 1, "", self.refusal)
        self.room -= len(tasks)
        self.arrays.append(tasks)
        return CommandOutput(0, "%d\n" % (16 + len(self.arrays)), "")


def requests_for(count: int) -> list[JobRequest]:
    return [replace(PLAIN, token="b7-%d" % number) for number in range(1, count + 1)]


@pytest.mark.parametrize(
    ("config", "batch"),
    [
        (CONFIG % (1001, 10_000, ""), 500),
        (CONFIG % (101, 10_000, ""), 100),
        (CONFIG % (1001, 50, ""), 50),
        (CONFIG % (1001, 10_000, ",max_array_tasks=20"), 20),
        (CONFIG % (0, 10_000, ""), 1),
        ("", 500),
        ("MaxArraySize = many\n", 500),
    ],
)
def test_no_batch_is_larger_than_the_cluster_allows(slurm: MakeSlurm, config: str, batch: int) -> None:
    scheduler, calls = slurm(lambda command, stdin: CommandOutput(0, config, ""))
    assert [scheduler.largest_batch(), scheduler.largest_batch()] == [batch, batch]
    assert calls == [["scontrol", "show", "config"]]


def test_a_cluster_that_does_not_show_its_limits_gets_batches_of_the_usual_size(slurm: MakeSlurm) -> None:
    scheduler, _ = slurm(lambda command, stdin: CommandOutput(1, "", "Unable to contact slurm controller"))
    assert scheduler.largest_batch() == 500


@pytest.mark.parametrize(
    "refusal", [QUEUE_FULL, POLICY % "AssocMaxSubmitJobLimit", POLICY % "QOSMaxSubmitJobPerUserLimit"]
)
@pytest.mark.parametrize("room", [0, 1, 7, 99, 100])
def test_an_array_for_which_there_is_no_room_is_submitted_in_parts(
    slurm: MakeSlurm, room: int, refusal: str
) -> None:
    cluster = LimitedSlurm(room=room, refusal=refusal)
    scheduler, _ = slurm(cluster)
    results = scheduler.submit(requests_for(100))
    accepted = [token for token, result in results.items() if result.status is SubmitStatus.ACCEPTED]
    assert accepted == ["b7-%d" % number for number in range(1, room + 1)]
    assert results.keys() == {one.token for one in requests_for(100)}
    assert cluster.tries <= 20
    for result in list(results.values())[room:]:
        assert result.status is SubmitStatus.REJECTED and result.transient
        assert "no room for another job" in result.reason


def test_each_part_of_an_array_has_its_own_job_and_the_numbers_of_its_tokens(slurm: MakeSlurm) -> None:
    cluster = LimitedSlurm(room=3)
    scheduler, _ = slurm(cluster)
    results = scheduler.submit(requests_for(4))
    assert cluster.arrays == [[1, 2], [3]]
    assert [results["b7-%d" % number].job for number in (1, 2, 3)] == ["17_1", "17_2", "18_3"]


def test_a_task_number_that_slurm_does_not_allow_is_retried_with_another_one(slurm: MakeSlurm) -> None:
    scheduler, _ = slurm(LimitedSlurm(size=4))
    results = scheduler.submit(requests_for(5))
    statuses = [results["b7-%d" % number].status.value for number in range(1, 6)]
    assert statuses == ["accepted"] * 3 + ["rejected"] * 2
    assert results["b7-5"].transient
    assert scheduler.largest_batch() == 3


def test_a_cluster_without_arrays_rejects_for_good_and_names_the_setting(slurm: MakeSlurm) -> None:
    scheduler, _ = slurm(LimitedSlurm(size=0))
    result = scheduler.submit(requests_for(2))["b7-1"]
    assert (result.status, result.transient) == (SubmitStatus.REJECTED, False)
    assert "MaxArraySize=0" in result.reason


@pytest.mark.parametrize(
    "limit", ["QOSMaxWallDurationPerJobLimit", "AssocMaxCpuPerJobLimit", "QOSMaxMemoryPerJob"]
)
def test_a_limit_on_a_single_job_is_a_rejection_for_good(slurm: MakeSlurm, limit: str) -> None:
    cluster = LimitedSlurm(room=0, refusal=POLICY % limit)
    scheduler, _ = slurm(cluster)
    results = scheduler.submit(requests_for(4))
    assert {(one.status, one.transient) for one in results.values()} == {(SubmitStatus.REJECTED, False)}
    assert cluster.tries == 1 and limit in results["b7-1"].reason


def test_a_chain_is_submitted_job_by_job_each_after_the_one_before(slurm: MakeSlurm) -> None:
    ids = iter(("17\n", "18\n", "19\n"))
    scheduler, calls = slurm(lambda command, stdin: CommandOutput(0, next(ids), ""))
    result = scheduler.submit([replace(PLAIN, jobs=3)])["b7-1"]
    assert (result.status, result.job) == (SubmitStatus.ACCEPTED, "17_1,18_1,19_1")
    after = [[word for word in call if word.startswith("--dependency")] for call in calls]
    assert after == [[], ["--dependency=afterany:17"], ["--dependency=afterany:18"]]


def test_a_chain_that_breaks_off_is_accepted_and_shorter(slurm: MakeSlurm) -> None:
    replies = iter((CommandOutput(0, "17\n", ""), CommandOutput(1, "", "sbatch: error: no")))
    scheduler, calls = slurm(lambda command, stdin: next(replies))
    result = scheduler.submit([replace(PLAIN, jobs=3)])["b7-1"]
    assert (result.status, result.job, len(calls)) == (SubmitStatus.ACCEPTED, "17_1", 2)
    assert result.reason.startswith("1 of 3 jobs: ")


def test_accounting_is_queried_once_for_all_that_squeue_has_dropped_and_not_again(slurm: MakeSlurm) -> None:
    def fake(command: Sequence[str], stdin: str) -> CommandOutput:
        return CommandOutput(0, SACCT_REQUEUED if command[0] == "sacct" else "", "")

    scheduler, calls = slurm(fake)
    expected = [JobRef("b7-1", "9_1", 100.0), JobRef("b7-2", "9_2", 100.0)]
    assert set(scheduler.poll(expected)) == {"b7-1", "b7-2"}
    assert [call[0] for call in calls] == ["squeue", "sacct"]
    assert "--jobs=9" in calls[1]
    assert scheduler.poll(expected)["b7-1"].elapsed == 5.0
    assert [call[0] for call in calls] == ["squeue", "sacct", "squeue"]


def test_accounting_is_queried_once_about_a_job_that_has_ended(slurm: MakeSlurm) -> None:
    ended = squeue_output("9|1|FAILED|1024|1|n2|1794786081|1794786084|0:03|NonZeroExitCode|" + NAME)
    scheduler, calls = slurm(
        lambda command, stdin: CommandOutput(0, SACCT_REQUEUED if command[0] == "sacct" else ended, "")
    )
    for _ in range(2):
        assert scheduler.poll([JobRef("b7-1", "9_1", 100.0)])["b7-1"].elapsed == 5.0
    assert [call[0] for call in calls] == ["squeue", "sacct", "squeue"]


def test_a_job_whose_id_is_not_known_is_searched_by_its_age(slurm: MakeSlurm) -> None:
    scheduler, calls = slurm(lambda command, stdin: CommandOutput(0, "", ""))
    assert scheduler.poll([JobRef("b7-1", "", 0.0)]) == {}
    assert any(word.startswith("--starttime=now-") for word in calls[1])


def test_if_accounting_does_not_respond_the_rows_of_squeue_are_used(slurm: MakeSlurm) -> None:
    ended = squeue_output("1|1|COMPLETED|0|0|n1|100|102|0:02|None|train.g.b7.1")

    def fake(command: Sequence[str], stdin: str) -> CommandOutput:
        if command[0] == "sacct":
            raise CommandTimeout("sacct did not respond")
        return CommandOutput(0, ended, "")

    scheduler, _ = slurm(fake)
    views = scheduler.poll([JobRef("b7-1", "1_1", 1.0), JobRef("b7-2", "1_2", 1.0)])
    assert set(views) == {"b7-1"} and views["b7-1"].exit_code == 0


CANCELLED_AT = 1794786084


@pytest.mark.parametrize(
    ("row", "meanwhile"),
    [
        ("9|1|CANCELLED|15|0|n1|1794786081|%d|0:03|None|%s", JobPhase.RUNNING),
        ("9|1|CANCELLED|0|0|n/a|N/A|%d|0:00|None|%s", None),
    ],
)
def test_who_cancelled_a_job_is_awaited_from_accounting_for_a_while(
    slurm: MakeSlurm, monkeypatch: pytest.MonkeyPatch, row: str, meanwhile: JobPhase | None
) -> None:
    listed = squeue_output(row % (CANCELLED_AT, NAME))
    host, start = ("n1", "1794786081") if meanwhile else ("None assigned", "None")
    record = "9_1|CANCELLED by 4711|0:0|%s|%s|%d|3||%s\n" % (host, start, CANCELLED_AT, NAME)
    accounting = [""]
    scheduler, _ = slurm(
        lambda command, stdin: CommandOutput(0, accounting[0] if command[0] == "sacct" else listed, "")
    )

    def shown(after: float) -> JobView | None:
        monkeypatch.setattr(time, "time", lambda: CANCELLED_AT + after)
        return scheduler.poll([JobRef("b7-1", "9_1", 100.0)]).get("b7-1")

    early = shown(1.0)
    assert (early.phase if early else None) is meanwhile
    late = shown(RECORD_DELAY + 1.0)
    assert late is not None and (late.phase, late.removed) == (JobPhase.ENDED, Removal.YES)
    accounting[0] = record
    recorded = shown(2.0)
    assert recorded is not None and (recorded.phase, recorded.removed) == (JobPhase.ENDED, Removal.OTHER)


def test_without_accounting_nobody_is_awaited_who_cancelled_a_job(
    slurm: MakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time", lambda: CANCELLED_AT + 1.0)
    listed = squeue_output("9|1|CANCELLED|15|0|n1|1794786081|%d|0:03|None|%s" % (CANCELLED_AT, NAME))
    disabled = CommandOutput(1, "", "Slurm accounting storage is disabled")
    scheduler, _ = slurm(
        lambda command, stdin: disabled if command[0] == "sacct" else CommandOutput(0, listed, "")
    )
    shown = scheduler.poll([JobRef("b7-1", "9_1", 100.0)])["b7-1"]
    assert (shown.phase, shown.removed) == (JobPhase.ENDED, Removal.YES)


def test_a_cluster_without_accounting_is_queried_for_it_once(slurm: MakeSlurm) -> None:
    def fake(command: Sequence[str], stdin: str) -> CommandOutput:
        return (
            CommandOutput(1, "", "Slurm accounting storage is disabled")
            if command[0] == "sacct"
            else CommandOutput(0, "", "")
        )

    scheduler, calls = slurm(fake)
    for _ in range(2):
        scheduler.poll([JobRef("b7-1", "1_1", 1.0)])
    assert [call[0] for call in calls] == ["squeue", "sacct", "squeue"]


def test_the_last_waiting_task_of_a_cancelled_array_is_identified_by_the_expected_jobs(
    slurm: MakeSlurm,
) -> None:
    gone = squeue_output("29|N/A|CANCELLED|0|0|n/a|100|100|0:00|None|" + NAME)
    scheduler, _ = slurm(lambda command, stdin: CommandOutput(0, gone if command[0] == "squeue" else "", ""))
    views = scheduler.poll([JobRef("b7-3", "29_3", 1.0), JobRef("b7-4", "30_4", 1.0)])
    assert {token: shown.outcome for token, shown in views.items()} == {"b7-3": Outcome.CANCELLED}


@pytest.mark.parametrize(
    "failure",
    [
        CommandTimeout("squeue did not respond"),
        CommandNotRun("squeue: no such file"),
        CommandOutput(1, "", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"),
        CommandOutput(1, "", "something else"),
    ],
)
def test_a_poll_that_failed_returns_nothing_about_any_job(
    slurm: MakeSlurm, failure: CommandOutput | Exception
) -> None:
    def fake(command: Sequence[str], stdin: str) -> CommandOutput:
        if isinstance(failure, Exception):
            raise failure
        return failure

    scheduler, _ = slurm(fake)
    with pytest.raises(SchedulerUnavailable, match="cluster mine"):
        scheduler.poll()


def test_cancelling_first_holds_waiting_jobs_and_then_cancels_all_at_once(slurm: MakeSlurm) -> None:
    scheduler, calls = slurm(
        lambda command, stdin: CommandOutput(1, "", "Job is no longer pending execution")
    )
    waits = JobView("b7-1", "9_1,10_1", JobPhase.QUEUED)
    runs = JobView("b7-2", "9_2", JobPhase.RUNNING)
    scheduler.cancel([waits, runs])
    assert calls == [["scontrol", "hold", "9_1", "10_1"], ["scancel", "--quiet", "9_[1,2]", "10_[1]"]]


def test_many_waiting_jobs_are_not_held_and_each_array_is_one_argument(slurm: MakeSlurm) -> None:
    scheduler, calls = slurm(lambda command, stdin: CommandOutput(0, "", ""))
    scheduler.cancel([JobView("b7-%d" % n, "9_%d" % n, JobPhase.QUEUED) for n in range(1, 1001)])
    ((*words, jobs),) = calls
    assert words == ["scancel", "--quiet"]
    assert jobs == "9_[%s]" % ",".join(map(str, range(1, 1001)))
    scheduler.cancel([JobView("c-1", "17", JobPhase.RUNNING)])
    assert calls[-1] == ["scancel", "--quiet", "17"]


def test_no_program_runs_if_there_is_nothing_to_cancel(slurm: MakeSlurm) -> None:
    scheduler, calls = slurm(lambda command, stdin: CommandOutput(0, "", ""))
    scheduler.cancel([])
    scheduler.release([])
    assert calls == []


def test_a_scheduler_that_could_not_be_reached_for_a_cancellation_is_unavailable(slurm: MakeSlurm) -> None:
    scheduler, _ = slurm(
        lambda command, stdin: CommandOutput(1, "", "scancel: error: Unable to contact slurm controller")
    )
    with pytest.raises(SchedulerUnavailable):
        scheduler.cancel([JobView("b7-1", "9_1", JobPhase.RUNNING)])


def test_the_hosts_are_those_of_the_default_partition_that_start_jobs_and_are_queried_once(
    slurm: MakeSlurm,
) -> None:
    output = (
        "n2|main*|idle\nn1|main*|mixed\nn1|short|mixed\nbeta|pair|idle\nn3|main*|down\nn4|main*|drained\n"
    )
    scheduler, calls = slurm(
        lambda command, stdin: CommandOutput(0, output + "n5|main*|idle*\nn6|main*|idle~\n", "")
    )
    assert scheduler.hosts() == ("n1", "n2", "n6")
    assert scheduler.hosts() == ("n1", "n2", "n6")
    assert len(calls) == 1


def test_what_is_rendered_is_what_is_sent(slurm: MakeSlurm) -> None:
    scripts: list[str] = []

    def fake(command: Sequence[str], stdin: str) -> CommandOutput:
        scripts.append(stdin)
        return CommandOutput(0, "17\n", "")

    scheduler, calls = slurm(fake)
    rendered = scheduler.render([PLAIN])
    assert calls == []
    scheduler.submit([PLAIN])
    assert rendered == "%s <<'END'\n%sEND" % (shlex.join(calls[0]), scripts[0])
