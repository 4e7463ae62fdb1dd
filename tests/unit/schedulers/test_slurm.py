"""The Slurm adapter against what Slurm 22.05 really printed, and against programs that fail in its ways."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from outlast.node.protocol import Outcome
from outlast.schedulers import command_runner
from outlast.schedulers.base import JobPhase, JobRequest, JobView, SchedulerUnavailable, Sought, SubmitAnswer
from outlast.schedulers.command_runner import CommandNotRun, CommandOutput, CommandTimeout
from outlast.schedulers.profile import Profile
from outlast.schedulers.slurm.adapter import SlurmScheduler
from outlast.schedulers.slurm.listing import read_sacct, read_squeue
from outlast.schedulers.slurm.states import answer_of, outcome_of, phase_of, sentence
from outlast.schedulers.slurm.submit import arrays_of, sbatch, script
from outlast.schedulers.slurm.views import views_of

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


def listed(*rows: str) -> str:
    """What squeue prints: array, task, state, wait status, restarts, host, start, end, used, reason, name."""
    return "".join(row + "|\n" for row in rows)


def view(squeue: str = "", sacct: str = "", token: str = "b7-1") -> JobView:
    return views_of(read_squeue(squeue, "g"), read_sacct(sacct, "g"))[token]


# What it prints.


def test_an_exit_code_is_read_from_the_wait_status_that_squeue_prints() -> None:
    told = view(
        listed("1|1|FAILED|768|0|n1|1794785937|1794785939|0:02|NonZeroExitCode|train.g.b7.1"), token="b7-1"
    )
    assert told == JobView(
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
def test_code_and_signal_are_told_apart_and_zero_counts_only_for_a_job_that_ended_by_itself(
    state: str, status: int, code: int | None, signal: int | None
) -> None:
    told = view(listed("1|1|%s|%d|0|n1|100|102|0:02|None|train.g.b7.1" % (state, status)))
    assert (told.exit_code, told.signal) == (code, signal)


def test_a_running_job_has_a_start_and_no_end_though_squeue_foretells_one() -> None:
    told = view(listed("9|2|RUNNING|0|0|n1|1794786076|1794789676|1-00:00:04|None|" + NAME), token="b7-2")
    assert (told.phase, told.started, told.ended) == (JobPhase.RUNNING, 1794786076.0, None)
    assert told.elapsed == 86404.0


def test_a_waiting_job_has_no_start_though_squeue_foretells_one() -> None:
    told = view(listed("3|1|PENDING|0|0|n/a|1794789537|1794793137|0:00|Priority|train.g.b7.1"))
    assert (told.phase, told.started, told.host, told.elapsed) == (JobPhase.QUEUED, None, "", None)
    assert told.reason == "waits for other jobs of higher priority (Priority)"


def test_jobs_of_other_experiments_and_other_people_are_passed_over() -> None:
    text = listed(
        "1|1|RUNNING|0|0|n1|1|2|0:02|None|train.other.b7.1",
        "2|N/A|RUNNING|0|0|n1|1|2|0:02|None|bash",
        "3|1|RUNNING|0|0|n1|1|2|0:02|None|odd|name",
        "",
    )
    assert read_squeue(text, "g") == []


def test_a_submission_that_slurm_refused_is_no_job_though_it_is_listed() -> None:
    assert read_squeue(listed("75|1|FAILED|0|0|n/a|9|9|0:00|BadConstraints|train.g.b7.1"), "g") == []


def test_an_array_of_one_that_was_cancelled_while_it_waited_is_known_by_its_name() -> None:
    told = view(listed("29|N/A|CANCELLED|0|0|n/a|1794786074|1794786074|0:00|None|train.g.b7.1"))
    assert (told.job, told.phase, told.started, told.elapsed) == ("29_1", JobPhase.ENDED, None, 0.0)
    assert told.outcome is Outcome.CANCELLED


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


def test_all_starts_of_a_requeued_job_count_and_the_last_one_tells_how_it_ended() -> None:
    told = view(sacct=SACCT_REQUEUED)
    assert (told.elapsed, told.restarts, told.exit_code, told.host) == (5.0, 1, 4, "n2")
    assert (told.started, told.ended, told.outcome) == (1794786081.0, 1794786084.0, None)
    assert told.memory == 9092 * 1024


def test_a_start_that_both_squeue_and_sacct_know_is_counted_once() -> None:
    squeue = listed("9|1|FAILED|1024|1|n2|1794786081|1794786084|0:03|NonZeroExitCode|" + NAME)
    told = view(squeue, SACCT_REQUEUED)
    assert (told.elapsed, told.restarts, told.exit_code, told.memory) == (5.0, 1, 4, 9092 * 1024)


def test_a_requeued_job_that_waits_has_not_been_started_again_yet() -> None:
    told = view(listed("9|1|PENDING|0|1|n/a|1794786199|1794789799|0:00|BeginTime|" + NAME))
    assert (told.phase, told.restarts, told.started) == (JobPhase.QUEUED, 0, None)
    again = view(listed("9|1|RUNNING|0|1|n2|1794786199|1794789799|0:07|None|" + NAME))
    assert (again.phase, again.restarts, again.elapsed) == (JobPhase.RUNNING, 1, 7.0)


def test_a_requeued_job_that_was_cancelled_while_it_waited_has_used_its_first_start() -> None:
    told = view(sacct=SACCT_REQUEUED, token="b7-2")
    assert (told.outcome, told.elapsed, told.host) == (Outcome.CANCELLED, 8.0, "n1")


def test_without_accounting_only_the_last_start_of_a_requeued_job_is_told_of() -> None:
    told = view(listed("9|1|COMPLETED|0|1|n2|1794786081|1794786084|0:03|None|" + NAME))
    assert (told.restarts, told.elapsed, told.since) == (1, 3.0, 1794786081.0)
    told = view(listed("9|1|COMPLETED|0|0|n2|1794786081|1794786084|0:03|None|" + NAME))
    assert (told.elapsed, told.since) == (3.0, None)
    told = view(listed("9|1|CANCELLED|0|1|n/a|1794786081|1794786084|0:00|None|" + NAME))
    assert (told.elapsed, told.since) == (None, None)


def test_without_accounting_a_chain_is_told_of_from_behind_its_last_requeued_job() -> None:
    rows = [
        "%d|1|COMPLETED|0|%d|n2|%d|%d|0:03|None|train.g.b7.1" % (job, before, 100 * job, 100 * job + 3)
        for job, before in ((1, 0), (2, 1), (3, 0))
    ]
    told = view(listed(*rows))
    assert (told.restarts, told.elapsed, told.since) == (3, 6.0, 200.0)


def test_the_exit_code_of_a_cancelled_job_is_that_of_its_batch_step() -> None:
    told = view(
        sacct="5_1|CANCELLED by 1000|0:0|n1|100|102|2||train.g.b7.1\n"
        "5_1.batch|FAILED|9:0|n1|100|102|2||batch\n"
    )
    assert (told.exit_code, told.outcome) == (9, Outcome.CANCELLED)


def test_one_row_of_sacct_tells_of_all_tasks_that_were_never_started() -> None:
    rows = read_sacct(
        "8_[1,3-5%2]|CANCELLED by 0|0:0|None assigned|1794786074|1794786074|0||" + NAME + "\n", "g"
    )
    assert [row.token for row in rows] == ["b7-1", "b7-3", "b7-4", "b7-5"]
    assert all(row.started is None for row in rows)


def test_what_runs_for_ever_according_to_sacct_alone_is_not_running() -> None:
    rows = read_sacct("5_1|RUNNING|0:0|n1|100|Unknown|9999||train.g.b7.1\n", "g")
    assert views_of([], rows) == {}


def test_a_chain_is_one_view_of_the_job_that_runs() -> None:
    told = view(
        listed(
            "12|1|PENDING|0|0|n/a|N/A|N/A|0:00|Dependency|train.g.b7.1",
            "11|1|RUNNING|0|0|n2|200|900|1:40|None|train.g.b7.1",
            "10|1|FAILED|21760|0|n1|100|190|1:30|NonZeroExitCode|train.g.b7.1",
        )
    )
    assert (told.phase, told.job, told.host) == (JobPhase.RUNNING, "10_1,11_1,12_1", "n2")
    assert (told.elapsed, told.restarts) == (190.0, 1)


def test_a_chain_whose_rest_was_cancelled_ended_as_the_last_job_that_ran() -> None:
    told = view(
        listed(
            "10|1|FAILED|21760|0|n1|100|190|1:30|NonZeroExitCode|train.g.b7.1",
            "11|1|COMPLETED|0|0|n2|200|300|1:40|None|train.g.b7.1",
            "12|N/A|CANCELLED|0|0|n/a|301|301|0:00|Dependency|train.g.b7.1",
        )
    )
    assert (told.phase, told.exit_code, told.outcome, told.ended) == (JobPhase.ENDED, 0, None, 300.0)


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
def test_every_state_of_slurms_has_its_phase_and_outcome(
    state: str, phase: JobPhase, outcome: Outcome | None
) -> None:
    assert (phase_of(state, "None"), outcome_of(state, "None")) == (phase, outcome)


def test_a_state_that_nobody_has_heard_of_is_not_the_end_of_a_job() -> None:
    assert phase_of("MEDITATING", "None") is JobPhase.QUEUED
    assert sentence("MEDITATING", "None") == "Slurm says MEDITATING"


@pytest.mark.parametrize(
    ("reason", "outcome"),
    [("launch failed requeued held", Outcome.NODE_TROUBLE), ("JobHoldMaxRequeue", Outcome.NODE_TROUBLE)],
)
def test_a_job_that_slurm_itself_put_aside_is_held_and_may_be_released(reason: str, outcome: Outcome) -> None:
    told = view(listed("9|1|PENDING|0|1|n/a|N/A|N/A|0:00|%s|train.g.b7.1" % reason))
    assert (told.phase, told.outcome, told.releasable) == (JobPhase.HELD, outcome, True)
    assert reason in told.reason


@pytest.mark.parametrize("reason", ["JobHeldUser", "JobHeldAdmin", "job requeued in held state"])
def test_a_job_that_a_person_put_aside_waits_and_says_so(reason: str) -> None:
    told = view(listed("9|1|PENDING|0|0|n/a|N/A|N/A|0:00|%s|train.g.b7.1" % reason))
    assert (told.phase, told.outcome, told.releasable) == (JobPhase.QUEUED, None, False)
    assert "held" in told.reason and reason in told.reason


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("Resources", "waits for resources to become free (Resources)"),
        ("ReqNodeNotAvail, UnavailableNodes:big", "needs nodes that are down, drained or reserved"),
        ("AssocGrpCPURunMinutesLimit", "a limit of its account or user is reached (AssocGrp"),
        ("QOSMaxJobsPerUserLimit", "a limit of its quality of service is reached (QOSMax"),
        ("InvalidQOS", "names a quality of service that its account may not use (InvalidQOS)"),
        ("PartitionTimeLimit", "lower resources.time (PartitionTimeLimit)"),
        ("FedJobLock", "waits (FedJobLock)"),
        ("None", "waits to be looked at by Slurm (PENDING)"),
    ],
)
def test_why_a_job_waits_is_a_sentence_with_slurms_own_word(reason: str, words: str) -> None:
    assert words in sentence("PENDING", reason)


def test_the_sentence_about_a_limit_says_so() -> None:
    assert sentence("TIMEOUT", "TimeLimit") == "ended by Slurm at its wall-time limit (TIMEOUT)"


# What it is told.


@pytest.mark.parametrize(
    ("code", "said", "answer", "transient"),
    [
        (0, "17\n", SubmitAnswer.ACCEPTED, False),
        (0, "welcome to the cluster\n17;beluga\n", SubmitAnswer.ACCEPTED, False),
        (0, "", SubmitAnswer.UNKNOWN, False),
        (-9, "", SubmitAnswer.UNKNOWN, False),
        (
            1,
            "Batch job submission failed: Socket timed out on send/recv operation",
            SubmitAnswer.UNKNOWN,
            False,
        ),
        (
            1,
            "Batch job submission failed: Unable to contact slurm controller (connect failure)",
            SubmitAnswer.UNKNOWN,
            False,
        ),
        (
            1,
            "Batch job submission failed: Zero Bytes were transmitted or received",
            SubmitAnswer.UNKNOWN,
            False,
        ),
        (1, "Batch job submission failed: Protocol authentication error", SubmitAnswer.UNKNOWN, False),
        (
            1,
            "sbatch: error: slurm_receive_msgs: Socket timed out on send/recv operation",
            SubmitAnswer.UNKNOWN,
            False,
        ),
        (1, "Batch job submission failed: Something new", SubmitAnswer.UNKNOWN, False),
        (1, "Batch job submission failed: Invalid job array specification", SubmitAnswer.REJECTED, False),
        (
            1,
            "sbatch: error: invalid partition specified: nope\n"
            "sbatch: error: Batch job submission failed: Invalid partition name specified",
            SubmitAnswer.REJECTED,
            False,
        ),
        (
            1,
            "Batch job submission failed: Requested time limit is invalid (missing or exceeds some limit)",
            SubmitAnswer.REJECTED,
            False,
        ),
        (
            1,
            "Batch job submission failed: More processors requested than permitted",
            SubmitAnswer.REJECTED,
            False,
        ),
        (
            1,
            "Batch job submission failed: Requested node configuration is not available",
            SubmitAnswer.REJECTED,
            False,
        ),
        (
            1,
            "Batch job submission failed: Job violates accounting/QOS policy (job submit limit, user's size "
            "and/or time limits)",
            SubmitAnswer.REJECTED,
            True,
        ),
        (
            1,
            "Batch job submission failed: Required partition not available (inactive or drain)",
            SubmitAnswer.REJECTED,
            True,
        ),
        (255, "sbatch: error: Invalid --mem specification", SubmitAnswer.REJECTED, False),
        (255, "sbatch: unrecognized option '--nonsense'", SubmitAnswer.REJECTED, False),
        (1, "sbatch: fatal: Unable to process configuration file", SubmitAnswer.REJECTED, True),
        (127, "env: 'sbatch': No such file or directory", SubmitAnswer.REJECTED, True),
    ],
)
def test_what_sbatch_says_is_accepted_rejected_or_unknown(
    code: int, said: str, answer: SubmitAnswer, transient: bool
) -> None:
    told = answer_of(CommandOutput(code, said if code == 0 else "", "" if code == 0 else said))
    assert (told.answer, told.transient) == (answer, transient)
    assert told.job == ("17" if answer is SubmitAnswer.ACCEPTED else "")
    assert answer is SubmitAnswer.ACCEPTED or told.reason


def test_requests_that_differ_only_in_order_and_log_are_one_array() -> None:
    requests = [
        replace(PLAIN, token="b7-%d" % number, order="/x/%d" % number, log="/l/%d" % number)
        for number in (1, 2, 3)
    ]
    (array,) = arrays_of([*requests, requests[0]], "g")
    assert array.name == NAME
    assert "--array=1,2,3" in sbatch(array, Profile(), {})


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
def test_requests_that_ask_for_something_else_are_another_array(change: Mapping[str, Any]) -> None:
    other = replace(PLAIN, **{"token": "b7-2", **change})
    assert [array.requests for array in arrays_of([PLAIN, other], "g")] == [(PLAIN,), (other,)]


def test_two_chains_have_two_names() -> None:
    chains = [replace(PLAIN, token="b7-%d" % number, jobs=3) for number in (1, 2)]
    assert [array.name for array in arrays_of(chains, "g")] == [NAME + ".1", NAME + ".2"]


def test_the_options_ask_for_what_the_request_and_the_profile_say() -> None:
    profile = Profile(
        project="def-me",
        queue="gpu",
        gpus="a100:{gpus}",
        directives=("#SBATCH --qos=gold", "#SBATCH --mem=0"),
    )
    (array,) = arrays_of([replace(PLAIN, gpus=2, avoid=("n1", "n3"), time=3601.0)], "g")
    lines = script(array, profile).splitlines()
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


def test_gpus_are_asked_for_in_slurms_plain_words_unless_the_site_has_others() -> None:
    (array,) = arrays_of([replace(PLAIN, gpus=2)], "g")
    assert "#SBATCH --gres=gpu:2\n" in script(array, Profile())


def test_no_secret_of_the_shell_goes_to_sbatch() -> None:
    (array,) = arrays_of([PLAIN], "g")
    environ = {
        "PATH": "/bin",
        "HOME": "/h",
        "API_KEY": "secret",
        "SLURM_CONF": "/c",
        "SBATCH_ACCOUNT": "mine",
    }
    words = sbatch(array, Profile(), environ)
    assert words[:6] == ["env", "-i", "HOME=/h", "PATH=/bin", "SBATCH_ACCOUNT=mine", "SLURM_CONF=/c"]
    assert "secret" not in " ".join(words)
    assert "SBATCH_ACCOUNT=mine" not in sbatch(array, Profile(project="other"), environ)


def test_libraries_of_the_shell_stay_behind_where_the_site_prepares_its_own() -> None:
    (array,) = arrays_of([PLAIN], "g")
    environ = {"PATH": "/bin", "PYTHONPATH": "/mine", "TMPDIR": "/login/tmp"}
    assert sbatch(array, Profile(modules=("python",)), environ)[2:4] == ["PATH=/bin", "sbatch"]
    assert sbatch(array, Profile(), environ)[2:5] == ["PATH=/bin", "PYTHONPATH=/mine", "sbatch"]


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
def test_the_script_becomes_the_node_program_with_its_order_and_log(tmp_path: Path, many: bool) -> None:
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
    (array,) = arrays_of(requests, "g")
    done = run_script(script(array, Profile()), tmp_path, SLURM_ARRAY_TASK_ID="2")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    words = (tmp_path / "new dir" / "2.log").read_text().rsplit(maxsplit=2)
    assert words == ["/an order/$HOME/2", "n1", "9_2"]


def test_what_a_job_of_a_chain_is_told_cancels_its_own_chain_only() -> None:
    (array,) = arrays_of([replace(PLAIN, jobs=3)], "g")
    line = next(line for line in script(array, Profile()).splitlines() if "CANCEL_REST" in line)
    assert line.partition("=")[2].strip('"').split() == [
        "scancel",
        "--quiet",
        "--state=PENDING",
        "--name=train.g.b7.1",
    ]
    assert "CANCEL_REST" not in script(arrays_of([PLAIN], "g")[0], Profile())


# The programs.

Fake = Callable[[Sequence[str], str], CommandOutput]


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> Callable[[Fake], tuple[SlurmScheduler, list[list[str]]]]:
    """An adapter whose programs answer as a function says, and the calls it makes."""

    def made(fake: Fake) -> tuple[SlurmScheduler, list[list[str]]]:
        calls: list[list[str]] = []

        def call(
            arguments: Sequence[str],
            timeout: float,
            given: str = "",
            environment: Mapping[str, str] | None = None,
        ) -> CommandOutput:
            calls.append(list(arguments))
            return fake(arguments, given)

        monkeypatch.setattr(command_runner, "call", call)
        return SlurmScheduler("g", Profile(name="mine")), calls

    return made


Made = Callable[[Fake], tuple[SlurmScheduler, list[list[str]]]]


def test_a_group_that_is_refused_does_not_spoil_the_answers_of_the_others(slurm: Made) -> None:
    def fake(words: Sequence[str], given: str) -> CommandOutput:
        if "--cpus-per-task=900" in given:
            return CommandOutput(
                1, "", "sbatch: error: Batch job submission failed: Invalid qos specification"
            )
        if "--cpus-per-task=3" in given:
            raise CommandTimeout("sbatch did not answer")
        if "--cpus-per-task=4" in given:
            raise CommandNotRun("sbatch: no such file")
        return CommandOutput(0, "17\n", "")

    scheduler, _ = slurm(fake)
    requests = [
        replace(PLAIN, token="b7-%d" % n, cpus=cpus) for n, cpus in enumerate((2, 900, 3, 4), start=1)
    ]
    answers = scheduler.submit(requests)
    assert [answers["b7-%d" % n].answer.value for n in (1, 2, 3, 4)] == [
        "accepted",
        "rejected",
        "unknown",
        "rejected",
    ]
    assert answers["b7-1"].job == "17_1"
    assert answers["b7-4"].transient and not answers["b7-2"].transient


def test_a_chain_is_submitted_job_by_job_each_after_the_one_before(slurm: Made) -> None:
    ids = iter(("17\n", "18\n", "19\n"))
    scheduler, calls = slurm(lambda words, given: CommandOutput(0, next(ids), ""))
    answer = scheduler.submit([replace(PLAIN, jobs=3)])["b7-1"]
    assert (answer.answer, answer.job) == (SubmitAnswer.ACCEPTED, "17_1,18_1,19_1")
    after = [[word for word in call if word.startswith("--dependency")] for call in calls]
    assert after == [[], ["--dependency=afterany:17"], ["--dependency=afterany:18"]]


def test_a_chain_that_breaks_off_is_accepted_as_far_as_it_goes(slurm: Made) -> None:
    replies = iter((CommandOutput(0, "17\n", ""), CommandOutput(1, "", "sbatch: error: no")))
    scheduler, calls = slurm(lambda words, given: next(replies))
    answer = scheduler.submit([replace(PLAIN, jobs=3)])["b7-1"]
    assert (answer.answer, answer.job, len(calls)) == (SubmitAnswer.ACCEPTED, "17_1", 2)
    assert answer.reason.startswith("1 of 3 jobs: ")


def test_accounting_is_asked_once_for_all_that_squeue_has_dropped_and_not_again(slurm: Made) -> None:
    def fake(words: Sequence[str], given: str) -> CommandOutput:
        return CommandOutput(0, SACCT_REQUEUED if words[0] == "sacct" else "", "")

    scheduler, calls = slurm(fake)
    sought = [Sought("b7-1", "9_1", 100.0), Sought("b7-2", "9_2", 100.0)]
    assert set(scheduler.poll(sought)) == {"b7-1", "b7-2"}
    assert [call[0] for call in calls] == ["squeue", "sacct"]
    assert "--jobs=9" in calls[1]
    assert scheduler.poll(sought)["b7-1"].elapsed == 5.0
    assert [call[0] for call in calls] == ["squeue", "sacct", "squeue"]


def test_accounting_is_asked_once_about_a_job_that_has_ended(slurm: Made) -> None:
    ended = listed("9|1|FAILED|1024|1|n2|1794786081|1794786084|0:03|NonZeroExitCode|" + NAME)
    scheduler, calls = slurm(
        lambda words, given: CommandOutput(0, SACCT_REQUEUED if words[0] == "sacct" else ended, "")
    )
    for _ in range(2):
        assert scheduler.poll([Sought("b7-1", "9_1", 100.0)])["b7-1"].elapsed == 5.0
    assert [call[0] for call in calls] == ["squeue", "sacct", "squeue"]


def test_a_job_whose_id_is_not_known_is_looked_for_by_its_age(slurm: Made) -> None:
    scheduler, calls = slurm(lambda words, given: CommandOutput(0, "", ""))
    assert scheduler.poll([Sought("b7-1", "", 0.0)]) == {}
    assert any(word.startswith("--starttime=now-") for word in calls[1])


def test_what_accounting_does_not_say_leaves_squeues_word(slurm: Made) -> None:
    ended = listed("1|1|COMPLETED|0|0|n1|100|102|0:02|None|train.g.b7.1")

    def fake(words: Sequence[str], given: str) -> CommandOutput:
        if words[0] == "sacct":
            raise CommandTimeout("sacct did not answer")
        return CommandOutput(0, ended, "")

    scheduler, _ = slurm(fake)
    views = scheduler.poll([Sought("b7-1", "1_1", 1.0), Sought("b7-2", "1_2", 1.0)])
    assert set(views) == {"b7-1"} and views["b7-1"].exit_code == 0


def test_a_cluster_without_accounting_is_asked_for_it_once(slurm: Made) -> None:
    def fake(words: Sequence[str], given: str) -> CommandOutput:
        return (
            CommandOutput(1, "", "Slurm accounting storage is disabled")
            if words[0] == "sacct"
            else CommandOutput(0, "", "")
        )

    scheduler, calls = slurm(fake)
    for _ in range(2):
        scheduler.poll([Sought("b7-1", "1_1", 1.0)])
    assert [call[0] for call in calls] == ["squeue", "sacct", "squeue"]


def test_the_last_waiting_task_of_a_cancelled_array_is_known_by_who_seeks_it(slurm: Made) -> None:
    gone = listed("29|N/A|CANCELLED|0|0|n/a|100|100|0:00|None|" + NAME)
    scheduler, _ = slurm(lambda words, given: CommandOutput(0, gone if words[0] == "squeue" else "", ""))
    views = scheduler.poll([Sought("b7-3", "29_3", 1.0), Sought("b7-4", "30_4", 1.0)])
    assert {token: told.outcome for token, told in views.items()} == {"b7-3": Outcome.CANCELLED}


@pytest.mark.parametrize(
    "trouble",
    [
        CommandTimeout("squeue did not answer"),
        CommandNotRun("squeue: no such file"),
        CommandOutput(1, "", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"),
        CommandOutput(1, "", "something else"),
    ],
)
def test_a_poll_that_failed_says_nothing_about_any_job(
    slurm: Made, trouble: CommandOutput | Exception
) -> None:
    def fake(words: Sequence[str], given: str) -> CommandOutput:
        if isinstance(trouble, Exception):
            raise trouble
        return trouble

    scheduler, _ = slurm(fake)
    with pytest.raises(SchedulerUnavailable, match="cluster mine"):
        scheduler.poll()


def test_cancelling_holds_what_waits_first_and_then_cancels_all_at_once(slurm: Made) -> None:
    scheduler, calls = slurm(lambda words, given: CommandOutput(1, "", "Job is no longer pending execution"))
    waits = JobView("b7-1", "9_1,10_1", JobPhase.QUEUED)
    runs = JobView("b7-2", "9_2", JobPhase.RUNNING)
    scheduler.cancel([waits, runs])
    assert calls == [["scontrol", "hold", "9_1", "10_1"], ["scancel", "--quiet", "9_[1,2]", "10_[1]"]]


def test_of_many_that_wait_none_is_held_and_each_array_is_one_word(slurm: Made) -> None:
    scheduler, calls = slurm(lambda words, given: CommandOutput(0, "", ""))
    scheduler.cancel([JobView("b7-%d" % n, "9_%d" % n, JobPhase.QUEUED) for n in range(1, 1001)])
    ((*words, jobs),) = calls
    assert words == ["scancel", "--quiet"]
    assert jobs == "9_[%s]" % ",".join(map(str, range(1, 1001)))
    scheduler.cancel([JobView("c-1", "17", JobPhase.RUNNING)])
    assert calls[-1] == ["scancel", "--quiet", "17"]


def test_nothing_is_asked_when_nothing_is_to_be_cancelled(slurm: Made) -> None:
    scheduler, calls = slurm(lambda words, given: CommandOutput(0, "", ""))
    scheduler.cancel([])
    scheduler.release([])
    assert calls == []


def test_a_scheduler_that_did_not_hear_of_the_cancellation_is_unavailable(slurm: Made) -> None:
    scheduler, _ = slurm(
        lambda words, given: CommandOutput(1, "", "scancel: error: Unable to contact slurm controller")
    )
    with pytest.raises(SchedulerUnavailable):
        scheduler.cancel([JobView("b7-1", "9_1", JobPhase.RUNNING)])


def test_the_hosts_are_those_of_the_default_partition_that_start_jobs_and_are_asked_for_once(
    slurm: Made,
) -> None:
    told = "n2|main*|idle\nn1|main*|mixed\nn1|short|mixed\nbeta|pair|idle\nn3|main*|down\nn4|main*|drained\n"
    scheduler, calls = slurm(
        lambda words, given: CommandOutput(0, told + "n5|main*|idle*\nn6|main*|idle~\n", "")
    )
    assert scheduler.hosts() == ("n1", "n2", "n6")
    assert scheduler.hosts() == ("n1", "n2", "n6")
    assert len(calls) == 1


def test_what_is_rendered_is_what_is_sent(slurm: Made) -> None:
    given: list[str] = []

    def fake(words: Sequence[str], text: str) -> CommandOutput:
        given.append(text)
        return CommandOutput(0, "17\n", "")

    scheduler, calls = slurm(fake)
    shown = scheduler.render([PLAIN])
    assert calls == []
    scheduler.submit([PLAIN])
    assert shown == "%s <<'END'\n%sEND" % (shlex.join(calls[0]), given[0])
