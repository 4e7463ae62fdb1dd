"""Unreadable output of the schedulers' programs: no parser raises, and no readable line is lost."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from xml.sax.saxutils import escape

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from outlast.schedulers import command_runner
from outlast.schedulers.base import JobPhase, JobRef
from outlast.schedulers.command_runner import CommandOutput
from outlast.schedulers.htcondor import adapter
from outlast.schedulers.profile import Profile
from outlast.schedulers.sge import listing
from outlast.schedulers.sge.adapter import SgeScheduler
from outlast.schedulers.slurm.adapter import SlurmScheduler
from outlast.schedulers.slurm.listing import parse_sacct, parse_sinfo, parse_squeue
from outlast.schedulers.slurm.views import build_views, restore_task_numbers
from outlast.schedulers.unreadable_output import UnreadableOutput
from support.sge_output import BATCH, NAME, job_xml, listing_xml, record

GOOD = "7|3|RUNNING|0|0|n1|100|200|0:02|None|train.g.b7|"
GOOD_SACCT = "7_3|COMPLETED|0:0|n1|100|102|2||train.g.b7"

#: A slow machine is not a failure.
NO_DEADLINE = settings(deadline=None)
#: Texts that look like a number or a range.
ALMOST_NUMBERS = (
    "",
    "-1",
    "²",
    "1e3",
    "0x10",
    "9" * 5000,
    "1_0",
    "inf",
    "nan",
    "1.2.3",
    "INVALID",
    "1-",
    "[1-9",
    " 1 ",
)
rubbish = st.one_of(st.sampled_from(ALMOST_NUMBERS), st.text(max_size=12), st.integers(0, 10**20).map(str))


@st.composite
def corrupted(draw: st.DrawFn, line: str, name: str) -> str:
    """Return the line with some of its fields replaced; the name is often one of this experiment."""
    fields = line.split("|")
    for at in draw(st.sets(st.integers(0, len(fields) - 1), max_size=4)):
        fields[at] = draw(rubbish)
    if draw(st.booleans()):
        fields[-2 if line.endswith("|") else -1] = name
    return "|".join(fields)[: draw(st.sampled_from((None, 10, -3)))]


@NO_DEADLINE
@given(st.lists(st.one_of(st.text(), corrupted(GOOD, "train.g.b9")), max_size=4))
def test_no_line_of_squeue_hides_the_others(lines: list[str]) -> None:
    rows = parse_squeue("\n".join([*lines, GOOD, *lines]), "g")
    assert [row for row in rows if (row.token, row.phase) == ("b7-3", JobPhase.RUNNING)]
    build_views(restore_task_numbers(rows, [JobRef("b9-1", "7_1", 0.0)]), [])


@NO_DEADLINE
@given(st.lists(st.one_of(st.text(), corrupted(GOOD_SACCT, "train.g.b9")), max_size=4))
def test_no_line_of_sacct_hides_the_others(lines: list[str]) -> None:
    rows = parse_sacct("\n".join([*lines, GOOD_SACCT, *lines]), "g")
    assert [row for row in rows if (row.token, row.job, row.ended) == ("b7-3", "7_3", 102.0)]
    build_views([], restore_task_numbers(rows, [JobRef("b9-1", "7_1", 0.0)]))


@NO_DEADLINE
@given(st.lists(st.text(), max_size=4))
def test_no_line_of_sinfo_hides_the_others(lines: list[str]) -> None:
    assert "n1" in parse_sinfo("\n".join([*lines, "n1|main*|idle"]), any_partition=False)


@NO_DEADLINE
@given(st.text(), rubbish, rubbish, rubbish, rubbish)
def test_no_job_of_qstat_hides_the_others(name: str, number: str, tasks: str, at: str, state: str) -> None:
    allowed = [
        escape("".join(sign for sign in text if sign.isprintable()))
        for text in (name, number, tasks, at, state)
    ]
    bad = job_xml(8, "STATE", "TASKS", name="NAME", at="AT").replace(">8<", ">NUMBER<")
    for word, text in zip(("NAME", "NUMBER", "TASKS", "AT", "STATE"), allowed, strict=True):
        bad = bad.replace(">%s<" % word, ">%s<" % text)
    listed = listing.parse_qstat(listing_xml(bad, job_xml(5, "qw", "2")))
    assert [task.job for task in listed if task.name == NAME] == ["5.2"]
    assert all(task.phase for task in listed)


@NO_DEADLINE
@given(st.text(), rubbish, rubbish, rubbish, rubbish, rubbish)
def test_no_record_of_qacct_hides_the_others(
    text: str, task: str, failed: str, status: str, memory: str, category: str
) -> None:
    bad = record(
        jobname="other.group.x",
        taskid=task,
        failed=failed,
        exit_status=status,
        maxvmem=memory,
        category="h_rt=%s,h_vmem=%s" % (category, memory),
    )
    records = listing.parse_qacct(bad + record() + text + record(taskid="2") + bad)
    # Text between two records may corrupt the one before it.
    assert {one.job for one in records if one.name == NAME} >= {"6.2"}


@NO_DEADLINE
@given(st.text())
def test_no_other_output_of_grid_engine_makes_a_parser_fail(text: str) -> None:
    listing.parse_qstat_details("job_number: %s\nerror reason %s: x\n%s" % (text, text, text))
    listing.parse_qdel("root has deleted job %s\n%s" % ("9" * 5000, text))
    for parse in (listing.parse_qstat, listing.parse_qhost):
        with suppress(listing.UnreadableListing):  # output that is not XML at all
            parse(text)


scalar = st.one_of(
    st.integers(-5, 10), st.integers(), st.floats(), st.booleans(), st.text(max_size=8), rubbish
)


#: The attributes of an ad that the adapter reads.
ATTRIBUTES = (
    *("OutlastToken", "ClusterId", "ProcId", "JobStatus", "UserLog", "NumShadowStarts", "ExitBySignal"),
    *("JobCurrentStartExecutingDate", "EnteredCurrentStatus", "CompletionDate", "RemoteWallClockTime"),
    *("ExitCode", "ExitSignal", "HoldReason", "HoldReasonCode", "HoldReasonSubCode", "RemoveReason"),
    *("LastRejMatchReason", "RemoteHost", "MachineAttrMachine0", "MemoryUsage", "RequestCpus"),
)


@NO_DEADLINE
@example([{}], float("-inf"))
@example([{"RequestCpus": float("inf")}], 1.0)
@given(st.lists(st.dictionaries(st.sampled_from(ATTRIBUTES), scalar), max_size=3), st.floats())
def test_no_ad_of_htcondor_hides_the_others(ads: list[dict[str, Any]], most: float) -> None:
    pytest.importorskip("htcondor2", reason="the htcondor package is not installed")
    good = {"OutlastToken": "good", "ClusterId": 3, "ProcId": 0, "JobStatus": 2, "NumShadowStarts": 1}
    good["JobCurrentStartExecutingDate"] = 5
    complete = [{**good, "JobStatus": 1, "OutlastToken": "bad", **ad} for ad in ads]
    reply = {"queue": [*complete, good, *ads], "history": ads, "offer": [{"TotalSlotCpus": most}]}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            adapter, "run_command", lambda *arguments, **more: CommandOutput(0, json.dumps(reply), "")
        )
        views = adapter.HTCondorScheduler("g", Profile()).poll([JobRef("bad", "3.0", 0.0)])
    assert views["good"].phase is JobPhase.RUNNING


# Reports.


def test_a_truncated_line_of_squeue_is_not_taken_for_an_unknown_job() -> None:
    """A truncated name would be an unknown token, and jobs with unknown tokens are cancelled."""
    reported: list[str] = []
    assert parse_squeue("7|3|RUNNING|0|0|n1|100|200|0:02|None|train.g.b", "g", reported.append) == []
    assert len(reported) == 1


@pytest.mark.parametrize("line", ["", "Welcome to the cluster!", "x|y|z", GOOD.replace(".g.", ".other.")])
def test_lines_about_other_jobs_are_not_reported(line: str) -> None:
    reported: list[str] = []
    parse_squeue(line, "g", reported.append)
    parse_sacct(line, "g", reported.append)
    assert reported == []


def test_a_record_that_cannot_be_read_hides_the_other_records_of_its_task() -> None:
    """The start before it was rescheduled; taking that for the end would be a guess."""
    rescheduled = record(failed="25  : rescheduling")
    assert listing.parse_qacct(rescheduled + record(exit_status="?")) == []


def _slurm(monkeypatch: pytest.MonkeyPatch) -> SlurmScheduler:
    outputs = {"squeue": GOOD.replace("7|3", "7|?") + "\n" + GOOD, "sacct": GOOD_SACCT.replace("7_3", "x_4")}
    monkeypatch.setattr(
        command_runner,
        "run_command",
        lambda command, *rest, **more: CommandOutput(0, outputs[command[0]], ""),
    )
    return SlurmScheduler("g", Profile())


def _sge(monkeypatch: pytest.MonkeyPatch) -> SgeScheduler:
    listed = listing_xml(job_xml(7, "qw", "x"), job_xml(5, "r", "3", queue="main.q@n1"))
    outputs = {"qstat": listed, "qacct": record(taskid="4", exit_status="?")}
    monkeypatch.setattr(
        command_runner,
        "run_command",
        lambda command, *rest, **more: CommandOutput(0, outputs[command[0]], ""),
    )
    return SgeScheduler("group", Profile())


@pytest.mark.parametrize(
    ("make", "batch", "programs"),
    [(_slurm, "b7", ("squeue", "sacct")), (_sge, BATCH, ("qstat", "qacct"))],
    ids=("slurm", "sge"),
)
def test_unreadable_lines_are_skipped_by_a_poll_and_reported_once(
    monkeypatch: pytest.MonkeyPatch,
    make: Callable[[pytest.MonkeyPatch], SlurmScheduler | SgeScheduler],
    batch: str,
    programs: tuple[str, str],
) -> None:
    scheduler = make(monkeypatch)
    expected = [JobRef("%s-%d" % (batch, index), "", 0.0) for index in (3, 4)]
    notes = []
    for _ in range(3):
        assert list(scheduler.poll(expected)) == ["%s-3" % batch]
        notes += scheduler.pop_notes()
    assert [note.partition(" ")[0] for note in notes] == list(programs)


def test_a_note_is_one_line_of_limited_length() -> None:
    unreadable = UnreadableOutput()
    unreadable.reporter("squeue")("one\ntwo" + "x" * 10_000)
    (note,) = unreadable.pop_notes()
    assert "one two" in note and "\n" not in note and len(note) < 300
