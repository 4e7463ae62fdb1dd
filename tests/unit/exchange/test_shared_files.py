"""Work orders, fences, reports that are compared with the delivery, and results."""

from __future__ import annotations

import errno
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from outlast.domain import outcomes
from outlast.domain.model import Attempt, AttemptState, Checkpoints, Outcome, OutputRule, Run, RunState, Spec
from outlast.exchange.base import ResultGone
from outlast.exchange.experiment import Experiment
from outlast.exchange.shared_files import SharedFilesExchange
from outlast.node import claim
from outlast.node.order import SaveSettings, read_order

RUN = Run("a", 0, 1, {"lr": "1e-3"}, RunState.ACTIVE, added=0.0, since=0.0)
ATTEMPT = Attempt("a", 2, "tok", AttemptState.RUNNING, intended=0.0, avoid=("bad",))
SPEC = Spec("digits", "python train.py --lr {lr}", outputs=(OutputRule("model.npz"),), code_sha256="ab" * 32)


@pytest.fixture
def exchange(tmp_path: Path) -> SharedFilesExchange:
    return SharedFilesExchange(Experiment(tmp_path), tmp_path / "outlast.pyz")


def place(exchange: SharedFilesExchange) -> Path:
    path = exchange.experiment.exchange_of(ATTEMPT)
    path.mkdir(parents=True, exist_ok=True)
    return path


def deliver(exchange: SharedFilesExchange, delivered: object, **files: str) -> None:
    """Write the files of a node program that finished and logged `delivered` as its delivery."""
    output = place(exchange) / "output"
    output.mkdir()
    for name, content in files.items():
        (output / name).write_text(content)
    events = [
        {"event": "phase", "phase": "claim", "mono": 1.0},
        {"event": "end", "mono": 2.0, "outcome": "finished", "detail": "done", "delivered": delivered},
    ]
    (place(exchange) / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))


def outcome(exchange: SharedFilesExchange) -> Any:
    report = exchange.report(ATTEMPT)
    assert report is not None
    return outcomes.of_leg(report)


def test_the_node_reads_the_work_order_as_it_was_written(exchange: SharedFilesExchange) -> None:
    for name in ("001-old", "002-tok", "003-later"):
        (exchange.experiment.workdir / "a" / name).mkdir(parents=True)
    exchange.write_order(RUN, ATTEMPT, SPEC)
    order = read_order(exchange.request(RUN, ATTEMPT, SPEC).order)
    assert (order.token, order.run, order.number) == ("tok", "a", 2)
    assert order.command == ("python", "train.py", "--lr", "1e-3")
    assert order.outputs == SPEC.outputs
    assert order.exchange == str(place(exchange)) and order.scratch != order.previous_scratch
    assert order.previous_scratch is not None and order.previous_scratch.endswith("001-old")
    assert order.code is not None and Path(order.code) == exchange.experiment.code("ab" * 32)


def test_the_work_order_has_the_save_history_and_the_users_limits(
    exchange: SharedFilesExchange,
) -> None:
    run = replace(RUN, observed=7200.0, interruptions=3, save_blocked=0.25, save_durable=4.0)
    spec = replace(SPEC, checkpoints=Checkpoints(every=None, shortest=5.0, longest=600.0))
    exchange.write_order(run, ATTEMPT, spec)
    path = place(exchange) / "order.json"
    assert read_order(str(path)).saving == SaveSettings(None, 5.0, 600.0, 7200.0, 3, 0.25, 4.0)
    content = json.loads(path.read_text())
    content["saving"]["of_a_later_version"] = 1
    path.write_text(json.dumps(content))
    assert read_order(str(path)).saving.interruptions == 3
    del content["saving"]
    path.write_text(json.dumps(content))
    assert read_order(str(path)).saving == SaveSettings()


def test_the_job_request_has_what_the_scheduler_needs(exchange: SharedFilesExchange) -> None:
    request = exchange.request(RUN, ATTEMPT, SPEC)
    assert (request.token, request.name, request.avoid) == ("tok", "a-002", ("bad",))
    assert (request.time, request.grace) == (SPEC.resources.time, SPEC.checkpoints.grace)


def test_a_fence_keeps_a_late_job_out_and_may_be_repeated(exchange: SharedFilesExchange) -> None:
    assert exchange.fence(ATTEMPT) and exchange.fence(ATTEMPT)
    assert not claim.acquire(str(place(exchange) / "claim.json"), "tok", "17", "node1")


def test_a_fence_after_the_claim_fails(exchange: SharedFilesExchange) -> None:
    assert claim.acquire(str(place(exchange) / "claim.json"), "tok", "17", "node1")
    assert not exchange.fence(ATTEMPT)


def test_a_claim_without_a_log_is_a_sign_of_life_and_a_fence_is_none(exchange: SharedFilesExchange) -> None:
    path = str(place(exchange) / "claim.json")
    assert exchange.report(ATTEMPT) is None
    assert claim.acquire(path, "tok", "17", "node1")
    report = exchange.report(ATTEMPT)
    assert report is not None
    assert (report.last_logged, report.host, report.logged_outcome) == (
        Path(path).stat().st_mtime,
        "node1",
        None,
    )
    Path(path).unlink()
    exchange.fence(ATTEMPT)
    assert exchange.report(ATTEMPT) is None


def test_a_delivery_that_matches_its_manifest_has_finished(exchange: SharedFilesExchange) -> None:
    deliver(exchange, {"model.npz": {"size": 3}}, **{"model.npz": "abc"})
    assert outcome(exchange) is Outcome.FINISHED


@pytest.mark.parametrize(
    ("delivered", "word"),
    [
        ({"model.npz": {"size": 4}}, "3 bytes instead of 4"),
        ({"model.npz": {}}, "3 bytes"),
        ({"model.npz": None}, "3 bytes"),
        ({"gone.npz": {"size": 3}}, "missing"),
        ({"../order.json": {"size": 3}}, "outside"),
        ({"a/../../order.json": {"size": 3}}, "outside"),
        ({"/etc/passwd": {"size": 3}}, "outside"),
    ],
)
def test_a_delivery_that_does_not_match_its_manifest_is_a_wrong_output(
    exchange: SharedFilesExchange, delivered: object, word: str
) -> None:
    deliver(exchange, delivered, **{"model.npz": "abc"})
    report = exchange.report(ATTEMPT)
    assert report is not None and report.logged_outcome is Outcome.FINISHED and word in report.delivery_error
    assert outcomes.of_leg(report) is Outcome.WRONG_OUTPUT
    assert word in outcomes.detail_of(report) and outcomes.signature_of(report)


@pytest.mark.parametrize(("files", "size", "right"), [(2, 5, True), (1, 5, False), (2, 4, False)])
def test_a_delivery_of_too_many_files_to_list_is_compared_by_its_totals(
    exchange: SharedFilesExchange, files: int, size: int, right: bool
) -> None:
    deliver(exchange, None, **{"model.npz": "abc", "more": "xy"})
    log = place(exchange) / "events.jsonl"
    end = {"event": "end", "mono": 3.0, "outcome": "finished", "delivered": None}
    line = json.dumps({**end, "delivered_total": {"files": files, "bytes": size}})
    log.write_text(log.read_text() + line + "\n")
    assert outcome(exchange) is (Outcome.FINISHED if right else Outcome.WRONG_OUTPUT)


@pytest.mark.parametrize("name", ["x\0y", "n" * 5000, "", "\ud800"])
def test_an_impossible_file_name_is_a_wrong_output(exchange: SharedFilesExchange, name: str) -> None:
    deliver(exchange, {name: {"size": 3}}, **{"model.npz": "abc"})
    assert outcome(exchange) is Outcome.WRONG_OUTPUT


def test_a_link_in_a_delivery_is_not_followed(exchange: SharedFilesExchange, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("abc")
    deliver(exchange, {"model.npz": {"size": 3}})
    (place(exchange) / "output" / "model.npz").symlink_to(tmp_path / "secret")
    assert outcome(exchange) is Outcome.WRONG_OUTPUT


def test_a_delivery_that_is_a_link_is_a_wrong_output_and_is_never_published(
    exchange: SharedFilesExchange, tmp_path: Path
) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "model.npz").write_text("abc")
    deliver(exchange, {"model.npz": {"size": 3}})
    (place(exchange) / "output").rmdir()
    (place(exchange) / "output").symlink_to(tmp_path / "home")
    assert outcome(exchange) is Outcome.WRONG_OUTPUT
    with pytest.raises(ResultGone):
        exchange.publish(ATTEMPT)
    assert not exchange.experiment.result("a").exists()
    assert (tmp_path / "home" / "model.npz").read_text() == "abc"


def test_a_link_on_the_way_to_a_delivered_file_is_not_followed(
    exchange: SharedFilesExchange, tmp_path: Path
) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "model.npz").write_text("abc")
    deliver(exchange, {"models/model.npz": {"size": 3}})
    (place(exchange) / "output" / "models").symlink_to(tmp_path / "home")
    assert outcome(exchange) is Outcome.WRONG_OUTPUT


def test_finished_without_a_delivery_is_a_wrong_output(exchange: SharedFilesExchange) -> None:
    deliver(exchange, {})
    (place(exchange) / "output").rmdir()
    assert outcome(exchange) is Outcome.WRONG_OUTPUT


def test_publishing_twice_changes_nothing(exchange: SharedFilesExchange) -> None:
    deliver(exchange, {"model.npz": {"size": 3}}, **{"model.npz": "abc"})
    for _ in range(3):
        exchange.publish(ATTEMPT)
    results = exchange.experiment.results
    assert [path.name for path in results.iterdir()] == ["a"]
    assert (results / "a" / "model.npz").read_text() == "abc"


def test_earlier_results_of_that_name_are_kept_under_another_name(exchange: SharedFilesExchange) -> None:
    earlier = exchange.experiment.result("a")
    earlier.mkdir(parents=True)
    (earlier / "precious").write_text("x")
    deliver(exchange, {"model.npz": {"size": 3}}, **{"model.npz": "abc"})
    exchange.publish(ATTEMPT)
    exchange.publish(ATTEMPT)
    names = sorted(path.name for path in exchange.experiment.results.iterdir())
    assert len(names) == 2 and names[0] == "a" and names[1].startswith("a.before-")
    assert (exchange.experiment.results / names[1] / "precious").read_text() == "x"
    assert (earlier / "model.npz").exists()


def test_an_accepted_result_that_disappeared_is_an_error(exchange: SharedFilesExchange) -> None:
    with pytest.raises(ResultGone, match="disappeared"):
        exchange.publish(ATTEMPT)


def test_a_retired_run_leaves_no_scratch_and_keeps_its_checkpoints(exchange: SharedFilesExchange) -> None:
    scratch = exchange.experiment.scratch("a", 1, "tok")
    scratch.mkdir(parents=True)
    kept = exchange.experiment.checkpoints("a")
    kept.mkdir(parents=True)
    exchange.retire(RUN)
    exchange.retire(RUN)
    assert not scratch.exists() and kept.exists()


def test_results_on_another_file_system_are_copied_and_appear_whole(
    exchange: SharedFilesExchange, monkeypatch: pytest.MonkeyPatch
) -> None:
    deliver(exchange, {"model.npz": {"size": 3}}, **{"model.npz": "abc"})
    rename = Path.rename

    def across(self: Path, target: Path) -> Path:
        if self.name == "output":
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", across)
    exchange.publish(ATTEMPT)
    result = exchange.experiment.result("a")
    assert (result / "model.npz").read_text() == "abc"
    assert not (place(exchange) / "output").exists()
    assert [path.name for path in result.parent.iterdir()] == ["a"]
    exchange.publish(ATTEMPT)


def test_earlier_results_are_not_mistaken_for_a_delivery_that_disappeared(
    exchange: SharedFilesExchange,
) -> None:
    result = exchange.experiment.result("a")
    result.mkdir(parents=True)
    (result / "model.npz").write_text("of another time")
    with pytest.raises(ResultGone):
        exchange.publish(ATTEMPT)


def test_the_scratch_of_a_finished_run_is_removed(exchange: SharedFilesExchange) -> None:
    scratch = exchange.experiment.workdir / "a" / "001-old"
    (scratch / "job").mkdir(parents=True)
    (scratch / "job" / "core").write_text("x")
    exchange.retire(RUN)
    assert not scratch.parent.exists()


def test_a_claim_that_cannot_be_read_is_a_claim_without_content_and_no_error(
    exchange: SharedFilesExchange,
) -> None:
    (place(exchange) / "claim.json").mkdir()
    report = exchange.report(ATTEMPT)
    assert report is not None, "the name alone is a claim"
    assert (outcomes.of_leg(report), report.host, report.spans) == (None, "", ())
    assert not exchange.fence(ATTEMPT)
    exchange.shut(ATTEMPT)


def test_unrelated_names_in_the_workdir_are_no_earlier_attempts(exchange: SharedFilesExchange) -> None:
    for name in ("001-old", "0x1-odd", "1e9-odd", "notes-1"):
        (exchange.experiment.workdir / "a" / name).mkdir(parents=True)
    order = exchange.order(RUN, ATTEMPT, SPEC)
    assert order.previous_scratch == str(exchange.experiment.workdir / "a" / "001-old")


def test_a_dangling_link_in_place_of_the_result_is_kept_under_another_name(
    exchange: SharedFilesExchange, tmp_path: Path
) -> None:
    deliver(exchange, {"model.npz": {"size": 3}}, **{"model.npz": "abc"})
    result = exchange.experiment.result("a")
    result.parent.mkdir(parents=True)
    result.symlink_to(tmp_path / "not-mounted")
    exchange.publish(ATTEMPT)
    assert (result / "model.npz").read_text() == "abc" and not result.is_symlink()
    (kept,) = result.parent.glob("a.before-*")
    assert kept.readlink() == tmp_path / "not-mounted" and not (tmp_path / "not-mounted").exists()


def test_a_link_in_place_of_the_work_order_is_not_written_through(
    exchange: SharedFilesExchange, tmp_path: Path
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (place(exchange) / "order.json").symlink_to(victim)
    exchange.write_order(RUN, ATTEMPT, SPEC)
    assert victim.read_text() == "mine"
    assert read_order(exchange.request(RUN, ATTEMPT, SPEC).order).token == ATTEMPT.token


def test_outputs_behind_a_link_in_place_of_the_scratch_are_not_kept_as_rejected(
    exchange: SharedFilesExchange, tmp_path: Path
) -> None:
    disk = tmp_path / "disk" / "output"
    disk.mkdir(parents=True)
    (disk / "diary").write_text("mine")
    (disk / "diary").chmod(0o200)
    scratch = exchange.experiment.scratch(ATTEMPT.run, ATTEMPT.number, ATTEMPT.token)
    scratch.parent.mkdir(parents=True)
    scratch.symlink_to(tmp_path / "disk")
    before = (disk / "diary").stat()
    assert exchange.reject(ATTEMPT, "no model.pt") == ""
    assert (disk / "diary").stat() == before
