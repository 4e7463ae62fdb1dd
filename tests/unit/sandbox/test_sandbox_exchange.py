"""Files that travel with a job without a shared file system, and files that come back."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from outlast.domain import outcomes
from outlast.domain.model import Attempt, AttemptState, Outcome, Run, RunState, Spec
from outlast.exchange import sandbox_results
from outlast.exchange.experiment import Experiment
from outlast.exchange.sandbox_exchange import SandboxExchange
from outlast.node.order import read_order
from outlast.node.sandbox import layout, manifest
from outlast.node.staging.item import DataItem
from outlast.schedulers.profile import Profile
from outlast.training.checkpoints.checkpoint_store import CheckpointStore
from outlast.training.checkpoints.state_tree import flatten
from outlast.untrusted_files import remove
from support.checkpoints import content_of

RUN = Run("run", 0, 1, {}, RunState.ACTIVE, added=0.0, since=0.0)


def attempt(number: int = 1) -> Attempt:
    return Attempt("run", number, "batch%d-1" % number, AttemptState.RUNNING, 0.0)


@pytest.fixture
def exchange(tmp_path: Path) -> SandboxExchange:
    experiment = Experiment(tmp_path / "experiment")
    program = experiment.zipapp("0" * 64)
    program.parent.mkdir(parents=True)
    program.write_bytes(b"")
    return SandboxExchange(experiment, program, Profile(commit="chirp", commit_every=600.0))


def spec(command: str = "true", **changes: Any) -> Spec:
    return Spec(name="run", command=command, environment={"PATH": "/login/node/bin"}, **changes)


def save(directory: Path, step: int, token: str = "t") -> None:
    store = CheckpointStore(str(directory), 9, dict, print, lambda name, why: None, token)
    store.save(content_of(flatten({"step": step})), step)


def steps(directory: Path) -> list[int]:
    return sorted(int(path.name.split("-")[1]) for path in directory.glob("step-*"))


def home(exchange: SandboxExchange, of: Attempt) -> Path:
    return exchange.experiment.exchange_of(of)


def transfer_in(exchange: SandboxExchange, of: Attempt, sandbox: Path, its_spec: Spec | None = None) -> None:
    """Copy the input of a job into its sandbox, as a scheduler does when it starts."""
    request = exchange.request(RUN, of, its_spec or spec())
    sandbox.mkdir(exist_ok=True)
    for path in map(Path, (request.order, *request.inputs)):
        shutil.copytree(path, sandbox / path.name) if path.is_dir() else shutil.copy(path, sandbox)


def transfer_out(exchange: SandboxExchange, of: Attempt, sandbox: Path) -> None:
    shutil.copytree(sandbox / "travel", home(exchange, of) / "travel", symlinks=True)


# Input.


def test_the_work_order_contains_no_path_of_this_machine(exchange: SandboxExchange, tmp_path: Path) -> None:
    exchange.write_order(RUN, attempt(), spec(code_sha256="a" * 64))
    raw = (home(exchange, attempt()) / "order.json").read_text()
    order = json.loads(raw)
    assert str(tmp_path) not in raw.replace('"experiment":"%s"' % exchange.experiment.root, "")
    assert order["environment"] == {}
    assert (order["sandbox"], order["commit"], order["commit_every"]) == (True, "chirp", 600.0)
    found = read_order(str(home(exchange, attempt()) / "order.json"))
    assert found.checkpoints == str(home(exchange, attempt()) / "travel/checkpoints")
    request = exchange.request(RUN, attempt(), spec(code_sha256="a" * 64))
    assert request.directory == str(home(exchange, attempt()))
    assert [Path(path).name for path in request.inputs] == ["code-aaaaaaaaaaaaaaaa.tar", "committed"]


def test_the_newest_checkpoints_and_all_other_files_travel_with_the_job(
    exchange: SandboxExchange, tmp_path: Path
) -> None:
    place = exchange.experiment.checkpoints("run")
    for step in (1, 2, 3):
        save(place, step)
    (place / "notes.txt").write_text("plain")
    (place / ".hidden").write_text("x")
    (place / "latest").symlink_to("notes.txt")
    exchange.write_order(RUN, attempt(), spec())
    given = home(exchange, attempt()) / "committed"
    assert not [path for path in given.rglob("*") if path.is_symlink()], "HTCondor would not transfer it"
    transfer_in(exchange, attempt(), tmp_path / "sandbox")
    layout.restore_newest(str(tmp_path / "sandbox"))
    arrived = tmp_path / "sandbox/travel/checkpoints"
    assert steps(arrived) == [2, 3]
    assert (arrived / "notes.txt").read_text() == "plain"
    assert (arrived / "latest").readlink() == Path("notes.txt")
    assert not (arrived / ".hidden").exists()


def test_no_work_order_is_written_without_its_checkpoints(
    exchange: SandboxExchange, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(exchange.experiment.checkpoints("run"), 1)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(manifest, "write", full)
        with pytest.raises(OSError, match="No space"):
            exchange.write_order(RUN, attempt(), spec())
    assert not (home(exchange, attempt()) / "order.json").exists()
    assert not (home(exchange, attempt()) / "committed").exists()
    exchange.write_order(RUN, attempt(), spec())
    assert layout.newest_commit(str(home(exchange, attempt()))) is not None


# Fences.


def test_a_job_that_logged_nothing_can_be_fenced(exchange: SandboxExchange) -> None:
    exchange.write_order(RUN, attempt(), spec())
    assert exchange.fence(attempt())
    assert not (home(exchange, attempt()) / "order.json").exists()
    assert exchange.fence(attempt()), "again, after a crash"


@pytest.mark.parametrize("place", ["travel", "committed/news"])
def test_a_job_that_logged_its_claim_cannot_be_fenced(exchange: SandboxExchange, place: str) -> None:
    exchange.write_order(RUN, attempt(), spec())
    log_directory = home(exchange, attempt()) / place
    log_directory.mkdir(parents=True)
    (log_directory / "claim.json").write_text('{"job": "7.0"}')
    assert not exchange.fence(attempt())
    assert (home(exchange, attempt()) / "order.json").exists()
    exchange.shut(attempt())
    assert not (home(exchange, attempt()) / "order.json").exists()


# Returned files.


def start(sandbox: Path) -> int:
    """Run the node program as the scheduler starts it, and return its exit code."""
    program = "import sys; from outlast.node.main import main; sys.exit(main(sys.argv[1:]))"
    environment = {**os.environ, "_CONDOR_SCRATCH_DIR": str(sandbox), "OUTLAST_JOB": "7.0"}
    environment.pop("_CONDOR_CHIRP_CONFIG", None)
    arguments = [sys.executable, "-c", program, str(sandbox / "order.json")]
    return subprocess.run(arguments, env=environment, timeout=60, check=False).returncode


def carry_out(exchange: SandboxExchange, of: Attempt, sandbox: Path, script: str) -> int:
    """Run a whole attempt with the real node program in a sandbox, and return its exit code."""
    its_spec = spec("sh -c '%s'" % script)
    exchange.write_order(RUN, of, its_spec)
    transfer_in(exchange, of, sandbox, its_spec)
    code = start(sandbox)
    transfer_out(exchange, of, sandbox)
    return code


def test_an_attempt_passes_its_checkpoints_and_outputs_to_the_next(
    exchange: SandboxExchange, tmp_path: Path
) -> None:
    first = (
        'echo 1 >"$OUTLAST_CHECKPOINT_DIR/state"; echo row >>"$OUTLAST_OUTPUT_DIR/rows"; echo done; exit 85'
    )
    assert carry_out(exchange, attempt(1), tmp_path / "one", first) == 0
    report = exchange.report(attempt(1))
    assert report is not None and outcomes.of_leg(report) is Outcome.CONTINUE
    exchange.settle(attempt(1))
    assert (exchange.experiment.checkpoints("run") / "state").read_text() == "1\n"
    assert exchange.experiment.log("run", 1).read_text() == "done\n"
    second = 'cat "$OUTLAST_CHECKPOINT_DIR/state" >>"$OUTLAST_OUTPUT_DIR/rows"'
    assert carry_out(exchange, attempt(2), tmp_path / "two", second) == 0
    report = exchange.report(attempt(2))
    assert report is not None and outcomes.of_leg(report) is Outcome.FINISHED
    exchange.settle(attempt(2))
    exchange.publish(attempt(2))
    assert (exchange.experiment.result("run") / "rows").read_text() == "row\n1\n"


def test_a_job_of_a_chain_restarts_itself_until_it_has_finished(
    exchange: SandboxExchange, tmp_path: Path
) -> None:
    script = 'echo x >>"$OUTLAST_CHECKPOINT_DIR/n"; test $(wc -l <"$OUTLAST_CHECKPOINT_DIR/n") = 2 || exit 85'
    chain = Attempt("run", 1, "batch1-1", AttemptState.RUNNING, 0.0, jobs=5)
    sandbox = tmp_path / "sandbox"
    assert carry_out(exchange, chain, sandbox, script) == 85
    assert start(sandbox) == 0


def settled(exchange: SandboxExchange, of: Attempt) -> list[int]:
    """Settle an attempt twice and return the steps of the checkpoints that the run then has."""
    exchange.settle(of)
    once = steps(exchange.experiment.checkpoints("run"))
    exchange.settle(of)
    assert steps(exchange.experiment.checkpoints("run")) == once, "it is repeatable"
    return once


def test_whole_returned_files_replace_the_earlier_ones(exchange: SandboxExchange) -> None:
    place = exchange.experiment.checkpoints("run")
    save(place, 1)
    (place / "gone.pt").write_text("removed by the training meanwhile")
    exchange.write_order(RUN, attempt(), spec())
    for step in (2, 3):
        save(home(exchange, attempt()) / "travel/checkpoints", step)
    layout.write_serial(str(home(exchange, attempt())), 1)
    layout.pack(str(home(exchange, attempt())))
    assert settled(exchange, attempt()) == [2, 3]
    assert not (place / "gone.pt").exists()
    assert not list(home(exchange, attempt()).glob("committed/commit-*")), "nothing pins old checkpoints"


def test_without_returned_files_the_newest_commit_counts(exchange: SandboxExchange, tmp_path: Path) -> None:
    save(exchange.experiment.checkpoints("run"), 1)
    exchange.write_order(RUN, attempt(), spec())
    commit = home(exchange, attempt()) / "committed" / layout.commit_name(4)
    save(commit / "checkpoints", 2)
    shutil.rmtree(next((commit / "checkpoints").glob(".generation*")), ignore_errors=True)
    manifest.write(str(commit), manifest.list_files(str(commit), layout.PARTS, 4))
    assert settled(exchange, attempt()) == [2]


def test_a_job_without_progress_changes_nothing(exchange: SandboxExchange) -> None:
    save(exchange.experiment.checkpoints("run"), 1)
    exchange.write_order(RUN, attempt(), spec())
    assert settled(exchange, attempt()) == [1]


def test_only_whole_checkpoints_of_a_cut_transfer_are_kept(exchange: SandboxExchange) -> None:
    place = exchange.experiment.checkpoints("run")
    save(place, 1)
    exchange.write_order(RUN, attempt(), spec())
    back = home(exchange, attempt()) / "travel/checkpoints"
    for step in (2, 3):
        save(back, step, "other")
    (back / "plain.pt").write_text("nothing shows whether it is whole")
    layout.write_serial(str(home(exchange, attempt())), 1)
    layout.pack(str(home(exchange, attempt())))
    torn = next(back.glob("step-*3-g*"))
    os.truncate(torn / "state.outlast", 3)
    assert settled(exchange, attempt()) == [1, 2]
    assert not (place / "plain.pt").exists()


def test_a_job_that_lost_its_checkpoints_does_not_remove_the_earlier_ones(
    exchange: SandboxExchange,
) -> None:
    save(exchange.experiment.checkpoints("run"), 1)
    exchange.write_order(RUN, attempt(), spec())
    (home(exchange, attempt()) / "travel/checkpoints").mkdir(parents=True)
    layout.write_serial(str(home(exchange, attempt())), 1)
    layout.pack(str(home(exchange, attempt())))
    assert settled(exchange, attempt()) == [1]


@pytest.mark.parametrize("moment", ["built", "half way", "swapped"])
def test_a_controller_that_dies_while_it_settles_loses_nothing(
    exchange: SandboxExchange, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = exchange.experiment.checkpoints("run")
    save(place, 1)
    exchange.write_order(RUN, attempt(), spec())
    save(home(exchange, attempt()) / "travel/checkpoints", 2)
    layout.write_serial(str(home(exchange, attempt())), 1)
    layout.pack(str(home(exchange, attempt())))
    renamed = Path.rename
    left = {"built": 0, "half way": 1, "swapped": 2}[moment]

    def rename(path: Path, target: Path) -> Path:
        nonlocal left
        if path.name.startswith("checkpoints"):
            left -= 1
            if left < 0:
                raise KeyboardInterrupt
        return renamed(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", rename)
        if moment == "swapped":
            exchange.settle(attempt())
        else:
            with pytest.raises(KeyboardInterrupt):
                exchange.settle(attempt())
    assert settled(exchange, attempt()) == [2]
    assert sorted(path.name for path in place.parent.glob("checkpoints*")) == ["checkpoints"]


def test_links_from_another_machine_are_not_followed(exchange: SandboxExchange, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "events.jsonl").write_text('{"event":"claimed","mono":1,"at":1,"host":"secret"}\n')
    (secret / "key").write_text("secret")
    exchange.write_order(RUN, attempt(), spec())
    back = home(exchange, attempt()) / "travel"
    (back / "checkpoints").mkdir(parents=True)
    (back / "claim.json").write_text('{"job": "7.0"}')
    (back / "events.jsonl").symlink_to(secret / "events.jsonl")
    (back / "training.log").symlink_to(secret / "key")
    (back / "checkpoints/dir").symlink_to(secret)
    fake = {
        "version": 1,
        "serial": 9,
        "files": {"checkpoints/dir/key": 6},
        "links": {"checkpoints/x": "/etc"},
    }
    (back / "manifest.json").write_text(json.dumps(fake))
    report = exchange.report(attempt())
    assert report is None or report.host != "secret"
    exchange.settle(attempt())
    assert not exchange.experiment.log("run", 1).exists()
    assert not list(exchange.experiment.checkpoints("run").glob("**/key"))
    assert (secret / "key").read_text() == "secret"


def belongings(tmp_path: Path) -> Path:
    """Return a directory of the user with the same names as one that came back, and a longer log."""
    mine = tmp_path / "mine"
    save(mine / "checkpoints", 9)
    (mine / "unfinished/output").mkdir(parents=True)
    (mine / "commit-000009").mkdir()
    (mine / "training.log").write_text("secret " * 1000)
    manifest.write(str(mine), manifest.list_files(str(mine), ["checkpoints"], 9))
    return mine


def all_below(place: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path.relative_to(place)): (path.stat().st_mode, path.read_bytes() if path.is_file() else b"")
        for path in place.rglob("*")
    }


@pytest.mark.parametrize(
    "name, goal",
    [
        ("travel", ""),
        ("travel/training.log", "training.log"),
        ("travel/checkpoints", "checkpoints"),
        ("travel/manifest.json", "manifest.json"),
        ("committed", ""),
        ("committed/news", ""),
        ("committed/commit-000009", ""),
        ("job.log", "training.log"),
    ],
)
def test_links_that_appear_while_files_are_moved_to_their_places_are_not_followed(
    exchange: SandboxExchange, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, goal: str
) -> None:
    mine = belongings(tmp_path)
    before = all_below(mine)
    of = attempt()
    exchange.write_order(RUN, of, spec())
    back = home(exchange, of) / "travel"
    save(back / "checkpoints", 2)
    (back / "training.log").write_text("step 2\n")
    manifest.write(str(back), manifest.list_files(str(back), ["checkpoints"], 5))
    real = sandbox_results._bring_log

    def plant_and_bring(place: Path, target: Path) -> None:
        remove(place / name)
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).symlink_to(mine / goal)
        real(place, target)

    monkeypatch.setattr(sandbox_results, "_bring_log", plant_and_bring)
    with suppress(OSError):  # the controller tries again
        exchange.settle(of)
    assert all_below(mine) == before
    log = exchange.experiment.log("run", 1)
    assert not log.exists() or "secret" not in log.read_text()
    assert set(steps(exchange.experiment.checkpoints("run"))) <= {2}


def test_an_attempt_whose_directory_was_never_written_is_settled(exchange: SandboxExchange) -> None:
    exchange.settle(attempt())
    assert not home(exchange, attempt()).exists()


def test_files_that_cannot_be_used_are_not_moved_through_a_link(
    exchange: SandboxExchange, tmp_path: Path
) -> None:
    mine = belongings(tmp_path)
    before = all_below(mine)
    of = attempt()
    exchange.write_order(RUN, of, spec())
    save(home(exchange, of) / "travel/checkpoints", 2)
    (home(exchange, of) / "unusable").symlink_to(mine)
    sandbox_results.set_aside(exchange.experiment, of, ValueError("x"))
    assert all_below(mine) == before
    assert steps(home(exchange, of) / "unusable/checkpoints") == [2]


def test_a_report_is_not_looked_for_behind_a_link(exchange: SandboxExchange, tmp_path: Path) -> None:
    mine = belongings(tmp_path)
    (mine / "news").mkdir()
    (mine / "news/link").symlink_to(tmp_path)
    of = attempt()
    exchange.write_order(RUN, of, spec())
    remove(home(exchange, of) / "committed")
    (home(exchange, of) / "committed").symlink_to(mine)
    assert exchange.report(of) is None
    assert (mine / "news/link").is_symlink() and mine.is_dir()


def test_the_token_file_travels_with_the_job_only_if_there_is_data_to_fetch(
    exchange: SandboxExchange, tmp_path: Path
) -> None:
    token = str(tmp_path / "token")
    guarded = SandboxExchange(exchange.experiment, exchange.zipapp, Profile(token_file=token))
    data = (DataItem(("https://data.example.org/a.tar",), method="http"),)
    assert token in guarded.request(RUN, attempt(), spec(data=data)).inputs
    assert token not in guarded.request(RUN, attempt(), spec()).inputs
