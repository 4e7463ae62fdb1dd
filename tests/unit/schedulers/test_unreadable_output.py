"""Whatever squeue, sacct, sinfo, qstat and qacct print: no reader raises, and what can be read is read."""

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
from outlast.schedulers.base import JobPhase, Sought
from outlast.schedulers.command_runner import CommandOutput
from outlast.schedulers.htcondor import adapter
from outlast.schedulers.profile import Profile
from outlast.schedulers.sge import listing
from outlast.schedulers.sge.adapter import SgeScheduler
from outlast.schedulers.slurm.adapter import SlurmScheduler
from outlast.schedulers.slurm.listing import read_sacct, read_squeue, usable_nodes
from outlast.schedulers.slurm.views import give_number, views_of
from outlast.schedulers.unreadable_output import UnreadableOutput
from support.sge_output import BATCH, NAME, job_xml, listing_xml, record

GOOD = "7|3|RUNNING|0|0|n1|100|200|0:02|None|train.g.b7|"
GOOD_PAST = "7_3|COMPLETED|0:0|n1|100|102|2||train.g.b7"

#: A busy machine is no failure.
UNHURRIED = settings(deadline=None)
#: Looks like a number, or nearly; and is none.
NEARLY = (
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
rubbish = st.one_of(st.sampled_from(NEARLY), st.text(max_size=12), st.integers(0, 10**20).map(str))


@st.composite
def spoilt(draw: st.DrawFn, line: str, last: str) -> str:
    """The line with some of its fields replaced; `last`, the name, stays ours more often than not."""
    fields = line.split("|")
    for at in draw(st.sets(st.integers(0, len(fields) - 1), max_size=4)):
        fields[at] = draw(rubbish)
    if draw(st.booleans()):
        fields[-2 if line.endswith("|") else -1] = last
    return "|".join(fields)[: draw(st.sampled_from((None, 10, -3)))]


@UNHURRIED
@given(st.lists(st.one_of(st.text(), spoilt(GOOD, "train.g.b9")), max_size=4))
def test_no_line_of_squeue_hides_the_others(lines: list[str]) -> None:
    rows = read_squeue("\n".join([*lines, GOOD, *lines]), "g")
    assert [row for row in rows if (row.token, row.phase) == ("b7-3", JobPhase.RUNNING)]
    views_of(give_number(rows, [Sought("b9-1", "7_1", 0.0)]), [])


@UNHURRIED
@given(st.lists(st.one_of(st.text(), spoilt(GOOD_PAST, "train.g.b9")), max_size=4))
def test_no_line_of_sacct_hides_the_others(lines: list[str]) -> None:
    rows = read_sacct("\n".join([*lines, GOOD_PAST, *lines]), "g")
    assert [row for row in rows if (row.token, row.job, row.ended) == ("b7-3", "7_3", 102.0)]
    views_of([], give_number(rows, [Sought("b9-1", "7_1", 0.0)]))


@UNHURRIED
@given(st.lists(st.text(), max_size=4))
def test_no_line_of_sinfo_hides_the_others(lines: list[str]) -> None:
    assert "n1" in usable_nodes("\n".join([*lines, "n1|main*|idle"]), any_partition=False)


@UNHURRIED
@given(st.text(), rubbish, rubbish, rubbish, rubbish)
def test_no_job_of_qstat_hides_the_others(name: str, number: str, tasks: str, at: str, state: str) -> None:
    allowed = [
        escape("".join(sign for sign in text if sign.isprintable()))
        for text in (name, number, tasks, at, state)
    ]
    odd = job_xml(8, "STATE", "TASKS", name="NAME", at="AT").replace(">8<", ">NUMBER<")
    for word, text in zip(("NAME", "NUMBER", "TASKS", "AT", "STATE"), allowed, strict=True):
        odd = odd.replace(">%s<" % word, ">%s<" % text)
    listed = listing.listing(listing_xml(odd, job_xml(5, "qw", "2")))
    assert [task.job for task in listed if task.name == NAME] == ["5.2"]
    assert all(task.phase for task in listed)


@UNHURRIED
@given(st.text(), rubbish, rubbish, rubbish, rubbish, rubbish)
def test_no_record_of_qacct_hides_the_others(
    text: str, task: str, failed: str, status: str, memory: str, category: str
) -> None:
    odd = record(
        jobname="other.group.x",
        taskid=task,
        failed=failed,
        exit_status=status,
        maxvmem=memory,
        category="h_rt=%s,h_vmem=%s" % (category, memory),
    )
    told = listing.accounting(odd + record() + text + record(taskid="2") + odd)
    # What stands between two records may spoil the one before it.
    assert {one.job for one in told if one.name == NAME} >= {"6.2"}


@UNHURRIED
@given(st.text())
def test_nothing_else_that_grid_engine_prints_is_stumbled_over(text: str) -> None:
    listing.details("job_number: %s\nerror reason %s: x\n%s" % (text, text, text))
    listing.deleted("root has deleted job %s\n%s" % ("9" * 5000, text))
    for read in (listing.listing, listing.hosts):
        with suppress(listing.Unreadable):  # no XML at all is no answer
            read(text)


scalar = st.one_of(
    st.integers(-5, 10), st.integers(), st.floats(), st.booleans(), st.text(max_size=8), rubbish
)


#: What the adapter reads of an ad.
ATTRIBUTES = (
    *("OutlastToken", "ClusterId", "ProcId", "JobStatus", "UserLog", "NumShadowStarts", "ExitBySignal"),
    *("JobCurrentStartExecutingDate", "EnteredCurrentStatus", "CompletionDate", "RemoteWallClockTime"),
    *("ExitCode", "ExitSignal", "HoldReason", "HoldReasonCode", "HoldReasonSubCode", "RemoveReason"),
    *("LastRejMatchReason", "RemoteHost", "MachineAttrMachine0", "MemoryUsage", "RequestCpus"),
)


@UNHURRIED
@example([{}], float("-inf"))
@example([{"RequestCpus": float("inf")}], 1.0)
@given(st.lists(st.dictionaries(st.sampled_from(ATTRIBUTES), scalar), max_size=3), st.floats())
def test_no_ad_of_htcondor_hides_the_others(ads: list[dict[str, Any]], most: float) -> None:
    pytest.importorskip("htcondor2", reason="the htcondor package is not installed")
    good = {"OutlastToken": "good", "ClusterId": 3, "ProcId": 0, "JobStatus": 2, "NumShadowStarts": 1}
    good["JobCurrentStartExecutingDate"] = 5
    whole = [{**good, "JobStatus": 1, "OutlastToken": "bad", **ad} for ad in ads]
    reply = {"queue": [*whole, good, *ads], "history": ads, "offer": [{"TotalSlotCpus": most}]}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(adapter, "call", lambda *asked, **more: CommandOutput(0, json.dumps(reply), ""))
        views = adapter.HTCondorScheduler("g", Profile()).poll([Sought("bad", "3.0", 0.0)])
    assert views["good"].phase is JobPhase.RUNNING


# Said, and once.


def test_half_a_line_of_squeue_is_no_job_that_nobody_knows() -> None:
    """A name cut short would be a stranger's token, and strangers are cancelled."""
    said: list[str] = []
    assert read_squeue("7|3|RUNNING|0|0|n1|100|200|0:02|None|train.g.b", "g", said.append) == []
    assert len(said) == 1


@pytest.mark.parametrize("line", ["", "Welcome to the cluster!", "x|y|z", GOOD.replace(".g.", ".other.")])
def test_what_is_not_about_this_experiment_is_nothing_odd(line: str) -> None:
    said: list[str] = []
    read_squeue(line, "g", said.append)
    read_sacct(line, "g", said.append)
    assert said == []


def test_a_record_that_cannot_be_read_hides_what_it_would_have_ended() -> None:
    """The start before it was rescheduled; to take that for the end would be a guess."""
    rescheduled = record(failed="25  : rescheduling")
    assert listing.accounting(rescheduled + record(exit_status="?")) == []


def _slurm(monkeypatch: pytest.MonkeyPatch) -> SlurmScheduler:
    answers = {"squeue": GOOD.replace("7|3", "7|?") + "\n" + GOOD, "sacct": GOOD_PAST.replace("7_3", "x_4")}
    monkeypatch.setattr(
        command_runner, "call", lambda words, *rest, **more: CommandOutput(0, answers[words[0]], "")
    )
    return SlurmScheduler("g", Profile())


def _sge(monkeypatch: pytest.MonkeyPatch) -> SgeScheduler:
    listing = listing_xml(job_xml(7, "qw", "x"), job_xml(5, "r", "3", queue="main.q@n1"))
    answers = {"qstat": listing, "qacct": record(taskid="4", exit_status="?")}
    monkeypatch.setattr(
        command_runner, "call", lambda words, *rest, **more: CommandOutput(0, answers[words[0]], "")
    )
    return SgeScheduler("group", Profile())


@pytest.mark.parametrize(
    ("make", "batch", "words"),
    [(_slurm, "b7", ("squeue", "sacct")), (_sge, BATCH, ("qstat", "qacct"))],
    ids=("slurm", "sge"),
)
def test_odd_lines_are_passed_over_by_a_poll_and_said_once(
    monkeypatch: pytest.MonkeyPatch,
    make: Callable[[pytest.MonkeyPatch], SlurmScheduler | SgeScheduler],
    batch: str,
    words: tuple[str, str],
) -> None:
    scheduler = make(monkeypatch)
    sought = [Sought("%s-%d" % (batch, index), "", 0.0) for index in (3, 4)]
    said = []
    for _ in range(3):
        assert list(scheduler.poll(sought)) == ["%s-3" % batch]
        said += scheduler.remarks()
    assert [text.partition(" ")[0] for text in said] == list(words)


def test_an_oddity_is_said_on_one_line_of_bearable_length() -> None:
    oddities = UnreadableOutput()
    oddities.of("squeue")("one\ntwo" + "x" * 10_000)
    (said,) = oddities.take()
    assert "one two" in said and "\n" not in said and len(said) < 300
