"""The HTCondor adapter without a pool: submit descriptions, events, holds and ads."""

from __future__ import annotations

import json
import os
import pwd
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("htcondor2", reason="the htcondor package is not installed")

from outlast.domain.model import Outcome
from outlast.node.staging.condor_plugin_codes import exit_code_of
from outlast.node.staging.errors import ErrorKind
from outlast.schedulers.base import JobPhase, JobRef, JobRequest, Removal, SchedulerUnavailable, SubmitStatus
from outlast.schedulers.command_runner import CommandOutput, CommandTimeout
from outlast.schedulers.htcondor import adapter
from outlast.schedulers.htcondor.adapter import HTCondorScheduler
from outlast.schedulers.htcondor.holds import explain_hold
from outlast.schedulers.htcondor.job_history import Event, JobHistory, apply_event, start_history
from outlast.schedulers.htcondor.listing import history_from_ad
from outlast.schedulers.htcondor.states import explain_idle
from outlast.schedulers.htcondor.submit import UnfitRequest, group_into_clusters
from outlast.schedulers.profile import Profile

ME = pwd.getpwuid(os.getuid()).pw_name
SITE = {"GLIDEIN_ResourceName": "alpha", "SlotName": "slot1_1@alpha@node"}
EVICTED = {"Reason": "Job vacated by schedd"}


def history_after(*events: tuple[int, float, dict[str, Any]]) -> JobHistory:
    """Return the history of a submitted job after these events: number, time, attributes."""
    history = start_history(Event(0, 0.0, {"LogNotes": "b-1"}), "7.0")
    assert history is not None
    for event in events:
        history = apply_event(history, Event(*event))
    return history


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


def settings_of(profile: Profile, *requests: JobRequest) -> dict[str, str]:
    (one,) = group_into_clusters(requests, "group", profile)
    return dict(line.split(" = ", 1) for line in one.description.splitlines())


# The event log.


def test_an_evicted_job_is_queued_again_and_its_slot_time_includes_all_starts() -> None:
    first = [(1, 10.0, SITE), (4, 30.0, EVICTED)]
    waits = history_after(*first).view()
    assert (waits.phase, waits.restarts, waits.elapsed) == (JobPhase.QUEUED, 0, 20.0)
    assert "evicted from alpha" in waits.reason
    end = history_after(
        *first, (1, 50.0, {"Machine": "far"}), (5, 55.0, {"TerminatedNormally": True, "ReturnValue": 3})
    )
    view = end.view()
    assert (view.phase, view.restarts, view.elapsed) == (JobPhase.ENDED, 1, 25.0)
    assert (view.host, view.started, view.ended, view.exit_code) == ("far", 50.0, 55.0, 3)


def test_a_job_killed_by_a_signal_has_no_exit_code() -> None:
    view = history_after(
        (1, 1.0, SITE), (5, 2.0, {"TerminatedNormally": False, "TerminatedBySignal": 9})
    ).view()
    assert (view.exit_code, view.signal, view.outcome) == (None, 9, None)


@pytest.mark.parametrize("before_the_hold", [[], [(21, 8.0, {}), (4, 8.0, EVICTED)]])
def test_a_hold_ends_the_time_in_the_slot_with_or_without_an_eviction_event(
    before_the_hold: list[tuple[int, float, dict[str, Any]]],
) -> None:
    held = {"HoldReasonCode": 47, "HoldReasonSubCode": 0, "HoldReason": "The job exceeded its duration"}
    view = history_after((1, 1.0, SITE), *before_the_hold, (12, 8.0, held)).view()
    assert (view.phase, view.outcome, view.releasable) == (JobPhase.HELD, Outcome.OVER_TIME, True)
    assert view.elapsed == 7.0
    assert "wall-time limit" in view.reason and "hold 47" in view.reason


STARTS_TRANSFER = (40, 2.0, {"Type": 2})


def test_the_transfer_of_input_uses_a_slot_and_is_counted_separately() -> None:
    transferring = history_after(STARTS_TRANSFER).view()
    assert (transferring.phase, transferring.elapsed, transferring.bringing) == (JobPhase.QUEUED, None, 0.0)
    ended = (5, 50.0, {"TerminatedNormally": True, "ReturnValue": 0})
    view = history_after(STARTS_TRANSFER, (40, 40.0, {"Type": 3}), (1, 42.0, SITE), ended).view()
    assert (view.elapsed, view.bringing, view.brought_in_vain) == (48.0, 40.0, 0.0)


def test_a_transfer_that_failed_is_counted_as_wasted() -> None:
    held = {"HoldReasonCode": 13, "HoldReasonSubCode": 256, "HoldReason": "no"}
    first = (STARTS_TRANSFER, (12, 12.0, held))
    view = history_after(*first).view()
    assert (view.elapsed, view.brought_in_vain) == (10.0, 10.0)
    retried = [(13, 20.0, {}), (40, 30.0, {"Type": 1}), (40, 31.0, {"Type": 2}), (1, 35.0, SITE)]
    view = history_after(*first, *retried, (12, 36.0, held)).view()
    assert (view.elapsed, view.bringing, view.brought_in_vain) == (16.0, 5.0, 10.0)


NO_CONTAINER = {
    "ReasonCode": 45,
    "ReasonSubCode": -1000,
    "Reason": "Singularity test failed:FATAL: no name space",
}


def test_a_job_whose_container_never_started_counts_as_held_because_htcondor_would_retry_for_ever() -> None:
    view = history_after((1, 1.0, SITE), (4, 11.0, NO_CONTAINER)).view()
    assert (view.phase, view.outcome, view.releasable) == (JobPhase.HELD, Outcome.NODE_TROUBLE, False)
    assert "the site could not start a container" in view.reason and "no name space" in view.reason


def test_a_job_that_has_computed_may_fail_to_start_twice_in_a_row() -> None:
    begun = [(1, 1.0, SITE), (4, 9.0, EVICTED)]
    failed = [(1, 10.0, SITE), (4, 20.0, NO_CONTAINER)]
    phases = [history_after(*begun, *(failed * times)).view().phase for times in (1, 2, 3)]
    assert phases == [JobPhase.QUEUED, JobPhase.QUEUED, JobPhase.HELD]
    assert history_after(*begun, *failed, *failed, *begun, *failed).view().phase is JobPhase.QUEUED


def test_a_released_job_is_queued_without_traces_of_its_hold() -> None:
    held = {"HoldReasonCode": 12, "HoldReason": "x"}
    view = history_after((1, 1.0, SITE), (12, 2.0, held), (13, 3.0, {})).view()
    assert (view.phase, view.outcome, view.releasable) == (JobPhase.QUEUED, None, False)


def test_a_disconnected_job_still_runs_and_one_that_cannot_be_reconnected_is_queued_again() -> None:
    lost = history_after((1, 1.0, SITE), (22, 5.0, {}))
    assert lost.view().phase is JobPhase.RUNNING
    assert "lost contact with alpha" in lost.view().reason
    assert apply_event(lost, Event(23, 6.0, {})).view().reason == ""
    gone = apply_event(lost, Event(24, 41.0, {})).view()
    assert (gone.phase, gone.elapsed) == (JobPhase.QUEUED, 40.0)


def test_the_end_of_the_input_transfer_is_not_a_start() -> None:
    view = history_after((40, 1.0, {"Type": 2}), (40, 2.0, {"Type": 3})).view()
    assert (view.phase, view.started) == (JobPhase.QUEUED, None)
    assert "input files" in view.reason


def test_a_removed_job_has_ended_as_cancelled_and_one_removed_by_a_rule_was_evicted() -> None:
    by_hand = history_after((9, 2.0, {"Reason": "via condor_rm (by user %s)" % ME})).view()
    assert (by_hand.phase, by_hand.outcome) == (JobPhase.ENDED, Outcome.CANCELLED)
    assert by_hand.removed is Removal.YES
    assert by_hand.elapsed is None
    by_rule = history_after(
        (9, 2.0, {"Reason": "The job attribute PeriodicRemove expression evaluated to TRUE"})
    ).view()
    assert (by_rule.outcome, by_rule.removed) == (Outcome.EVICTED, Removal.NO)


@pytest.mark.parametrize(
    ("reason", "outcome", "removed"),
    [
        ("via condor_rm (by user %s)" % ME, Outcome.CANCELLED, Removal.YES),
        (
            "via condor_rm (by user nobody)",
            Outcome.CANCELLED,
            Removal.YES if ME in ("root", "nobody") else Removal.OTHER,
        ),
        ("via condor_rm (by user somebody-else)", Outcome.CANCELLED, Removal.OTHER),
        ("via condor_rm (by user administrator@example.org)", Outcome.CANCELLED, Removal.OTHER),
        ("via condor_rm (by user %s@example.org)" % ME, Outcome.CANCELLED, Removal.YES),
        ("via condor_rm (by user condor)", Outcome.CANCELLED, Removal.YES),
        ("", Outcome.CANCELLED, Removal.YES),
        ("The system macro SYSTEM_PERIODIC_REMOVE expression 'x' is TRUE", Outcome.EVICTED, Removal.NO),
        ("The job attribute PeriodicRemove expression evaluated to TRUE", Outcome.EVICTED, Removal.NO),
    ],
)
def test_the_ad_of_a_removed_job_shows_whether_somebody_removed_it(
    reason: str, outcome: Outcome, removed: Removal
) -> None:
    ad = {"OutlastToken": "b-1", "ClusterId": 3, "ProcId": 1, "JobStatus": 3, "RemoveReason": reason}
    view = history_from_ad(ad).view()
    assert (view.phase, view.outcome, view.removed) == (JobPhase.ENDED, outcome, removed)


def test_a_job_that_ended_by_itself_was_not_removed() -> None:
    view = history_after(
        (1, 1.0, SITE), (5, 2.0, {"TerminatedNormally": False, "TerminatedBySignal": 9})
    ).view()
    assert view.removed is Removal.NO


def test_events_after_the_end_are_ignored() -> None:
    end = history_after((1, 1.0, SITE), (5, 2.0, {"TerminatedNormally": True, "ReturnValue": 0}))
    assert apply_event(end, Event(1, 3.0, SITE)) == end


def test_a_job_that_somebody_holds_or_that_is_being_spooled_is_queued() -> None:
    for code in (1, 15, 16):
        view = history_after(
            (12, 1.0, {"HoldReasonCode": code, "HoldReason": "via condor_hold (by user me)"})
        ).view()
        assert (view.phase, view.outcome) == (JobPhase.QUEUED, None)
        assert ("`condor_release %s` releases it" % view.job in view.reason) is (code == 1)


# Holds.


@pytest.mark.parametrize(
    ("code", "subcode", "reason", "outcome", "releasable"),
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
def test_a_hold_is_explained_with_its_outcome_and_whether_a_release_may_help(
    code: int, subcode: int, reason: str, outcome: Outcome, releasable: bool
) -> None:
    hold = explain_hold(code, subcode, reason)
    assert (hold.outcome, hold.releasable) == (outcome, releasable)
    assert "hold %d" % code in hold.sentence and reason.rstrip(".") in hold.sentence


def test_an_error_of_our_plugin_is_identified_by_its_exit_code_and_shown_in_its_own_words() -> None:
    message = "a.bin could not be fetched: http://h/a.bin: h responds with 404 Not Found (missing 1×)"
    reason = "Transfer input files failure at s@h using protocol http. Details: %s ( URL file = u )|"
    gone, out = (
        explain_hold(13, exit_code_of(kind) << 8, reason % message)
        for kind in (ErrorKind.MISSING, ErrorKind.MISSING_FOR_NOW)
    )
    assert gone.sentence == out.sentence == message and gone.outcome is out.outcome is Outcome.NOT_FOUND
    assert (gone.releasable, gone.lasting) == (False, "data a.bin missing")
    assert (out.releasable, out.lasting) == (True, "")
    full = explain_hold(
        13, exit_code_of(ErrorKind.DISK_FULL) << 8, reason % "a.bin could not be fetched: no room"
    )
    assert (full.outcome, full.releasable) == (Outcome.OUT_OF_DISK, True)


# Submission.


def test_all_files_are_transferred_and_one_directory_is_transferred_back(tmp_path: Path) -> None:
    (one,) = group_into_clusters([request(tmp_path)], "group", Profile())
    assert one.items[0]["the_inputs"] == "order.json,../outlast-1.pyz,committed,../code-1.tar"
    settings = settings_of(Profile(), request(tmp_path))
    assert settings["transfer_output_files"] == settings["transfer_checkpoint_files"] == "travel"
    assert settings["when_to_transfer_output"] == "ON_EXIT_OR_EVICT"
    assert "mkdir -p travel" in one.script


@pytest.mark.parametrize(
    "commit, wanted", [("auto", None), ("restart", None), ("never", None), ("chirp", "true")]
)
def test_a_job_gets_access_to_the_files_of_the_access_point_only_on_request(
    tmp_path: Path, commit: str, wanted: str | None
) -> None:
    assert settings_of(Profile(), request(tmp_path)).get("My.WantIOProxy") is None
    assert settings_of(Profile(commit=commit), request(tmp_path)).get("My.WantIOProxy") == wanted


def test_resources_are_requested_in_htcondors_units(tmp_path: Path) -> None:
    settings = settings_of(Profile(gpus="Capability >= 8"), request(tmp_path, gpus=1, time=90.5))
    assert (settings["request_memory"], settings["request_disk"]) == ("3815", "976563")
    assert (settings["request_gpus"], settings["require_gpus"]) == ("1", "Capability >= 8")
    assert settings["allowed_execute_duration"] == "91"
    assert int(settings["job_max_vacate_time"]) > 60
    assert "require_gpus" not in settings_of(Profile(gpus="Capability >= 8"), request(tmp_path))


def test_jobs_with_the_same_resources_are_one_cluster_of_jobs(tmp_path: Path) -> None:
    same = [request(tmp_path, "b-%d" % number) for number in range(1, 21)]
    other = request(tmp_path, "b-21", avoid=("alpha",))
    assert [len(one.items) for one in group_into_clusters([*same, other], "group", Profile())] == [20, 1]


def test_sites_to_avoid_and_the_requirements_of_the_profile_are_combined(tmp_path: Path) -> None:
    profile = Profile(directives=('Requirements = OSGVO_OS_STRING == "RHEL 9"', "+Wish = true"))
    (one,) = group_into_clusters([request(tmp_path, avoid=("alpha", "beta"))], "group", profile)
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
def test_an_image_that_all_sites_have_is_named_and_another_is_transferred(
    image: str, line: str, tmp_path: Path
) -> None:
    (one,) = group_into_clusters([request(tmp_path)], "group", Profile(container=image))
    assert line in one.description


def test_an_image_file_is_transferred_and_a_directory_is_used_in_place(tmp_path: Path) -> None:
    image, folder = tmp_path / "image.sif", tmp_path / "image"
    image.touch()
    folder.mkdir()
    assert "transfer_container" not in settings_of(Profile(container=str(image)), request(tmp_path))
    there = settings_of(Profile(container=str(folder)), request(tmp_path))
    assert (there["container_image"], there["transfer_container"]) == (str(folder), "false")


def test_a_job_whose_image_does_not_exist_is_rejected(tmp_path: Path) -> None:
    profile = Profile(container=str(tmp_path / "none.sif"))
    sent = HTCondorScheduler("group", profile).submit([request(tmp_path)])["b-1"]
    assert (sent.status, sent.transient) == (SubmitStatus.REJECTED, False)
    assert "none.sif does not exist" in sent.reason


def test_a_blank_is_allowed_in_the_name_of_a_directory_and_not_of_a_file(tmp_path: Path) -> None:
    place = tmp_path / "my experiment, final"
    (one,) = group_into_clusters([request(place)], "group", Profile())
    assert " " not in one.items[0]["the_inputs"]
    with pytest.raises(UnfitRequest, match="blank"):
        group_into_clusters([request(tmp_path, inputs=(str(tmp_path / "my data.tar"),))], "group", Profile())
    with pytest.raises(UnfitRequest):
        group_into_clusters([request(tmp_path, directory=str(tmp_path / "$(HOME)"))], "group", Profile())


# Ads.


def test_why_a_job_is_pending_names_the_resource_that_no_slot_has() -> None:
    slots = [{"TotalSlotCpus": 4, "TotalSlotMemory": 4096}, {"TotalSlotCpus": 8, "TotalSlotMemory": 2048}]
    assert explain_idle({"RequestCpus": 64}, slots) == (
        "requests 64 cpus; the largest slot of this pool has 8 now"
    )
    assert "1 GPUs" in explain_idle({"RequestCpus": 1, "RequestGPUs": 1}, slots)
    assert explain_idle({"RequestCpus": 64}, []) == "pending; not yet considered by HTCondor"
    rejected = {"RequestCpus": 1, "LastRejMatchTime": 1, "LastRejMatchReason": "no match found"}
    assert "no match found" in explain_idle(rejected, slots)


def test_an_ad_shows_how_a_job_ended_if_the_log_does_not() -> None:
    ad = {
        "OutlastToken": "b-1",
        "ClusterId": 3,
        "ProcId": 1,
        "JobStatus": 4,
        "ExitCode": 5,
        "CompletionDate": 9,
    }
    view = history_from_ad({**ad, "NumShadowStarts": 2, "MachineAttrGLIDEIN_ResourceName0": "beta"}).view()
    assert (view.phase, view.job, view.exit_code, view.ended) == (JobPhase.ENDED, "3.1", 5, 9)
    assert (view.host, view.restarts) == ("beta", 1)


# The adapter, with a fake worker.


@pytest.fixture
def fake_worker(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], list[Mapping[str, Any]]]:
    """Return a function that sets the worker's response, or exception, and returns the list of requests."""

    def install(response: Any) -> list[Mapping[str, Any]]:
        received: list[Mapping[str, Any]] = []

        def run_command(
            arguments: Any, timeout: float, stdin: str = "", environment: Any = None
        ) -> CommandOutput:
            received.append(json.loads(stdin))
            if isinstance(response, Exception):
                raise response
            return CommandOutput(0, json.dumps(response), "")

        monkeypatch.setattr(adapter, "run_command", run_command)
        return received

    return install


def test_a_submission_without_a_response_is_unknown(tmp_path: Path, fake_worker: Any) -> None:
    fake_worker(CommandTimeout("too long"))
    assert HTCondorScheduler("g", Profile()).submit([request(tmp_path)])["b-1"].status is SubmitStatus.UNKNOWN


def test_a_schedd_that_was_not_reached_has_no_job_and_the_submission_may_be_retried(
    tmp_path: Path, fake_worker: Any
) -> None:
    fake_worker({"trouble": "Unable to locate local daemon"})
    result = HTCondorScheduler("g", Profile()).submit([request(tmp_path)])["b-1"]
    assert (result.status, result.transient) == (SubmitStatus.REJECTED, True)
    with pytest.raises(SchedulerUnavailable, match="locate"):
        HTCondorScheduler("g", Profile()).poll()


def test_a_refused_submission_is_rejected_for_good_with_its_reason(tmp_path: Path, fake_worker: Any) -> None:
    fake_worker({"jobs": {}, "refused": {"b-1": "Parse error"}, "unsure": {}})
    result = HTCondorScheduler("g", Profile()).submit([request(tmp_path)])["b-1"]
    assert (result.status, result.transient, result.reason) == (SubmitStatus.REJECTED, False, "Parse error")


def test_an_interrupted_submission_is_unknown_though_it_is_not_in_the_queue(
    tmp_path: Path, fake_worker: Any
) -> None:
    fake_worker({"jobs": {}, "refused": {}, "unsure": {"b-1": "Failed to commit"}})
    result = HTCondorScheduler("g", Profile()).submit([request(tmp_path)])["b-1"]
    assert (result.status, result.reason) == (SubmitStatus.UNKNOWN, "Failed to commit")


def test_a_job_that_left_the_queue_without_a_trace_is_not_listed(fake_worker: Any) -> None:
    received = fake_worker({"queue": [], "history": [], "offer": []})
    assert HTCondorScheduler("g", Profile()).poll([JobRef("b-1", "3.0", 1000.0)]) == {}
    assert received[0]["tokens"] == ["b-1"] and received[0]["since"] < 1000


def test_without_an_event_log_queue_and_history_are_used(tmp_path: Path, fake_worker: Any) -> None:
    ad = {"ClusterId": 3, "UserLog": str(tmp_path / "no-such.log")}
    running = {**ad, "OutlastToken": "b-1", "ProcId": 0, "JobStatus": 2, "JobCurrentStartExecutingDate": 5}
    ended = {**ad, "OutlastToken": "b-2", "ProcId": 1, "JobStatus": 4, "ExitCode": 0}
    fake_worker({"queue": [running], "history": [ended]})
    views = HTCondorScheduler("g", Profile()).poll([JobRef("b-2", "3.1", 0.0)])
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


def test_the_event_log_takes_precedence_over_the_queue_and_is_read_incrementally(
    tmp_path: Path, fake_worker: Any
) -> None:
    log = tmp_path / "htcondor.log"
    log.write_text(LOG)
    ad = {"OutlastToken": "b-1", "ClusterId": 3, "ProcId": 0, "JobStatus": 1, "UserLog": str(log)}
    fake_worker({"queue": [ad], "history": []})
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
    tmp_path: Path, fake_worker: Any
) -> None:
    log = tmp_path / "htcondor.log"
    log.write_text(LOG)
    ad = {"OutlastToken": "b-1", "ClusterId": 3, "ProcId": 0, "JobStatus": 2, "UserLog": str(log)}
    scheduler = HTCondorScheduler("g", Profile())
    fake_worker({"queue": [ad], "history": []})
    assert scheduler.poll()["b-1"].phase is JobPhase.RUNNING
    fake_worker({"queue": [], "history": []})
    assert scheduler.poll([JobRef("b-1", "3.0", 0.0)]) == {}
    fake_worker({"queue": [], "history": [{**ad, "JobStatus": 4, "ExitCode": 6}]})
    assert scheduler.poll([JobRef("b-1", "3.0", 0.0)])["b-1"].exit_code == 6


def test_a_wait_ends_when_the_event_log_has_grown_and_not_before(tmp_path: Path, fake_worker: Any) -> None:
    log = tmp_path / "htcondor.log"
    log.write_text(LOG)
    ad = {"OutlastToken": "b-1", "ClusterId": 3, "ProcId": 0, "JobStatus": 2, "UserLog": str(log)}
    fake_worker({"queue": [ad], "history": []})
    scheduler = HTCondorScheduler("g", Profile(), interval=0.1)
    scheduler.poll()
    assert not any(one.has_grown for one in scheduler._logs.values())
    with log.open("a") as file:
        file.write(END)
    began = time.monotonic()
    scheduler.wait(600.0)
    assert time.monotonic() - began < 300.0


def test_a_job_whose_end_is_half_written_has_not_ended(tmp_path: Path, fake_worker: Any) -> None:
    log = tmp_path / "htcondor.log"
    log.write_text(LOG + END[:40])
    ad = {"OutlastToken": "b-1", "ClusterId": 3, "ProcId": 0, "JobStatus": 2, "UserLog": str(log)}
    fake_worker({"queue": [ad], "history": []})
    scheduler = HTCondorScheduler("g", Profile())
    assert scheduler.poll()["b-1"].phase is JobPhase.RUNNING
    log.write_text(LOG + END)
    assert scheduler.poll()["b-1"].phase is JobPhase.ENDED


def test_a_token_in_the_event_log_is_not_submitted_again(tmp_path: Path, fake_worker: Any) -> None:
    (tmp_path / "htcondor.log").write_text(LOG + END)
    received = fake_worker({"jobs": {}, "refused": {}})
    result = HTCondorScheduler("g", Profile()).submit([request(tmp_path)])["b-1"]
    assert (result.status, result.job, received) == (SubmitStatus.ACCEPTED, "3.0", [])
