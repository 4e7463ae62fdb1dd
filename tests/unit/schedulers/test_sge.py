"""Grid Engine: what its programs print (recorded from Son of Grid Engine 8.1.9), and what is sent to it."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from outlast.domain.model import Outcome
from outlast.schedulers import command_runner
from outlast.schedulers.base import (
    JobPhase,
    JobRequest,
    JobView,
    SchedulerUnavailable,
    Sought,
    Submission,
    SubmitAnswer,
)
from outlast.schedulers.command_runner import CommandNotRun, CommandOutput, CommandTimeout
from outlast.schedulers.profile import Profile
from outlast.schedulers.sge import listing as text
from outlast.schedulers.sge import states as words
from outlast.schedulers.sge.adapter import SgeScheduler
from support.sge_output import BATCH, NAME, job_xml, listing_xml, record

UNTIMED = {"qsub_time": "Thu Jan  1 00:00:00 1970", "start_time": "-/-", "end_time": "-/-"}
RESCHEDULED = {**UNTIMED, "hostname": "alpha", "failed": "25  : rescheduling"}
LIMIT = "37  : qmaster enforced h_rt, h_cpu, or h_vmem limit"

DETAILS = """\
==============================================================
job_number:                 7
exec_file:                  job_scripts/7
submission_time:            Sun Nov 15 23:41:16 2026
job_name:                   xeqw.g.aa
error reason          2:      11/15/2026 23:41:16 [105:15417]: exit_status of job start = 100
error reason          3:      11/15/2026 23:41:17 [0:16144]: error: can't open output file "/x/y": No such file or directory
scheduling info:            Job is in error state
==============================================================
job_number:                 8
job-array tasks:            4-6:1
scheduling info:            cannot run in queue "gpu.q" because it is not contained in its hard queue list (-q)
                            (-l gpus=50,h_rt=60) cannot run at host "alpha" because it offers only hc:gpus=2.000000
                            (-l gpus=50,h_rt=60) cannot run at host "beta" because it offers only hc:gpus=2.000000
"""  # noqa: E501 - as it is printed

QHOST = """\
<?xml version='1.0'?>
<qhost xmlns:xsd="http://arc.liv.ac.uk/repos/darcs/sge/source/dist/util/resources/schemas/qhost/qhost.xsd">
 <host name='global'>
   <hostvalue name='arch_string'>-</hostvalue>
 </host>
 <host name='alpha'>
   <hostvalue name='arch_string'>lx-amd64</hostvalue>
 </host>
 <host name='beta'>
   <hostvalue name='arch_string'>lx-amd64</hostvalue>
 </host>
</qhost>
"""


class Cell:
    """Answers in place of the programs, and remembers what they were called with."""

    def __init__(self) -> None:
        self.answers: dict[str, CommandOutput | Exception] = {
            "qstat": CommandOutput(0, listing_xml(), ""),
            "qstat -j": CommandOutput(0, "", ""),
        }
        self.calls: list[tuple[list[str], str]] = []

    def call(
        self, arguments: Sequence[str], timeout: float, given: str = "", environment: Any = None
    ) -> CommandOutput:
        self.calls.append((list(arguments), given))
        key = "qstat -j" if list(arguments[:2]) == ["qstat", "-j"] else arguments[0]
        answer = self.answers[key]
        if isinstance(answer, Exception):
            raise answer
        return answer

    @property
    def programs(self) -> list[str]:
        return [arguments[0] for arguments, _ in self.calls]


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch) -> Cell:
    cell = Cell()
    monkeypatch.setattr(command_runner, "call", cell.call)
    return cell


@pytest.fixture
def scheduler(cell: Cell) -> SgeScheduler:
    return SgeScheduler("group", Profile())


@pytest.fixture
def request_of(tmp_path: Path) -> Callable[..., JobRequest]:
    def make(index: int = 1, **changes: Any) -> JobRequest:
        plain = JobRequest(
            token="%s-%d" % (BATCH, index),
            name="run-%02d" % index,
            order=str(tmp_path / ("exchange %d" % index) / "order.json"),
            zipapp=str(tmp_path / "outlast.pyz"),
            log=str(tmp_path / "logs" / ("%d.log" % index)),
            cpus=1,
            gpus=0,
            memory=3 * 10**9,
            disk=10**9,
            time=3600.5,
            grace=60.0,
        )
        return replace(plain, **changes)

    return make


def sought(*indices: int) -> list[Sought]:
    return [Sought("%s-%d" % (BATCH, index), "", 0.0) for index in indices]


def one_view(scheduler: SgeScheduler, cell: Cell, *records: str) -> JobView:
    cell.answers["qacct"] = CommandOutput(0, "".join(records), "")
    (view,) = scheduler.poll(sought(1)).values()
    return view


# What is sent.


def test_the_script_carries_all_that_qsub_has_to_know(request_of: Callable[..., JobRequest]) -> None:
    profile = Profile(
        project="lab",
        queue="long.q",
        cpus="omp {cpus}",
        gpus="gpus={gpus},gpu_c=7.0",
        memory="mem_per_core={memory_gb_per_cpu}G",
        modules=("python3/3.10",),
        environment="/venv",
        directives=("#$ -m n",),
    )
    request = request_of(2, cpus=4, gpus=1, avoid=("bad-1", "bad-2"))
    script = SgeScheduler("group", profile).render([request])
    lines = script.splitlines()
    directives = [line[3:] for line in lines if line.startswith("#$ ")]
    assert directives == [
        "-N run-02.group.%s" % BATCH,
        "-S /bin/bash",
        "-j y",
        "-o /dev/null",
        "-t 2-2",
        "-notify",
        "-r y",
        "-l h_rt=3601",
        "-P lab",
        "-q long.q",
        "-pe omp 4",
        "-l gpus=1,gpu_c=7.0",
        "-l mem_per_core=1G",
        "-l hostname=!(bad-1|bad-2)",
        "-m n",
    ]
    assert lines[1] == "#!/bin/bash -l"
    load = "module load python3/3.10 || unfit module load python3/3.10"
    assert lines.index(load) > lines.index('exec >>"$log" 2>&1')
    assert lines[-1] == 'exec python3 %s "$order"' % request.zipapp


def test_one_cpu_without_a_profile_asks_for_nothing_but_time(request_of: Callable[..., JobRequest]) -> None:
    script = SgeScheduler("group", Profile()).render([request_of()])
    asked = re.findall(r"(?m)^#\$ -(?:l|pe|q|P) .*$", script)
    assert asked == ["#$ -l h_rt=3601"]
    assert "#!/bin/bash\n" in script


def test_the_environment_of_the_submitting_shell_does_not_travel(
    request_of: Callable[..., JobRequest],
) -> None:
    script = SgeScheduler("group", Profile()).render([request_of()])
    assert not re.search(r"(?m)^#\$ -[Vv]\b", script)


def test_each_task_finds_its_own_order_and_log(request_of: Callable[..., JobRequest], tmp_path: Path) -> None:
    """The script is run for each task, with a node program that prints what it was given."""
    (tmp_path / "logs").mkdir()
    (tmp_path / "outlast.pyz").write_text(
        "import os, sys; print(sys.argv[1:], os.environ['OUTLAST_HOST'], os.environ['OUTLAST_JOB'])"
    )
    requests = [request_of(index) for index in (3, 4)]
    script = SgeScheduler("group", Profile()).render(requests)
    assert script.count("#$ -t 3-4\n") == 1
    for request in requests:
        given = {
            "SGE_TASK_ID": str(request.index),
            "JOB_ID": "12",
            "HOSTNAME": "alpha",
            "PATH": "/usr/bin:/bin",
        }
        done = subprocess.run(
            ["/bin/bash", "-c", script], env=given, capture_output=True, timeout=30, check=True
        )
        assert done.stdout == done.stderr == b""
        told = Path(request.log).read_text().strip()
        assert told == "['%s'] alpha 12.%d" % (request.order, request.index)


def test_only_like_requests_with_consecutive_numbers_share_an_array(
    scheduler: SgeScheduler, cell: Cell, request_of: Callable[..., JobRequest]
) -> None:
    cell.answers["qsub"] = CommandOutput(0, "12.1-9:1\n", "")
    requests = [request_of(index) for index in (1, 2, 3, 5, 6)] + [request_of(4, time=60.0)]
    answers = scheduler.submit(requests)
    sent = [re.findall(r"(?m)^#\$ -t (\S+)$", script)[0] for _, script in cell.calls]
    assert sorted(sent) == ["1-3", "4-4", "5-6"]
    assert set(answers) == {request.token for request in requests}
    assert answers[requests[1].token] == Submission(SubmitAnswer.ACCEPTED, "12.2")


def test_jobs_of_a_chain_wait_for_one_another_by_id_and_know_the_rest_by_name(
    scheduler: SgeScheduler, cell: Cell, request_of: Callable[..., JobRequest]
) -> None:
    numbers = iter(range(20, 30))

    def qsub(
        arguments: Sequence[str], timeout: float, given: str = "", environment: Any = None
    ) -> CommandOutput:
        cell.calls.append((list(arguments), given))
        return CommandOutput(0, "%d.1-1:1\n" % next(numbers), "")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command_runner, "call", qsub)
        answer = scheduler.submit([request_of(jobs=3)])
    assert answer["%s-1" % BATCH].job == "20.1,21.1,22.1"
    scripts = [script for _, script in cell.calls]
    assert [re.findall(r"(?m)^#\$ -hold_jid (\S+)$", script) for script in scripts] == [[], ["20"], ["21"]]
    name = "run-01.group.%s" % BATCH
    assert [re.findall(r"(?m)^#\$ -N (\S+)$", script)[0] for script in scripts] == [
        name,
        name + ".2",
        name + ".3",
    ]
    rest = [re.findall(r'(?m)^export OUTLAST_CANCEL_REST="(.*)"$', script) for script in scripts]
    assert rest == [
        ["qdel %s.2 %s.3 -t $SGE_TASK_ID" % (name, name)],
        ["qdel %s.3 -t $SGE_TASK_ID" % name],
        [],
    ]


def test_tasks_of_a_chain_of_arrays_wait_for_their_own_number_only(
    request_of: Callable[..., JobRequest],
) -> None:
    shown = SgeScheduler("group", Profile()).render([request_of(1, jobs=2), request_of(2, jobs=2)])
    assert "#$ -hold_jid_ad ID_OF_run-0.group.%s\n" % BATCH in shown


def test_a_chain_that_breaks_off_is_a_shorter_chain(
    scheduler: SgeScheduler, request_of: Callable[..., JobRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    replies = iter(
        [
            CommandOutput(0, "20.1-1:1\n", ""),
            CommandOutput(1, "", "Unable to run job: denied: enough.\nExiting."),
        ]
    )
    monkeypatch.setattr(command_runner, "call", lambda *arguments, **more: next(replies))
    (answer,) = scheduler.submit([request_of(jobs=3)]).values()
    assert (answer.answer, answer.job) == (SubmitAnswer.ACCEPTED, "20.1")
    assert answer.reason == "only 1 of 3 jobs were sent: denied: enough."


REFUSED, LATER, UNKNOWN = (
    (SubmitAnswer.REJECTED, False),
    (SubmitAnswer.REJECTED, True),
    (SubmitAnswer.UNKNOWN, False),
)


@pytest.mark.parametrize(
    "said, expected",
    [
        ('job rejected: the requested project "nope" does not exist', REFUSED),
        ('Job was rejected because job requests unknown queue "nope.q"', REFUSED),
        ('unknown resource "nope"', REFUSED),
        ('attribute "h_rt" is not a time value', REFUSED),
        ("error: no suitable queues", REFUSED),
        ('denied: host "login" is no submit host', REFUSED),
        ("job rejected: Only 50 jobs are allowed per user (current job count: 50)", LATER),
        ('unable to send message to qmaster using port 1 on host "x": got send error', UNKNOWN),
        (
            "failed receiving gdi request response for mid=1 (got syncron message receive timeout error)",
            UNKNOWN,
        ),
    ],
)
def test_a_clear_refusal_is_told_from_an_answer_that_got_lost(
    scheduler: SgeScheduler,
    cell: Cell,
    request_of: Callable[..., JobRequest],
    said: str,
    expected: tuple[SubmitAnswer, bool],
) -> None:
    cell.answers["qsub"] = CommandOutput(1, "", "Unable to run job: %s.\nExiting.\n" % said)
    (answer,) = scheduler.submit([request_of()]).values()
    assert (answer.answer, answer.transient) == expected
    assert said in answer.reason


@pytest.mark.parametrize(
    "reply, expected",
    [
        (CommandNotRun("qsub: No such file or directory"), LATER),
        (CommandTimeout("qsub did not answer within 30 s"), UNKNOWN),
        (CommandOutput(0, "nothing that could be read", ""), UNKNOWN),
        (CommandOutput(-9, "", ""), UNKNOWN),
        (
            CommandOutput(
                1, "", "error: commlib error: got select error (Connection refused)\nUnable to run job: x"
            ),
            LATER,
        ),
    ],
)
def test_a_qsub_that_says_nothing_clear_leaves_the_submission_unknown(
    scheduler: SgeScheduler,
    cell: Cell,
    request_of: Callable[..., JobRequest],
    reply: CommandOutput | Exception,
    expected: tuple[SubmitAnswer, bool],
) -> None:
    cell.answers["qsub"] = reply
    (answer,) = scheduler.submit([request_of()]).values()
    assert (answer.answer, answer.transient) == expected
    assert answer.reason


# What is listed.


@pytest.mark.parametrize(
    "state, queue, phase, reason",
    [
        ("r", "small.q@alpha", JobPhase.RUNNING, ""),
        ("t", "small.q@alpha", JobPhase.RUNNING, "is being sent to its host"),
        ("Rr", "small.q@alpha", JobPhase.RUNNING, ""),
        ("hr", "small.q@alpha", JobPhase.RUNNING, ""),
        ("s", "small.q@alpha", JobPhase.RUNNING, "is suspended"),
        ("S", "small.q@alpha", JobPhase.RUNNING, "is suspended"),
        ("T", "small.q@alpha", JobPhase.RUNNING, "is suspended"),
        ("dr", "small.q@alpha", JobPhase.RUNNING, "is being deleted"),
        ("dRr", "small.q@alpha", JobPhase.RUNNING, "is being deleted"),
        ("qw", "", JobPhase.QUEUED, ""),
        ("Rq", "", JobPhase.QUEUED, "was put back and waits in the queue"),
        ("hqw", "", JobPhase.QUEUED, "is on hold"),
        ("hRwq", "", JobPhase.QUEUED, "is on hold"),
        ("Eqw", "", JobPhase.HELD, "could not be started"),
        ("EhRqw", "", JobPhase.HELD, "could not be started"),
    ],
)
def test_every_state_is_a_phase_and_a_sentence(
    scheduler: SgeScheduler, cell: Cell, state: str, queue: str, phase: JobPhase, reason: str
) -> None:
    cell.answers["qstat"] = CommandOutput(0, listing_xml(job_xml(5, state, "3", queue=queue)), "")
    cell.answers["qstat -j"] = CommandOutput(1, "", "Following jobs do not exist: 5")
    (view,) = scheduler.poll().values()
    assert (view.token, view.job, view.phase) == ("%s-3" % BATCH, "5.3", phase)
    assert reason in view.reason if reason else not view.reason
    assert view.restarts == ("R" in state)
    assert view.host == ("alpha" if queue else "")
    assert view.started == (1794786006.0 if phase is JobPhase.RUNNING else None)


def test_all_tasks_of_an_array_are_listed_under_their_tokens(scheduler: SgeScheduler, cell: Cell) -> None:
    jobs = [job_xml(1, "r", "2", queue="small.q@beta"), job_xml(1, "qw", "3,5-9:2")]
    strangers = [job_xml(2, "qw", "1", name="try.other.%s" % BATCH), job_xml(3, "qw", "1", name="mine")]
    cell.answers["qstat"] = CommandOutput(0, listing_xml(*jobs, *strangers), "")
    assert sorted(scheduler.poll()) == ["%s-%d" % (BATCH, index) for index in (2, 3, 5, 7, 9)]


@pytest.mark.parametrize(
    "states, phase, job, restarts",
    [
        (["r", "hqw", "hqw"], JobPhase.RUNNING, "20.1", 0),
        ([None, "qw", "hqw"], JobPhase.QUEUED, "21.1", 1),
        ([None, "r", "hqw"], JobPhase.RUNNING, "21.1", 1),
        ([None, None, "Rr"], JobPhase.RUNNING, "22.1", 3),
        (["Eqw", "hqw", "hqw"], JobPhase.HELD, "20.1", 0),
    ],
)
def test_a_chain_is_one_view(
    scheduler: SgeScheduler,
    cell: Cell,
    states: Sequence[str | None],
    phase: JobPhase,
    job: str,
    restarts: int,
) -> None:
    names = [NAME, NAME + ".2", NAME + ".3"]
    jobs = [
        job_xml(20 + position, state, "1", names[position], "q@alpha" if "r" in state else "")
        for position, state in enumerate(states)
        if state
    ]
    cell.answers["qstat"] = CommandOutput(0, listing_xml(*reversed(jobs)), "")
    cell.answers["qstat -j"] = CommandOutput(0, "", "")
    (view,) = scheduler.poll().values()
    assert (view.phase, view.job, view.restarts) == (phase, job, restarts)


@pytest.mark.parametrize(
    "reply",
    [
        CommandTimeout("qstat did not answer within 30 s"),
        CommandNotRun("qstat: No such file or directory"),
        CommandOutput(
            1, "", 'error: unable to send message to qmaster using port 1 on host "x": got send error'
        ),
        CommandOutput(0, "", ""),
        CommandOutput(0, "<job_info><queue_info>", ""),
    ],
)
def test_a_listing_that_failed_is_no_empty_listing(
    scheduler: SgeScheduler, cell: Cell, reply: CommandOutput | Exception
) -> None:
    cell.answers["qstat"] = reply
    with pytest.raises(SchedulerUnavailable, match="Grid Engine"):
        scheduler.poll(sought(1))


def test_why_tasks_are_in_error_is_asked_once_and_said_in_words(scheduler: SgeScheduler, cell: Cell) -> None:
    cell.answers["qstat"] = CommandOutput(0, listing_xml(job_xml(7, "Eqw", "2,3")), "")
    cell.answers["qstat -j"] = CommandOutput(0, DETAILS, "")
    for _ in range(2):
        views = scheduler.poll()
    crashed, unreachable = views["%s-2" % BATCH], views["%s-3" % BATCH]
    assert (crashed.outcome, crashed.releasable) == (Outcome.CRASHED, False)
    assert (unreachable.outcome, unreachable.releasable) == (Outcome.NODE_TROUBLE, True)
    assert unreachable.reason == (
        "could not be started: a file or directory cannot be reached from the node "
        '(can\'t open output file "/x/y": No such file or directory)'
    )
    assert cell.programs == ["qstat", "qstat", "qstat"]


def test_a_job_that_waited_long_and_then_failed_to_start_tells_of_the_failure(
    scheduler: SgeScheduler, cell: Cell
) -> None:
    cell.answers["qstat -j"] = CommandOutput(0, DETAILS, "")
    for state in ("qw", "Eqw"):
        cell.answers["qstat"] = CommandOutput(0, listing_xml(job_xml(7, state, "3")), "")
        (view,) = scheduler.poll().values()
    assert "cannot be reached from the node" in view.reason


def test_a_job_that_came_just_now_is_not_asked_about(scheduler: SgeScheduler, cell: Cell) -> None:
    cell.answers["qstat"] = CommandOutput(0, listing_xml(job_xml(8, "qw", "4", at="2999-01-01T00:00:00")), "")
    (view,) = scheduler.poll().values()
    assert (view.phase, view.reason) == (JobPhase.QUEUED, "")
    assert cell.programs == ["qstat"]


def test_why_a_job_waits_long_is_asked_now_and_then(scheduler: SgeScheduler, cell: Cell) -> None:
    cell.answers["qstat"] = CommandOutput(0, listing_xml(job_xml(8, "qw", "4", at="2020-01-01T00:00:00")), "")
    cell.answers["qstat -j"] = CommandOutput(0, DETAILS, "")
    for _ in range(3):
        (view,) = scheduler.poll().values()
    assert view.reason == "asks for gpus=50, and no host has that free (alpha: 2)"
    assert cell.programs == ["qstat"] * 4


@pytest.mark.parametrize(
    "line, reason",
    [
        ('cannot run in PE "smp" because it only offers 0 slots', "no host has as many free"),
        ('queue instance "small.q@beta" dropped because it is full', "small.q@beta is full"),
        (
            'cannot run because it exceeds limit "root/////" in rule "most/1"',
            "quota is used up (rule most/1)",
        ),
        (
            '(-l hostname=!(alpha|beta)) cannot run in queue "main.q@alpha" because it offers only '
            "qf:hostname=alpha",
            "avoids every host that could take it (hostname=!(alpha|beta))",
        ),
        ("something that no version has said yet", "something that no version has said yet"),
        ("(Collecting of scheduler job information is turned off)", "does not say why"),
        (
            'cannot run in queue "gpu.q" because it is not contained in its hard queue list (-q)',
            "does not say why",
        ),
    ],
)
def test_the_reason_that_says_most_is_said_in_words(line: str, reason: str) -> None:
    assert reason in words.waits_because([line])


# How it ended.


def test_a_job_that_ended_is_looked_up_once_in_the_accounting(scheduler: SgeScheduler, cell: Cell) -> None:
    view = one_view(scheduler, cell, record(exit_status="7                   "))
    assert view == JobView(
        token="%s-1" % BATCH,
        job="6.1",
        phase=JobPhase.ENDED,
        host="beta",
        started=1794786082.0,
        ended=1794786090.0,
        elapsed=8.0,
        exit_code=7,
        reason="exited with 7",
        memory=int(4.707 * 1024**2),
    )
    assert scheduler.poll(sought(1)) == {view.token: view}
    assert cell.programs == ["qstat", "qacct", "qstat"]
    assert cell.calls[1][0] == ["qacct", "-j", "*.group.%s*" % BATCH]
    scheduler.forget([view.token])
    scheduler.poll(sought(1))
    assert cell.programs[-1] == "qacct"


@pytest.mark.parametrize(
    "changes, code, signal, outcome, reason",
    [
        (
            {"failed": LIMIT, "exit_status": "137                  (Killed)"},
            None,
            9,
            Outcome.OVER_TIME,
            "limit",
        ),
        ({"failed": LIMIT, "exit_status": "9"}, 9, None, Outcome.OVER_TIME, "limit"),
        (
            {
                "failed": LIMIT,
                "exit_status": "137",
                "maxvmem": "501.2M",
                "category": "-l h_rt=60,h_vmem=500M -q main.q",
            },
            None,
            9,
            Outcome.OUT_OF_MEMORY,
            "memory",
        ),
        (
            {"failed": "100 : assumedly after job", "exit_status": "140  (User defined signal 2)"},
            None,
            12,
            None,
            "signal 12 (SIGUSR2)",
        ),
        ({"exit_status": "137"}, 137, None, None, "exited with 137"),
        ({**UNTIMED, "failed": "26  : opening input/output file"}, None, None, Outcome.NODE_TROUBLE, "beta"),
        (
            {"failed": "19  : before writing exit_status"},
            None,
            None,
            Outcome.NODE_TROUBLE,
            "was lost on beta",
        ),
        ({"failed": "15  : in epilog", "exit_status": "0"}, 0, None, None, "in epilog"),
        (RESCHEDULED, 0, None, Outcome.EVICTED, "put back into the queue"),
    ],
)
def test_every_way_to_end_has_an_outcome_and_a_sentence(
    scheduler: SgeScheduler,
    cell: Cell,
    changes: dict[str, str],
    code: int | None,
    signal: int | None,
    outcome: Outcome | None,
    reason: str,
) -> None:
    view = one_view(scheduler, cell, record(**changes))
    assert (view.exit_code, view.signal, view.outcome) == (code, signal, outcome)
    assert reason in view.reason


def test_of_several_records_the_last_one_counts_and_the_time_of_all(
    scheduler: SgeScheduler, cell: Cell
) -> None:
    chain = [record(failed=LIMIT, exit_status="85"), record(jobnumber="7", jobname=NAME + ".2")]
    view = one_view(scheduler, cell, *chain)
    assert (view.job, view.exit_code, view.outcome, view.restarts, view.elapsed) == ("7.1", 0, None, 1, 16.0)


def test_the_slot_time_counts_from_behind_the_last_start_that_has_no_times(
    scheduler: SgeScheduler, cell: Cell
) -> None:
    view = one_view(scheduler, cell, record(), record(**RESCHEDULED), record())
    assert (view.restarts, view.elapsed, view.since, view.exit_code) == (2, 8.0, view.started, 0)


def test_a_last_start_without_times_makes_the_slot_time_unknown(scheduler: SgeScheduler, cell: Cell) -> None:
    view = one_view(scheduler, cell, record(), record(**RESCHEDULED))
    assert (view.restarts, view.elapsed, view.since) == (1, None, None)


def test_a_failed_try_to_start_is_no_start(scheduler: SgeScheduler, cell: Cell) -> None:
    view = one_view(scheduler, cell, record(**UNTIMED, failed="26  : opening input/output file"), record())
    assert (view.restarts, view.elapsed) == (0, 8.0)


@pytest.mark.parametrize("reply", [CommandTimeout("slow"), CommandNotRun("no qacct")])
def test_an_accounting_that_does_not_answer_is_left_in_peace_and_the_listing_stands(
    scheduler: SgeScheduler, cell: Cell, reply: CommandOutput | Exception
) -> None:
    cell.answers["qstat"] = CommandOutput(0, listing_xml(job_xml(5, "qw", "2")), "")
    cell.answers["qacct"] = reply
    for _ in range(2):
        assert list(scheduler.poll(sought(1, 2))) == ["%s-2" % BATCH]
    assert cell.programs.count("qacct") == 1


def test_a_job_that_the_accounting_does_not_know_yet_is_asked_for_again(
    scheduler: SgeScheduler, cell: Cell
) -> None:
    cell.answers["qacct"] = CommandOutput(1, "", "error: job name *.group.%s* not found" % BATCH)
    assert scheduler.poll(sought(1)) == {}
    cell.answers["qacct"] = CommandOutput(0, record(), "")
    assert scheduler.poll(sought(1))["%s-1" % BATCH].exit_code == 0


@pytest.mark.parametrize(
    "written, seconds",
    [
        ("Sun Nov 15 23:41:22 2026", 1794786082.0),
        ("2026-11-15T23:41:22", 1794786082.0),
        ("11/15/2026 23:41:22.123", 1794786082.0),
        ("-/-", None),
    ],
)
def test_times_are_read_as_utc_whatever_the_version(written: str, seconds: float | None) -> None:
    assert text.moment(written) == seconds


# What is done to jobs.


def test_cancel_deletes_all_jobs_of_the_token_in_one_call(scheduler: SgeScheduler, cell: Cell) -> None:
    jobs = [
        job_xml(20, "r", "1", queue="q@alpha"),
        job_xml(21, "hqw", "1", NAME + ".2"),
        job_xml(20, "qw", "2"),
    ]
    cell.answers["qstat"] = CommandOutput(0, listing_xml(*jobs), "")
    cell.answers["qdel"] = CommandOutput(
        1, "root has registered the job-array task 20.1 for deletion\nroot has deleted job 21\n", ""
    )
    scheduler.cancel([scheduler.poll()["%s-1" % BATCH]])
    assert cell.calls[-1][0] == ["qdel", "20.1", "21.1"]


def deleted_while_it_waited(
    scheduler: SgeScheduler, cell: Cell, state: str, accounting: CommandOutput
) -> JobView:
    cell.answers["qstat"] = CommandOutput(0, listing_xml(job_xml(20, state, "1,2")), "")
    cell.answers["qdel"] = CommandOutput(0, "root has deleted job-array task 20.1\n", "")
    scheduler.cancel([scheduler.poll()["%s-1" % BATCH]])
    cell.answers["qstat"] = CommandOutput(0, listing_xml(job_xml(20, state, "2")), "")
    cell.answers["qacct"] = accounting
    return scheduler.poll(sought(1))["%s-1" % BATCH]


def test_a_job_deleted_before_it_started_is_told_as_ended(scheduler: SgeScheduler, cell: Cell) -> None:
    view = deleted_while_it_waited(scheduler, cell, "qw", CommandOutput(1, "", "error: job name not found"))
    assert (view.phase, view.started, view.outcome) == (JobPhase.ENDED, None, Outcome.CANCELLED)


def test_a_job_deleted_while_it_waited_again_has_the_times_of_its_start(
    scheduler: SgeScheduler, cell: Cell
) -> None:
    view = deleted_while_it_waited(
        scheduler, cell, "Eqw", CommandOutput(0, record(failed="30  : application error"), "")
    )
    assert (view.phase, view.elapsed) == (JobPhase.ENDED, 8.0)


def test_cancelling_what_is_gone_is_no_error_and_a_silent_qmaster_is_one(
    scheduler: SgeScheduler, cell: Cell
) -> None:
    cell.answers["qstat"] = CommandOutput(0, listing_xml(job_xml(20, "qw", "1")), "")
    views = list(scheduler.poll().values())
    cell.answers["qdel"] = CommandOutput(1, 'denied: job "20" does not exist\n', "")
    scheduler.cancel(views)
    cell.answers["qdel"] = CommandOutput(
        1, "unable to send message to qmaster using port 1: got send error\n", ""
    )
    with pytest.raises(SchedulerUnavailable):
        scheduler.cancel(views)


def test_release_clears_the_error_state(scheduler: SgeScheduler, cell: Cell) -> None:
    cell.answers["qstat"] = CommandOutput(0, listing_xml(job_xml(7, "Eqw", "3")), "")
    cell.answers["qstat -j"] = CommandOutput(0, DETAILS, "")
    cell.answers["qmod"] = CommandOutput(0, "root@localhost cleared error state of job-array task 7.3\n", "")
    scheduler.release(list(scheduler.poll().values()))
    assert cell.calls[-1][0] == ["qmod", "-cj", "7.3"]


def test_hosts_are_those_of_qhost_asked_once_and_nobody_if_it_fails(
    scheduler: SgeScheduler, cell: Cell
) -> None:
    cell.answers["qhost"] = CommandTimeout("silent")
    assert scheduler.hosts() == ()
    cell.answers["qhost"] = CommandOutput(0, QHOST, "")
    assert scheduler.hosts() == scheduler.hosts() == ("alpha", "beta")
    assert cell.programs.count("qhost") == 2
