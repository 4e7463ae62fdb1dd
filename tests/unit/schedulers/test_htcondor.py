"""HTCondor's adapter without a pool: what is sent, and what is made of events, holds and ads."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("htcondor2", reason="the htcondor package is not installed")

from outlast.domain.model import Outcome
from outlast.node.staging.condor_plugin_codes import exit_code_of
from outlast.node.staging.errors import ErrorKind
from outlast.schedulers.base import JobPhase, JobRequest, SchedulerUnavailable, Sought, SubmitAnswer
from outlast.schedulers.command_runner import CommandOutput, CommandTimeout
from outlast.schedulers.htcondor import adapter
from outlast.schedulers.htcondor.adapter import HTCondorScheduler
from outlast.schedulers.htcondor.holds import explain
from outlast.schedulers.htcondor.job_history import Event, JobHistory, begin, follow
from outlast.schedulers.htcondor.listing import story_of, why_idle
from outlast.schedulers.htcondor.submit import UnfitRequest, clusters
from outlast.schedulers.profile import Profile

SITE = {"GLIDEIN_ResourceName": "alpha", "SlotName": "slot1_1@alpha@node"}
EVICTED = {"Reason": "Job vacated by schedd"}


def told(*events: tuple[int, float, dict[str, Any]]) -> JobHistory:
    story = begin(Event(0, 0.0, {"LogNotes": "b-1"}), "7.0")
    assert story is not None
    for event in events:
        story = follow(story, Event(*event))
    return story


def request(place: Path, token: str = "b-1", **changes: Any) -> JobRequest:
    own = place / token
    plain: dict[str, Any] = {
        "token": token,
        "name": "run-001",
        "order": str(own / "order.json"),
        "zipapp": str(place / "outlast-1.pyz"),
        "log": str(own / "job.log"),
        "cpus": 2,
        "gpus": 0,
        "memory": 4 * 10**9,
        "disk": 10**9,
        "time": 3600.0,
        "grace": 60.0,
        "directory": str(own),
        "inputs": (str(own / "committed"), str(place / "code-1.tar")),
    }
    return JobRequest(**{**plain, **changes})


def described(profile: Profile, *requests: JobRequest) -> dict[str, str]:
    (one,) = clusters(requests, "group", profile)
    return dict(line.split(" = ", 1) for line in one.description.splitlines())


# --- the event log


def test_a_job_that_is_evicted_waits_again_and_its_slot_time_is_that_of_all_its_starts() -> None:
    first = [(1, 10.0, SITE), (4, 30.0, EVICTED)]
    waits = told(*first).view()
    assert (waits.phase, waits.restarts, waits.elapsed) == (JobPhase.QUEUED, 0, 20.0)
    assert "evicted from alpha" in waits.reason
    end = told(
        *first, (1, 50.0, {"Machine": "far"}), (5, 55.0, {"TerminatedNormally": True, "ReturnValue": 3})
    )
    view = end.view()
    assert (view.phase, view.restarts, view.elapsed) == (JobPhase.ENDED, 1, 25.0)
    assert (view.host, view.started, view.ended, view.exit_code) == ("far", 50.0, 55.0, 3)


def test_a_job_killed_by_a_signal_has_no_exit_code() -> None:
    view = told((1, 1.0, SITE), (5, 2.0, {"TerminatedNormally": False, "TerminatedBySignal": 9})).view()
    assert (view.exit_code, view.signal, view.outcome) == (None, 9, None)


@pytest.mark.parametrize("before_the_hold", [[], [(21, 8.0, {}), (4, 8.0, EVICTED)]])
def test_a_hold_ends_the_time_in_the_slot_whether_or_not_an_eviction_was_told(
    before_the_hold: list[tuple[int, float, dict[str, Any]]],
) -> None:
    held = {"HoldReasonCode": 47, "HoldReasonSubCode": 0, "HoldReason": "The job exceeded its duration"}
    view = told((1, 1.0, SITE), *before_the_hold, (12, 8.0, held)).view()
    assert (view.phase, view.outcome, view.releasable) == (JobPhase.HELD, Outcome.OVER_TIME, True)
    assert view.elapsed == 7.0
    assert "wall-time limit" in view.reason and "hold 47" in view.reason


STARTS_BRINGING = (40, 2.0, {"Type": 2})


def test_the_transfer_of_input_holds_a_slot_and_is_told_apart() -> None:
    brings = told(STARTS_BRINGING).view()
    assert (brings.phase, brings.elapsed, brings.bringing) == (JobPhase.QUEUED, None, 0.0)
    ended = (5, 50.0, {"TerminatedNormally": True, "ReturnValue": 0})
    view = told(STARTS_BRINGING, (40, 40.0, {"Type": 3}), (1, 42.0, SITE), ended).view()
    assert (view.elapsed, view.bringing, view.brought_in_vain) == (48.0, 40.0, 0.0)


def test_a_transfer_that_came_to_nothing_was_in_vain() -> None:
    held = {"HoldReasonCode": 13, "HoldReasonSubCode": 256, "HoldReason": "no"}
    first = (STARTS_BRINGING, (12, 12.0, held))
    assert (told(*first).view().elapsed, told(*first).view().brought_in_vain) == (10.0, 10.0)
    view = told(*first, (13, 20.0, {}), (40, 30.0, {"Type": 1}), (40, 31.0, {"Type": 2}), (1, 35.0, SITE),
                (12, 36.0, held)).view()  # fmt: skip
    assert (view.elapsed, view.bringing, view.brought_in_vain) == (16.0, 5.0, 10.0)


NO_CONTAINER = {
    "ReasonCode": 45,
    "ReasonSubCode": -1000,
    "Reason": "Singularity test failed:FATAL: no name space",
}


def test_a_job_whose_container_never_started_is_taken_as_held_for_htcondor_would_try_for_ever() -> None:
    view = told((1, 1.0, SITE), (4, 11.0, NO_CONTAINER)).view()
    assert (view.phase, view.outcome, view.releasable) == (JobPhase.HELD, Outcome.NODE_TROUBLE, False)
    assert "the site could not start a container" in view.reason and "no name space" in view.reason


def test_a_job_that_has_computed_may_fail_to_start_twice_in_a_row() -> None:
    begun = [(1, 1.0, SITE), (4, 9.0, EVICTED)]
    failed = [(1, 10.0, SITE), (4, 20.0, NO_CONTAINER)]
    phases = [told(*begun, *(failed * times)).view().phase for times in (1, 2, 3)]
    assert phases == [JobPhase.QUEUED, JobPhase.QUEUED, JobPhase.HELD]
    assert told(*begun, *failed, *failed, *begun, *failed).view().phase is JobPhase.QUEUED


def test_a_released_job_waits_and_carries_nothing_of_its_hold() -> None:
    held = {"HoldReasonCode": 12, "HoldReason": "x"}
    view = told((1, 1.0, SITE), (12, 2.0, held), (13, 3.0, {})).view()
    assert (view.phase, view.outcome, view.releasable) == (JobPhase.QUEUED, None, False)


def test_a_job_out_of_contact_still_runs_and_one_lost_for_good_waits_again() -> None:
    lost = told((1, 1.0, SITE), (22, 5.0, {}))
    assert lost.view().phase is JobPhase.RUNNING
    assert "lost contact with alpha" in lost.view().reason
    assert follow(lost, Event(23, 6.0, {})).view().reason == ""
    gone = follow(lost, Event(24, 41.0, {})).view()
    assert (gone.phase, gone.elapsed) == (JobPhase.QUEUED, 40.0)


def test_input_that_is_said_to_have_arrived_is_no_start() -> None:
    view = told((40, 1.0, {"Type": 2}), (40, 2.0, {"Type": 3})).view()
    assert (view.phase, view.started) == (JobPhase.QUEUED, None)
    assert "input files" in view.reason


def test_a_removed_job_has_ended_as_cancelled_and_one_removed_by_a_rule_was_evicted() -> None:
    by_hand = told((9, 2.0, {"Reason": "via condor_rm (by user me)"})).view()
    assert (by_hand.phase, by_hand.outcome) == (JobPhase.ENDED, Outcome.CANCELLED)
    assert by_hand.elapsed is None
    by_rule = told(
        (9, 2.0, {"Reason": "The job attribute PeriodicRemove expression evaluated to TRUE"})
    ).view()
    assert by_rule.outcome is Outcome.EVICTED


def test_nothing_follows_the_end() -> None:
    end = told((1, 1.0, SITE), (5, 2.0, {"TerminatedNormally": True, "ReturnValue": 0}))
    assert follow(end, Event(1, 3.0, SITE)) == end


def test_a_job_that_somebody_put_on_hold_or_that_is_being_spooled_waits() -> None:
    for code in (1, 15, 16):
        view = told((12, 1.0, {"HoldReasonCode": code, "HoldReason": "via condor_hold (by user me)"})).view()
        assert (view.phase, view.outcome) == (JobPhase.QUEUED, None)
        assert ("`condor_release %s` lets it go on" % view.job in view.reason) is (code == 1)


# --- holds


@pytest.mark.parametrize(
    ("code", "subcode", "said", "outcome", "releasable"),
    [
        (12, 2, "reading from file /x/travel: (errno 2) No such file", Outcome.NODE_TROUBLE, True),
        (12, 28, "writing to file /x: (errno 28) No space left on device", Outcome.OUT_OF_DISK, False),
        (12, 0, "Failed to send files", Outcome.NETWORK, True),
        (13, 2, "reading from file /x/order.json: (errno 2) No such file", Outcome.NOT_FOUND, False),
        (13, 256, "URL http://a/b: 404 Not Found", Outcome.NOT_FOUND, False),
        (13, 256, "URL http://a/b: 503 Service Unavailable", Outcome.NETWORK, True),
        (32, 0, "job's input is 9000 MB", Outcome.REJECTED, False),
        (33, 0, "", Outcome.REJECTED, False),
        (34, 102, "memory usage exceeded request_memory", Outcome.OUT_OF_MEMORY, False),
        (26, 0, "Your job used more memory than it requested", Outcome.OUT_OF_MEMORY, False),
        (26, 0, "too many restarts", Outcome.REJECTED, False),
        (45, -1000, "FATAL: could not open image /cvmfs/x: lstat", Outcome.NOT_FOUND, False),
        (47, 0, "", Outcome.OVER_TIME, True),
        (6, 2, "Failed to execute", Outcome.NODE_TROUBLE, True),
        (999, 0, "something new", Outcome.NODE_TROUBLE, False),
    ],
)
def test_a_hold_is_told_in_plain_words_with_what_follows(
    code: int, subcode: int, said: str, outcome: Outcome, releasable: bool
) -> None:
    hold = explain(code, subcode, said)
    assert (hold.outcome, hold.releasable) == (outcome, releasable)
    assert "hold %d" % code in hold.words and said.rstrip(".") in hold.words


def test_trouble_of_our_plugin_is_known_by_its_exit_code_and_told_in_its_own_words() -> None:
    words = "a.bin did not arrive: http://h/a.bin: h responds with 404 Not Found (missing 1×)"
    said = "Transfer input files failure at s@h using protocol http. Details: %s ( URL file = u )|"
    gone, out = (
        explain(13, exit_code_of(kind) << 8, said % words)
        for kind in (ErrorKind.MISSING, ErrorKind.MISSING_FOR_NOW)
    )
    assert gone.words == out.words == words and gone.outcome is out.outcome is Outcome.NOT_FOUND
    assert (gone.releasable, gone.lasting) == (False, "data a.bin missing")
    assert (out.releasable, out.lasting) == (True, "")
    full = explain(13, exit_code_of(ErrorKind.DISK_FULL) << 8, said % "a.bin did not arrive: no room")
    assert (full.outcome, full.releasable) == (Outcome.OUT_OF_DISK, True)


# --- what is sent


def test_everything_travels_and_one_directory_comes_back(tmp_path: Path) -> None:
    (one,) = clusters([request(tmp_path)], "group", Profile())
    assert one.items[0]["the_inputs"] == "order.json,../outlast-1.pyz,committed,../code-1.tar"
    settings = described(Profile(), request(tmp_path))
    assert settings["transfer_output_files"] == settings["transfer_checkpoint_files"] == "travel"
    assert settings["when_to_transfer_output"] == "ON_EXIT_OR_EVICT"
    assert "mkdir -p travel" in one.script


def test_what_a_job_asks_for_is_in_htcondors_units(tmp_path: Path) -> None:
    settings = described(Profile(gpus="Capability >= 8"), request(tmp_path, gpus=1, time=90.5))
    assert (settings["request_memory"], settings["request_disk"]) == ("3815", "976563")
    assert (settings["request_gpus"], settings["require_gpus"]) == ("1", "Capability >= 8")
    assert settings["allowed_execute_duration"] == "91"
    assert int(settings["job_max_vacate_time"]) > 60
    assert "require_gpus" not in described(Profile(gpus="Capability >= 8"), request(tmp_path))


def test_jobs_that_ask_for_the_same_are_one_cluster_of_jobs(tmp_path: Path) -> None:
    same = [request(tmp_path, "b-%d" % number) for number in range(1, 21)]
    other = request(tmp_path, "b-21", avoid=("alpha",))
    assert [len(one.items) for one in clusters([*same, other], "group", Profile())] == [20, 1]


def test_sites_to_avoid_and_the_profiles_own_requirements_both_hold(tmp_path: Path) -> None:
    profile = Profile(directives=('Requirements = OSGVO_OS_STRING == "RHEL 9"', "+Wish = true"))
    (one,) = clusters([request(tmp_path, avoid=("alpha", "beta"))], "group", profile)
    (line,) = [line for line in one.description.splitlines() if line.lower().startswith("requirements")]
    assert '(OSGVO_OS_STRING == "RHEL 9") && (member(' in line and '{"alpha", "beta"}' in line
    assert "+Wish = true" in one.description


@pytest.mark.parametrize(
    ("image", "line"),
    [
        ("osdf:///ospool/me/torch.sif", "container_image = osdf:///ospool/me/torch.sif"),
        ("/cvmfs/singularity.opensciencegrid.org/x", 'My.SingularityImage = "/cvmfs/singularity'),
    ],
)
def test_an_image_that_all_sites_have_is_named_and_another_is_brought(
    image: str, line: str, tmp_path: Path
) -> None:
    (one,) = clusters([request(tmp_path)], "group", Profile(container=image))
    assert line in one.description


def test_an_image_that_is_a_file_is_brought_and_a_directory_is_used_where_it_is(tmp_path: Path) -> None:
    image, folder = tmp_path / "image.sif", tmp_path / "image"
    image.touch()
    folder.mkdir()
    assert "transfer_container" not in described(Profile(container=str(image)), request(tmp_path))
    there = described(Profile(container=str(folder)), request(tmp_path))
    assert (there["container_image"], there["transfer_container"]) == (str(folder), "false")


def test_an_image_that_is_not_there_is_not_sent(tmp_path: Path) -> None:
    profile = Profile(container=str(tmp_path / "none.sif"))
    sent = HTCondorScheduler("group", profile).submit([request(tmp_path)])["b-1"]
    assert (sent.answer, sent.transient) == (SubmitAnswer.REJECTED, False)
    assert "none.sif is not there" in sent.reason


def test_a_directory_with_a_blank_in_its_name_is_no_trouble_and_a_file_is(tmp_path: Path) -> None:
    place = tmp_path / "my experiment, final"
    (one,) = clusters([request(place)], "group", Profile())
    assert " " not in one.items[0]["the_inputs"]
    with pytest.raises(UnfitRequest, match="blank"):
        clusters([request(tmp_path, inputs=(str(tmp_path / "my data.tar"),))], "group", Profile())
    with pytest.raises(UnfitRequest):
        clusters([request(tmp_path, directory=str(tmp_path / "$(HOME)"))], "group", Profile())


# --- ads


def test_why_a_job_waits_names_what_no_slot_has() -> None:
    offer = [{"TotalSlotCpus": 4, "TotalSlotMemory": 4096}, {"TotalSlotCpus": 8, "TotalSlotMemory": 2048}]
    assert "64 cpus" in why_idle({"RequestCpus": 64}, offer) and "is 8" in why_idle(
        {"RequestCpus": 64}, offer
    )
    assert "1 GPUs" in why_idle({"RequestCpus": 1, "RequestGPUs": 1}, offer)
    assert why_idle({"RequestCpus": 64}, []) == "waits for its turn"
    rejected = {"RequestCpus": 1, "LastRejMatchTime": 1, "LastRejMatchReason": "no match found"}
    assert "no match found" in why_idle(rejected, offer)


def test_an_ad_tells_how_a_job_ended_where_the_log_does_not() -> None:
    ad = {
        "OutlastToken": "b-1",
        "ClusterId": 3,
        "ProcId": 1,
        "JobStatus": 4,
        "ExitCode": 5,
        "CompletionDate": 9,
    }
    view = story_of({**ad, "NumShadowStarts": 2, "MachineAttrGLIDEIN_ResourceName0": "beta"}).view()
    assert (view.phase, view.job, view.exit_code, view.ended) == (JobPhase.ENDED, "3.1", 5, 9)
    assert (view.host, view.restarts) == ("beta", 1)


# --- the adapter, with what the daemons answer made up


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], list[Mapping[str, Any]]]:
    """From now on the daemons answer this; the list is what they are asked."""

    def install(answer: Any) -> list[Mapping[str, Any]]:
        asked: list[Mapping[str, Any]] = []

        def call(arguments: Any, timeout: float, given: str = "", environment: Any = None) -> CommandOutput:
            asked.append(json.loads(given))
            if isinstance(answer, Exception):
                raise answer
            return CommandOutput(0, json.dumps(answer), "")

        monkeypatch.setattr(adapter, "call", call)
        return asked

    return install


def test_no_answer_to_a_submission_leaves_it_unknown(tmp_path: Path, answering: Any) -> None:
    answering(CommandTimeout("too long"))
    assert HTCondorScheduler("g", Profile()).submit([request(tmp_path)])["b-1"].answer is SubmitAnswer.UNKNOWN


def test_a_schedd_that_was_not_reached_has_nothing_and_may_be_asked_again(
    tmp_path: Path, answering: Any
) -> None:
    answering({"trouble": "Unable to locate local daemon"})
    answer = HTCondorScheduler("g", Profile()).submit([request(tmp_path)])["b-1"]
    assert (answer.answer, answer.transient) == (SubmitAnswer.REJECTED, True)
    with pytest.raises(SchedulerUnavailable, match="locate"):
        HTCondorScheduler("g", Profile()).poll()


def test_a_refused_submission_is_refused_for_good_with_its_reason(tmp_path: Path, answering: Any) -> None:
    answering({"jobs": {}, "refused": {"b-1": "Parse error"}, "unsure": {}})
    answer = HTCondorScheduler("g", Profile()).submit([request(tmp_path)])["b-1"]
    assert (answer.answer, answer.transient, answer.reason) == (SubmitAnswer.REJECTED, False, "Parse error")


def test_a_submission_that_broke_off_is_unknown_though_it_is_not_in_the_queue(
    tmp_path: Path, answering: Any
) -> None:
    answering({"jobs": {}, "refused": {}, "unsure": {"b-1": "Failed to commit"}})
    answer = HTCondorScheduler("g", Profile()).submit([request(tmp_path)])["b-1"]
    assert (answer.answer, answer.reason) == (SubmitAnswer.UNKNOWN, "Failed to commit")


def test_a_job_that_left_the_queue_without_a_word_is_not_told_of(answering: Any) -> None:
    asked = answering({"queue": [], "history": [], "offer": []})
    assert HTCondorScheduler("g", Profile()).poll([Sought("b-1", "3.0", 1000.0)]) == {}
    assert asked[0]["tokens"] == ["b-1"] and asked[0]["since"] < 1000


def test_without_an_event_log_queue_and_history_tell(tmp_path: Path, answering: Any) -> None:
    ad = {"ClusterId": 3, "UserLog": str(tmp_path / "no-such.log")}
    running = {**ad, "OutlastToken": "b-1", "ProcId": 0, "JobStatus": 2, "JobCurrentStartExecutingDate": 5}
    ended = {**ad, "OutlastToken": "b-2", "ProcId": 1, "JobStatus": 4, "ExitCode": 0}
    answering({"queue": [running], "history": [ended]})
    views = HTCondorScheduler("g", Profile()).poll([Sought("b-2", "3.1", 0.0)])
    assert [views[token].phase for token in ("b-1", "b-2")] == [JobPhase.RUNNING, JobPhase.ENDED]


LOG = """000 (003.000.000) 2026-11-15 23:49:14 Job submitted from host: <127.0.0.1:9618>
    b-1
...
001 (003.000.000) 2026-11-15 23:49:15 Job executing on host: <127.0.0.1:9618>
\tSlotName: slot1_1@alpha@node
\tGLIDEIN_ResourceName = "alpha"
...
"""
END = """005 (003.000.000) 2026-11-15 23:49:25 Job terminated.
\t(1) Normal termination (return value 7)
\t\tUsr 0 00:00:00, Sys 0 00:00:00  -  Run Remote Usage
\t\tUsr 0 00:00:00, Sys 0 00:00:00  -  Run Local Usage
\t\tUsr 0 00:00:00, Sys 0 00:00:00  -  Total Remote Usage
\t\tUsr 0 00:00:00, Sys 0 00:00:00  -  Total Local Usage
\t0  -  Run Bytes Sent By Job
\t833  -  Run Bytes Received By Job
\t0  -  Total Bytes Sent By Job
\t833  -  Total Bytes Received By Job
...
"""


def test_the_event_log_is_believed_before_the_queue_and_read_on_from_where_it_was(
    tmp_path: Path, answering: Any
) -> None:
    log = tmp_path / "htcondor.log"
    log.write_text(LOG)
    ad = {"OutlastToken": "b-1", "ClusterId": 3, "ProcId": 0, "JobStatus": 1, "UserLog": str(log)}
    answering({"queue": [ad], "history": []})
    scheduler = HTCondorScheduler("g", Profile())
    view = scheduler.poll()["b-1"]
    assert (view.phase, view.host) == (JobPhase.RUNNING, "alpha")
    with log.open("a") as file:
        file.write(END)
    view = scheduler.poll()["b-1"]
    assert (view.phase, view.exit_code, view.elapsed) == (JobPhase.ENDED, 7, 10.0)
    scheduler.forget(["b-1"])
    assert scheduler.poll() == {}


def test_a_job_that_the_log_leaves_running_and_the_queue_does_not_list_ends_only_by_the_history(
    tmp_path: Path, answering: Any
) -> None:
    log = tmp_path / "htcondor.log"
    log.write_text(LOG)
    ad = {"OutlastToken": "b-1", "ClusterId": 3, "ProcId": 0, "JobStatus": 2, "UserLog": str(log)}
    scheduler = HTCondorScheduler("g", Profile())
    answering({"queue": [ad], "history": []})
    assert scheduler.poll()["b-1"].phase is JobPhase.RUNNING
    answering({"queue": [], "history": []})
    assert scheduler.poll([Sought("b-1", "3.0", 0.0)]) == {}
    answering({"queue": [], "history": [{**ad, "JobStatus": 4, "ExitCode": 6}]})
    assert scheduler.poll([Sought("b-1", "3.0", 0.0)])["b-1"].exit_code == 6


def test_a_wait_is_over_when_the_event_log_has_grown_and_not_before(tmp_path: Path, answering: Any) -> None:
    log = tmp_path / "htcondor.log"
    log.write_text(LOG)
    ad = {"OutlastToken": "b-1", "ClusterId": 3, "ProcId": 0, "JobStatus": 2, "UserLog": str(log)}
    answering({"queue": [ad], "history": []})
    scheduler = HTCondorScheduler("g", Profile(), interval=0.1)
    scheduler.poll()
    assert not any(one.grown for one in scheduler._logs.values())
    with log.open("a") as file:
        file.write(END)
    began = time.monotonic()
    scheduler.wait(600.0)
    assert time.monotonic() - began < 300.0


def test_a_job_whose_end_is_half_written_has_not_ended(tmp_path: Path, answering: Any) -> None:
    log = tmp_path / "htcondor.log"
    log.write_text(LOG + END[:40])
    ad = {"OutlastToken": "b-1", "ClusterId": 3, "ProcId": 0, "JobStatus": 2, "UserLog": str(log)}
    answering({"queue": [ad], "history": []})
    scheduler = HTCondorScheduler("g", Profile())
    assert scheduler.poll()["b-1"].phase is JobPhase.RUNNING
    log.write_text(LOG + END)
    assert scheduler.poll()["b-1"].phase is JobPhase.ENDED


def test_a_token_that_the_event_log_knows_is_not_sent_again(tmp_path: Path, answering: Any) -> None:
    (tmp_path / "htcondor.log").write_text(LOG + END)
    asked = answering({"jobs": {}, "refused": {}})
    answer = HTCondorScheduler("g", Profile()).submit([request(tmp_path)])["b-1"]
    assert (answer.answer, answer.job, asked) == (SubmitAnswer.ACCEPTED, "3.0", [])
