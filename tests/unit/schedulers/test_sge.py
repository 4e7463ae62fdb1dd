"""The Grid Engine adapter, tested with recorded output of Son of Grid Engine 8.1.9."""

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
    JobRef,
    JobRequest,
    JobView,
    Removal,
    SchedulerUnavailable,
    Submission,
    SubmitStatus,
)
from outlast.schedulers.command_runner import CommandNotRun, CommandOutput, CommandTimeout
from outlast.schedulers.profile import Profile
from outlast.schedulers.sge.adapter import SgeScheduler
from outlast.schedulers.sge.listing import parse_time
from outlast.schedulers.sge.states import explain_pending
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


class FakeCell:
    """Fakes the programs: returns `outputs` and records the calls."""

    def __init__(self) -> None:
        self.outputs: dict[str, CommandOutput | Exception] = {
            "qstat": CommandOutput(0, listing_xml(), ""),
            "qstat -j": CommandOutput(0, "", ""),
        }
        self.calls: list[tuple[list[str], str]] = []

    def run_command(
        self, arguments: Sequence[str], timeout: float, stdin: str = "", environment: Any = None
    ) -> CommandOutput:
        self.calls.append((list(arguments), stdin))
        key = "qstat -j" if list(arguments[:2]) == ["qstat", "-j"] else arguments[0]
        output = self.outputs[key]
        if isinstance(output, Exception):
            raise output
        return output

    @property
    def programs(self) -> list[str]:
        return [arguments[0] for arguments, _ in self.calls]


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch) -> FakeCell:
    cell = FakeCell()
    monkeypatch.setattr(command_runner, "run_command", cell.run_command)
    return cell


@pytest.fixture
def scheduler(cell: FakeCell) -> SgeScheduler:
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


def refs(*indices: int) -> list[JobRef]:
    return [JobRef("%s-%d" % (BATCH, index), "", 0.0) for index in indices]


def one_view(scheduler: SgeScheduler, cell: FakeCell, *records: str) -> JobView:
    cell.outputs["qacct"] = CommandOutput(0, "".join(records), "")
    (view,) = scheduler.poll(refs(1)).values()
    return view


# Submission.


def test_the_script_contains_all_options_of_qsub(request_of: Callable[..., JobRequest]) -> None:
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
    load = "module load python3/3.10 || setup_failed module load python3/3.10"
    assert lines.index(load) > lines.index('exec >>"$log" 2>&1')
    assert lines[-1] == 'exec python3 %s "$order"' % request.zipapp


def test_one_cpu_without_a_profile_requests_nothing_but_time(request_of: Callable[..., JobRequest]) -> None:
    script = SgeScheduler("group", Profile()).render([request_of()])
    requested = re.findall(r"(?m)^#\$ -(?:l|pe|q|P) .*$", script)
    assert requested == ["#$ -l h_rt=3601"]
    assert "#!/bin/bash\n" in script


def test_the_environment_of_the_submitting_shell_is_not_sent(
    request_of: Callable[..., JobRequest],
) -> None:
    script = SgeScheduler("group", Profile()).render([request_of()])
    assert not re.search(r"(?m)^#\$ -[Vv]\b", script)


def test_each_task_finds_its_own_order_and_log(request_of: Callable[..., JobRequest], tmp_path: Path) -> None:
    """Run the script for each task, with a node program that prints its arguments."""
    (tmp_path / "logs").mkdir()
    (tmp_path / "outlast.pyz").write_text(
        "import os, sys; print(sys.argv[1:], os.environ['OUTLAST_HOST'], os.environ['OUTLAST_JOB'])"
    )
    requests = [request_of(index) for index in (3, 4)]
    script = SgeScheduler("group", Profile()).render(requests)
    assert script.count("#$ -t 3-4\n") == 1
    for request in requests:
        environment = {
            "SGE_TASK_ID": str(request.index),
            "JOB_ID": "12",
            "HOSTNAME": "alpha",
            "PATH": "/usr/bin:/bin",
        }
        done = subprocess.run(
            ["/bin/bash", "-c", script], env=environment, capture_output=True, timeout=30, check=True
        )
        assert done.stdout == done.stderr == b""
        printed = Path(request.log).read_text().strip()
        assert printed == "['%s'] alpha 12.%d" % (request.order, request.index)


def test_only_equal_requests_with_consecutive_numbers_share_an_array(
    scheduler: SgeScheduler, cell: FakeCell, request_of: Callable[..., JobRequest]
) -> None:
    cell.outputs["qsub"] = CommandOutput(0, "12.1-9:1\n", "")
    requests = [request_of(index) for index in (1, 2, 3, 5, 6)] + [request_of(4, time=60.0)]
    results = scheduler.submit(requests)
    sent = [re.findall(r"(?m)^#\$ -t (\S+)$", script)[0] for _, script in cell.calls]
    assert sorted(sent) == ["1-3", "4-4", "5-6"]
    assert set(results) == {request.token for request in requests}
    assert results[requests[1].token] == Submission(SubmitStatus.ACCEPTED, "12.2")


def test_jobs_of_a_chain_wait_for_one_another_by_id_and_know_the_rest_by_name(
    scheduler: SgeScheduler, cell: FakeCell, request_of: Callable[..., JobRequest]
) -> None:
    numbers = iter(range(20, 30))

    def qsub(
        arguments: Sequence[str], timeout: float, stdin: str = "", environment: Any = None
    ) -> CommandOutput:
        cell.calls.append((list(arguments), stdin))
        return CommandOutput(0, "%d.1-1:1\n" % next(numbers), "")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command_runner, "run_command", qsub)
        results = scheduler.submit([request_of(jobs=3)])
    assert results["%s-1" % BATCH].job == "20.1,21.1,22.1"
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
    rendered = SgeScheduler("group", Profile()).render([request_of(1, jobs=2), request_of(2, jobs=2)])
    assert "#$ -hold_jid_ad ID_OF_run-0.group.%s\n" % BATCH in rendered


def test_a_chain_that_breaks_off_is_a_shorter_chain(
    scheduler: SgeScheduler, request_of: Callable[..., JobRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs = iter(
        [
            CommandOutput(0, "20.1-1:1\n", ""),
            CommandOutput(1, "", "Unable to run job: denied: enough.\nExiting."),
        ]
    )
    monkeypatch.setattr(command_runner, "run_command", lambda *arguments, **more: next(outputs))
    (result,) = scheduler.submit([request_of(jobs=3)]).values()
    assert (result.status, result.job) == (SubmitStatus.ACCEPTED, "20.1")
    assert result.reason == "only 1 of 3 jobs were sent: denied: enough."


REJECTED, TRANSIENT, UNKNOWN = (
    (SubmitStatus.REJECTED, False),
    (SubmitStatus.REJECTED, True),
    (SubmitStatus.UNKNOWN, False),
)


@pytest.mark.parametrize(
    "message, expected",
    [
        ('job rejected: the requested project "nope" does not exist', REJECTED),
        ('Job was rejected because job requests unknown queue "nope.q"', REJECTED),
        ('unknown resource "nope"', REJECTED),
        ('attribute "h_rt" is not a time value', REJECTED),
        ("error: no suitable queues", REJECTED),
        ('denied: host "login" is no submit host', REJECTED),
        ("job rejected: Only 50 jobs are allowed per user (current job count: 50)", TRANSIENT),
        ('unable to send message to qmaster using port 1 on host "x": got send error', UNKNOWN),
        (
            "failed receiving gdi request response for mid=1 (got syncron message receive timeout error)",
            UNKNOWN,
        ),
    ],
)
def test_a_clear_rejection_is_distinguished_from_a_lost_response(
    scheduler: SgeScheduler,
    cell: FakeCell,
    request_of: Callable[..., JobRequest],
    message: str,
    expected: tuple[SubmitStatus, bool],
) -> None:
    cell.outputs["qsub"] = CommandOutput(1, "", "Unable to run job: %s.\nExiting.\n" % message)
    (result,) = scheduler.submit([request_of()]).values()
    assert (result.status, result.transient) == expected
    assert message in result.reason


@pytest.mark.parametrize(
    "output, expected",
    [
        (CommandNotRun("qsub: No such file or directory"), TRANSIENT),
        (CommandTimeout("qsub did not respond within 30 s"), UNKNOWN),
        (CommandOutput(0, "nothing that could be read", ""), UNKNOWN),
        (CommandOutput(-9, "", ""), UNKNOWN),
        (
            CommandOutput(
                1, "", "error: commlib error: got select error (Connection refused)\nUnable to run job: x"
            ),
            TRANSIENT,
        ),
    ],
)
def test_an_unclear_output_of_qsub_leaves_the_submission_unknown(
    scheduler: SgeScheduler,
    cell: FakeCell,
    request_of: Callable[..., JobRequest],
    output: CommandOutput | Exception,
    expected: tuple[SubmitStatus, bool],
) -> None:
    cell.outputs["qsub"] = output
    (result,) = scheduler.submit([request_of()]).values()
    assert (result.status, result.transient) == expected
    assert result.reason


# Listed jobs.


@pytest.mark.parametrize(
    "state, queue, phase, reason",
    [
        ("r", "small.q@alpha", JobPhase.RUNNING, ""),
        ("t", "small.q@alpha", JobPhase.RUNNING, "being sent to its host"),
        ("Rr", "small.q@alpha", JobPhase.RUNNING, ""),
        ("hr", "small.q@alpha", JobPhase.RUNNING, ""),
        ("s", "small.q@alpha", JobPhase.RUNNING, "suspended"),
        ("S", "small.q@alpha", JobPhase.RUNNING, "suspended"),
        ("T", "small.q@alpha", JobPhase.RUNNING, "suspended"),
        ("dr", "small.q@alpha", JobPhase.RUNNING, "being deleted"),
        ("dRr", "small.q@alpha", JobPhase.RUNNING, "being deleted"),
        ("qw", "", JobPhase.QUEUED, ""),
        ("Rq", "", JobPhase.QUEUED, "rescheduled, and pending again"),
        ("hqw", "", JobPhase.QUEUED, "on hold"),
        ("hRwq", "", JobPhase.QUEUED, "on hold"),
        ("Eqw", "", JobPhase.HELD, "could not be started"),
        ("EhRqw", "", JobPhase.HELD, "could not be started"),
    ],
)
def test_every_state_has_a_phase_and_a_sentence(
    scheduler: SgeScheduler, cell: FakeCell, state: str, queue: str, phase: JobPhase, reason: str
) -> None:
    cell.outputs["qstat"] = CommandOutput(0, listing_xml(job_xml(5, state, "3", queue=queue)), "")
    cell.outputs["qstat -j"] = CommandOutput(1, "", "Following jobs do not exist: 5")
    (view,) = scheduler.poll().values()
    assert (view.token, view.job, view.phase) == ("%s-3" % BATCH, "5.3", phase)
    assert reason in view.reason if reason else not view.reason
    assert view.restarts == ("R" in state)
    assert view.host == ("alpha" if queue else "")
    assert view.started == (1794786006.0 if phase is JobPhase.RUNNING else None)


def test_all_tasks_of_an_array_are_listed_under_their_tokens(scheduler: SgeScheduler, cell: FakeCell) -> None:
    jobs = [job_xml(1, "r", "2", queue="small.q@beta"), job_xml(1, "qw", "3,5-9:2")]
    strangers = [job_xml(2, "qw", "1", name="try.other.%s" % BATCH), job_xml(3, "qw", "1", name="mine")]
    cell.outputs["qstat"] = CommandOutput(0, listing_xml(*jobs, *strangers), "")
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
    cell: FakeCell,
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
    cell.outputs["qstat"] = CommandOutput(0, listing_xml(*reversed(jobs)), "")
    cell.outputs["qstat -j"] = CommandOutput(0, "", "")
    (view,) = scheduler.poll().values()
    assert (view.phase, view.job, view.restarts) == (phase, job, restarts)


@pytest.mark.parametrize(
    "output",
    [
        CommandTimeout("qstat did not respond within 30 s"),
        CommandNotRun("qstat: No such file or directory"),
        CommandOutput(
            1, "", 'error: unable to send message to qmaster using port 1 on host "x": got send error'
        ),
        CommandOutput(0, "", ""),
        CommandOutput(0, "<job_info><queue_info>", ""),
    ],
)
def test_a_failed_listing_is_not_an_empty_listing(
    scheduler: SgeScheduler, cell: FakeCell, output: CommandOutput | Exception
) -> None:
    cell.outputs["qstat"] = output
    with pytest.raises(SchedulerUnavailable, match="Grid Engine"):
        scheduler.poll(refs(1))


def test_why_tasks_are_in_error_is_queried_once_and_explained(
    scheduler: SgeScheduler, cell: FakeCell
) -> None:
    cell.outputs["qstat"] = CommandOutput(0, listing_xml(job_xml(7, "Eqw", "2,3")), "")
    cell.outputs["qstat -j"] = CommandOutput(0, DETAILS, "")
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


def test_a_job_that_waited_long_and_then_failed_to_start_shows_the_failure(
    scheduler: SgeScheduler, cell: FakeCell
) -> None:
    cell.outputs["qstat -j"] = CommandOutput(0, DETAILS, "")
    for state in ("qw", "Eqw"):
        cell.outputs["qstat"] = CommandOutput(0, listing_xml(job_xml(7, state, "3")), "")
        (view,) = scheduler.poll().values()
    assert "cannot be reached from the node" in view.reason


def test_a_job_that_was_just_submitted_is_not_queried(scheduler: SgeScheduler, cell: FakeCell) -> None:
    cell.outputs["qstat"] = CommandOutput(0, listing_xml(job_xml(8, "qw", "4", at="2999-01-01T00:00:00")), "")
    (view,) = scheduler.poll().values()
    assert (view.phase, view.reason) == (JobPhase.QUEUED, "")
    assert cell.programs == ["qstat"]


def test_why_a_job_waits_long_is_queried_at_intervals(scheduler: SgeScheduler, cell: FakeCell) -> None:
    cell.outputs["qstat"] = CommandOutput(0, listing_xml(job_xml(8, "qw", "4", at="2020-01-01T00:00:00")), "")
    cell.outputs["qstat -j"] = CommandOutput(0, DETAILS, "")
    for _ in range(3):
        (view,) = scheduler.poll().values()
    assert view.reason == "requests gpus=50, and no host has that free (alpha: 2)"
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
            "avoids every host that could run it (hostname=!(alpha|beta))",
        ),
        ("something that no version prints yet", "something that no version prints yet"),
        ("(Collecting of scheduler job information is turned off)", "reports no reason"),
        (
            'cannot run in queue "gpu.q" because it is not contained in its hard queue list (-q)',
            "reports no reason",
        ),
    ],
)
def test_the_most_informative_reason_is_explained(line: str, reason: str) -> None:
    assert reason in explain_pending([line])


# Ended jobs.


def test_an_ended_job_is_looked_up_once_in_the_accounting(scheduler: SgeScheduler, cell: FakeCell) -> None:
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
    assert scheduler.poll(refs(1)) == {view.token: view}
    assert cell.programs == ["qstat", "qacct", "qstat"]
    assert cell.calls[1][0] == ["qacct", "-j", "*.group.%s*" % BATCH]
    scheduler.forget([view.token])
    scheduler.poll(refs(1))
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
        (RESCHEDULED, 0, None, Outcome.EVICTED, "rescheduled"),
    ],
)
def test_every_end_has_an_outcome_and_a_sentence(
    scheduler: SgeScheduler,
    cell: FakeCell,
    changes: dict[str, str],
    code: int | None,
    signal: int | None,
    outcome: Outcome | None,
    reason: str,
) -> None:
    view = one_view(scheduler, cell, record(**changes))
    assert (view.exit_code, view.signal, view.outcome) == (code, signal, outcome)
    assert reason in view.reason


@pytest.mark.parametrize(
    "changes, removed",
    [
        ({"failed": "100 : assumedly after job", "exit_status": "137"}, Removal.MAYBE),
        ({"failed": "100 : assumedly after job", "exit_status": "140"}, Removal.MAYBE),
        ({"failed": "100 : assumedly after job", "exit_status": "85"}, Removal.NO),
        ({"exit_status": "137"}, Removal.NO),
        ({"failed": LIMIT, "exit_status": "137"}, Removal.NO),
        ({"failed": "19  : before writing exit_status"}, Removal.NO),
        (RESCHEDULED, Removal.NO),
    ],
)
def test_a_signal_may_mean_that_somebody_deleted_the_job(
    scheduler: SgeScheduler, cell: FakeCell, changes: dict[str, str], removed: Removal
) -> None:
    view = one_view(scheduler, cell, record(**changes))
    assert view.removed is removed
    assert ("qdel" in view.reason) is (removed is Removal.MAYBE)


def test_the_last_of_several_records_decides_and_the_time_of_all_counts(
    scheduler: SgeScheduler, cell: FakeCell
) -> None:
    chain = [record(failed=LIMIT, exit_status="85"), record(jobnumber="7", jobname=NAME + ".2")]
    view = one_view(scheduler, cell, *chain)
    assert (view.job, view.exit_code, view.outcome, view.restarts, view.elapsed) == ("7.1", 0, None, 1, 16.0)


def test_the_slot_time_is_counted_after_the_last_start_without_times(
    scheduler: SgeScheduler, cell: FakeCell
) -> None:
    view = one_view(scheduler, cell, record(), record(**RESCHEDULED), record())
    assert (view.restarts, view.elapsed, view.since, view.exit_code) == (2, 8.0, view.started, 0)


def test_a_last_start_without_times_makes_the_slot_time_unknown(
    scheduler: SgeScheduler, cell: FakeCell
) -> None:
    view = one_view(scheduler, cell, record(), record(**RESCHEDULED))
    assert (view.restarts, view.elapsed, view.since) == (1, None, None)


def test_a_start_that_failed_is_not_counted(scheduler: SgeScheduler, cell: FakeCell) -> None:
    view = one_view(scheduler, cell, record(**UNTIMED, failed="26  : opening input/output file"), record())
    assert (view.restarts, view.elapsed) == (0, 8.0)


@pytest.mark.parametrize("output", [CommandTimeout("slow"), CommandNotRun("no qacct")])
def test_an_accounting_that_does_not_respond_is_not_queried_for_a_while_and_the_listing_is_used(
    scheduler: SgeScheduler, cell: FakeCell, output: CommandOutput | Exception
) -> None:
    cell.outputs["qstat"] = CommandOutput(0, listing_xml(job_xml(5, "qw", "2")), "")
    cell.outputs["qacct"] = output
    for _ in range(2):
        assert list(scheduler.poll(refs(1, 2))) == ["%s-2" % BATCH]
    assert cell.programs.count("qacct") == 1


def test_a_job_that_the_accounting_does_not_know_yet_is_queried_again(
    scheduler: SgeScheduler, cell: FakeCell
) -> None:
    cell.outputs["qacct"] = CommandOutput(1, "", "error: job name *.group.%s* not found" % BATCH)
    assert scheduler.poll(refs(1)) == {}
    cell.outputs["qacct"] = CommandOutput(0, record(), "")
    assert scheduler.poll(refs(1))["%s-1" % BATCH].exit_code == 0


@pytest.mark.parametrize(
    "written, seconds",
    [
        ("Sun Nov 15 23:41:22 2026", 1794786082.0),
        ("2026-11-15T23:41:22", 1794786082.0),
        ("11/15/2026 23:41:22.123", 1794786082.0),
        ("-/-", None),
    ],
)
def test_times_of_all_versions_are_parsed_as_utc(written: str, seconds: float | None) -> None:
    assert parse_time(written) == seconds


# Cancel and release.


def test_cancel_deletes_all_jobs_of_the_token_in_one_call(scheduler: SgeScheduler, cell: FakeCell) -> None:
    jobs = [
        job_xml(20, "r", "1", queue="q@alpha"),
        job_xml(21, "hqw", "1", NAME + ".2"),
        job_xml(20, "qw", "2"),
    ]
    cell.outputs["qstat"] = CommandOutput(0, listing_xml(*jobs), "")
    cell.outputs["qdel"] = CommandOutput(
        1, "root has registered the job-array task 20.1 for deletion\nroot has deleted job 21\n", ""
    )
    scheduler.cancel([scheduler.poll()["%s-1" % BATCH]])
    assert cell.calls[-1][0] == ["qdel", "20.1", "21.1"]


def delete_while_waiting(
    scheduler: SgeScheduler, cell: FakeCell, state: str, accounting: CommandOutput
) -> JobView:
    cell.outputs["qstat"] = CommandOutput(0, listing_xml(job_xml(20, state, "1,2")), "")
    cell.outputs["qdel"] = CommandOutput(0, "root has deleted job-array task 20.1\n", "")
    scheduler.cancel([scheduler.poll()["%s-1" % BATCH]])
    cell.outputs["qstat"] = CommandOutput(0, listing_xml(job_xml(20, state, "2")), "")
    cell.outputs["qacct"] = accounting
    return scheduler.poll(refs(1))["%s-1" % BATCH]


def test_a_job_deleted_before_it_started_is_reported_as_ended(
    scheduler: SgeScheduler, cell: FakeCell
) -> None:
    view = delete_while_waiting(scheduler, cell, "qw", CommandOutput(1, "", "error: job name not found"))
    assert (view.phase, view.started, view.outcome) == (JobPhase.ENDED, None, Outcome.CANCELLED)
    assert view.removed is Removal.YES


def test_a_job_deleted_while_it_waited_again_has_the_times_of_its_start(
    scheduler: SgeScheduler, cell: FakeCell
) -> None:
    view = delete_while_waiting(
        scheduler, cell, "Eqw", CommandOutput(0, record(failed="30  : application error"), "")
    )
    assert (view.phase, view.elapsed) == (JobPhase.ENDED, 8.0)


def test_cancelling_a_job_that_is_gone_is_no_error_and_an_unreachable_qmaster_is_one(
    scheduler: SgeScheduler, cell: FakeCell
) -> None:
    cell.outputs["qstat"] = CommandOutput(0, listing_xml(job_xml(20, "qw", "1")), "")
    views = list(scheduler.poll().values())
    cell.outputs["qdel"] = CommandOutput(1, 'denied: job "20" does not exist\n', "")
    scheduler.cancel(views)
    host_is_down = 'root unable to sync state with remote execd for the deletion of job "20"\n'
    cell.outputs["qdel"] = CommandOutput(1, host_is_down, "")
    scheduler.cancel(views)
    cell.outputs["qdel"] = CommandOutput(
        1, "unable to send message to qmaster using port 1: got send error\n", ""
    )
    with pytest.raises(SchedulerUnavailable):
        scheduler.cancel(views)


def test_release_clears_the_error_state(scheduler: SgeScheduler, cell: FakeCell) -> None:
    cell.outputs["qstat"] = CommandOutput(0, listing_xml(job_xml(7, "Eqw", "3")), "")
    cell.outputs["qstat -j"] = CommandOutput(0, DETAILS, "")
    cell.outputs["qmod"] = CommandOutput(0, "root@localhost cleared error state of job-array task 7.3\n", "")
    scheduler.release(list(scheduler.poll().values()))
    assert cell.calls[-1][0] == ["qmod", "-cj", "7.3"]


def test_hosts_are_queried_by_qhost_once_and_empty_if_it_fails(
    scheduler: SgeScheduler, cell: FakeCell
) -> None:
    cell.outputs["qhost"] = CommandTimeout("no response")
    assert scheduler.hosts() == ()
    cell.outputs["qhost"] = CommandOutput(0, QHOST, "")
    assert scheduler.hosts() == scheduler.hosts() == ("alpha", "beta")
    assert cell.programs.count("qhost") == 2
