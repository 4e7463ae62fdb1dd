"""The state from which a job without a shared file system resumes, and how its checkpoints are committed."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from outlast.node import claim, legs
from outlast.node.event_log import EventLog
from outlast.node.legs import Leg
from outlast.node.order import WorkOrder
from outlast.node.sandbox import layout, manifest
from outlast.node.sandbox.committer import Committer
from outlast.training.checkpoints import checkpoint_names
from support.chirp_server import Pool, chirp_server
from support.privileges import permissions_apply

STEP = "step-%012d-g000001-s%06d"


def fill(directory: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def contents(directory: Path) -> dict[str, str]:
    found = {}
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            found[str(path.relative_to(directory))] = path.read_text()
    return found


def commit(home: Path, serial: int, files: dict[str, str]) -> Path:
    directory = home / "committed" / layout.commit_name(serial)
    fill(directory, files)
    directory.mkdir(parents=True, exist_ok=True)
    manifest.write(str(directory), manifest.list_files(str(directory), layout.PARTS, serial))
    return directory


def checkpoints(home: Path) -> dict[str, str]:
    return contents(home / "travel" / "checkpoints")


def test_complete_checkpoints_are_recognised_by_the_names_that_the_training_gives_them() -> None:
    assert layout.is_checkpoint(checkpoint_names.checkpoint_name(7, (1, 2)))
    assert not layout.is_checkpoint(
        checkpoint_names.temporary_name(checkpoint_names.checkpoint_name(7, (1, 2)))
    )


# The newest state.


def test_the_first_start_uses_the_state_that_was_transferred_with_the_job(tmp_path: Path) -> None:
    commit(tmp_path, 0, {"checkpoints/model.pt": "given", "unfinished/output/rows.csv": "1"})
    found = layout.restore_newest(str(tmp_path))
    assert found is not None and found[1].serial == 0
    assert checkpoints(tmp_path) == {"model.pt": "given"}
    assert contents(tmp_path / "travel" / "unfinished") == {"output/rows.csv": "1"}
    assert layout.read_serial(str(tmp_path)) == 1


def test_after_a_proper_end_the_files_of_the_job_are_newer_than_the_commit(tmp_path: Path) -> None:
    layout.restore_newest(str(tmp_path))
    commit(tmp_path, 2, {"checkpoints/model.pt": "committed"})
    layout.write_serial(str(tmp_path), 2)
    fill(tmp_path / "travel/checkpoints", {"model.pt": "saved later"})
    assert layout.restore_newest(str(tmp_path)) is None
    assert checkpoints(tmp_path) == {"model.pt": "saved later"}


def test_after_a_hard_kill_the_commit_is_newer(tmp_path: Path) -> None:
    fill(tmp_path / "travel/checkpoints", {"model.pt": "of an earlier start", "gone.pt": "x"})
    layout.write_serial(str(tmp_path), 3)
    commit(tmp_path, 5, {"checkpoints/model.pt": "committed"})
    found = layout.restore_newest(str(tmp_path))
    assert found is not None and found[1].serial == 5
    assert checkpoints(tmp_path) == {"model.pt": "committed"}
    assert layout.read_serial(str(tmp_path)) == 6


def test_complete_checkpoints_of_the_older_state_are_kept_as_a_fallback(tmp_path: Path) -> None:
    fill(tmp_path / "travel/checkpoints", {STEP % (1, 1) + "/state.bin": "1", "plain": "old"})
    layout.write_serial(str(tmp_path), 1)
    commit(tmp_path, 2, {"checkpoints/" + STEP % (2, 2) + "/state.bin": "2"})
    layout.restore_newest(str(tmp_path))
    assert checkpoints(tmp_path) == {STEP % (1, 1) + "/state.bin": "1", STEP % (2, 2) + "/state.bin": "2"}


@pytest.mark.parametrize("torn", ["missing", "short", "no manifest", "half a manifest", "link"])
def test_an_incomplete_commit_does_not_count(tmp_path: Path, torn: str) -> None:
    commit(tmp_path, 1, {"checkpoints/model.pt": "whole"})
    broken = commit(tmp_path, 2, {"checkpoints/model.pt": "torn!"})
    if torn == "missing":
        (broken / "checkpoints/model.pt").unlink()
    elif torn == "short":
        (broken / "checkpoints/model.pt").write_text("tor")
    elif torn == "no manifest":
        (broken / "manifest.json").unlink()
    elif torn == "half a manifest":
        os.truncate(broken / "manifest.json", 20)
    else:
        shutil.move(broken / "checkpoints", tmp_path / "elsewhere")
        (broken / "checkpoints").symlink_to(tmp_path / "elsewhere")
    layout.restore_newest(str(tmp_path))
    assert checkpoints(tmp_path) == {"model.pt": "whole"}
    assert layout.read_serial(str(tmp_path)) == 3, "later than the torn one too"


@pytest.mark.parametrize(
    "files",
    [
        {"../outside": 1},
        {"/etc/passwd": 1},
        {"checkpoints/../../x": 1},
        {"checkpoints/.hidden": 1},
        {"a": "b"},
    ],
)
def test_a_manifest_with_names_outside_its_directory_is_rejected(
    tmp_path: Path, files: dict[str, Any]
) -> None:
    fill(tmp_path, {"manifest.json": json.dumps({"version": 1, "serial": 1, "files": files, "links": {}})})
    assert manifest.read(str(tmp_path)) is None


def test_links_between_checkpoints_are_restored_after_a_transfer(tmp_path: Path) -> None:
    layout.restore_newest(str(tmp_path))
    place = tmp_path / "travel/checkpoints"
    fill(place, {"epoch-1/model.pt": "1"})
    (place / "last").symlink_to("epoch-1")
    (place / "out").symlink_to("/etc")
    (place / "deep").mkdir()
    (place / "deep" / "pipe").symlink_to("../epoch-1/model.pt")
    (place / "epoch-1/model.pt").chmod(0)
    layout.pack(str(tmp_path))
    assert not [path for path in place.rglob("*") if path.is_symlink()], "HTCondor would hold the job for it"
    assert (place / "epoch-1/model.pt").stat().st_mode & 0o400
    layout.restore_newest(str(tmp_path))
    assert (place / "deep" / "pipe").read_text() == "1"
    assert (place / "last").readlink() == Path("epoch-1")
    assert not (place / "out").is_symlink()


def test_links_that_together_lead_outside_are_not_restored(tmp_path: Path) -> None:
    layout.restore_newest(str(tmp_path))
    place, outside = tmp_path / "travel/checkpoints", tmp_path / "home" / "user"
    fill(outside, {"diary": "mine"})
    fill(place, {"epoch-1/model.pt": "1"})
    links = {
        "checkpoints/far/down/up": "../../epoch-1",
        "checkpoints/one": "far/down/up",
        "checkpoints/good": "epoch-1",
        "checkpoints/chain": "good/model.pt",
        "checkpoints/planted/user": "../epoch-1",
        "checkpoints/gone": "planted/user/diary",
    }
    (place / "far").symlink_to(outside.parent)
    (place / "planted").symlink_to(outside.parent)
    (tmp_path / "travel/manifest.json").write_bytes(
        manifest.DirectoryManifest(5, {"checkpoints/epoch-1/model.pt": 1}, links).to_json()
    )
    before = sorted(path.name for path in outside.parent.rglob("*"))
    layout.restore_newest(str(tmp_path))
    assert (place / "chain").read_text() == "1"
    for name in links:
        path = tmp_path / "travel" / name
        assert not path.is_symlink() or path.resolve().is_relative_to(place.resolve()), name
    assert sorted(path.name for path in outside.parent.rglob("*")) == before
    assert (outside / "diary").read_text() == "mine"


def test_checkpoints_on_another_disk_come_back_with_the_job(tmp_path: Path) -> None:
    layout.restore_newest(str(tmp_path))
    disk = tmp_path / "disk"
    fill(disk, {"epoch-1/model.pt": "1"})
    (tmp_path / "travel/checkpoints").rmdir()
    (tmp_path / "travel/checkpoints").symlink_to(disk)
    layout.pack(str(tmp_path))
    assert not (tmp_path / "travel/checkpoints").is_symlink()
    found = manifest.read(str(tmp_path / "travel"))
    assert found is not None and found.files == {"checkpoints/epoch-1/model.pt": 1}
    assert manifest.is_whole(str(tmp_path / "travel"), found)
    assert (disk / "epoch-1/model.pt").read_text() == "1"


def test_the_logs_of_a_killed_leg_are_kept_and_legs_are_numbered_from_there(tmp_path: Path) -> None:
    fill(tmp_path / "travel", {"claim.json": '{"job": "7.0"}', "events.jsonl": "one\ntwo\n"})
    news = {"claim.json": '{"job": "7.0"}', "events.jsonl": "one\n", "leg-2/claim.json": '{"job": "7.0"}'}
    fill(tmp_path / "committed/news", {**news, "leg-2/events.jsonl": "three\n", "training.log": "step 1\n"})
    layout.restore_newest(str(tmp_path))
    back = tmp_path / "travel"
    assert (back / "events.jsonl").read_text() == "one\ntwo\n"
    assert (back / "leg-2/events.jsonl").read_text() == "three\n"
    assert (back / "training.log").read_text() == "step 1\n"
    assert [leg.number for leg, _ in legs.claimed(str(back))] == [1, 2]


def test_unfinished_outputs_are_restored_where_the_next_leg_expects_them(tmp_path: Path) -> None:
    claims = {"claim.json": '{"job": "7.0"}', "leg-2/claim.json": '{"job": "7.0"}'}
    fill(tmp_path / "committed/news", claims)
    commit(tmp_path, 4, {"unfinished/output/rows.csv": "1\n2\n"})
    layout.restore_newest(str(tmp_path))
    order = make_order(tmp_path)
    taken, leg = legs.claim_next(order, "7.0", "here")
    assert leg.number == 3
    assert taken.previous_scratch is not None
    assert contents(Path(taken.previous_scratch)) == {"output/rows.csv": "1\n2\n"}


# Commits.


def make_order(home: Path, **changes: Any) -> WorkOrder:
    back = home / "travel"
    plain: dict[str, Any] = {
        "token": "b-1",
        "experiment": "/nowhere",
        "run": "r",
        "number": 1,
        "command": ("true",),
        "exchange": str(back),
        "scratch": str(back / "unfinished"),
        "checkpoints": str(back / "checkpoints"),
        "log": str(back / "training.log"),
        "sandbox": True,
        "commit": "chirp",
        "commit_every": 100.0,
    }
    return WorkOrder(**{**plain, **changes})


class Job:
    """A leg in a sandbox, with a clock that a test moves."""

    def __init__(self, home: Path, pool: Pool | None, **changes: Any) -> None:
        self.home, self.pool = home, pool
        self.now = 1000.0
        restored = layout.restore_newest(str(home))
        self.order, self.leg = legs.claim_next(make_order(home, **changes), "7.0", "here")
        self.events_path = Path(self.leg.events_path)
        self.place = home / "travel/checkpoints"
        self.output = home / "travel/unfinished/output"
        environ = pool.environ if pool else {}
        log = EventLog(self.leg.events_path)
        log.write("claimed", host="here")
        self.commits = Committer(
            self.order, self.leg, log, str(self.output), restored, environ, lambda: self.now
        )

    def poll(self, changed: bool = False, after: float = 1.0) -> None:
        """Poll the committer once, as the supervision does, and wait for the work that it starts."""
        self.now += after
        self.commits.poll(changed)
        work = self.commits._work
        if work is not None:
            work.join(30)
            self.commits._collect()

    def events(self, kind: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.events_path.read_text().splitlines()]
        return [line for line in lines if line["event"] == kind]


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    with chirp_server(tmp_path / "access-point") as pool:
        yield pool


@pytest.fixture
def job(tmp_path: Path, pool: Pool) -> Iterator[Job]:
    job = Job(tmp_path / "sandbox", pool)
    yield job
    job.commits.finish()


def committed(pool: Pool) -> dict[str, str]:
    found = layout.newest_commit(str(pool.root))
    return (
        {} if found is None else {k: v for k, v in contents(Path(found[0])).items() if k != "manifest.json"}
    )


def test_the_begin_of_a_leg_is_reported_at_once(job: Job, pool: Pool) -> None:
    job.poll()
    claims = legs.claimed(str(pool.root / "committed/news"))
    assert [holder.job for _, holder in claims] == ["7.0"]
    assert committed(pool) == {}


def test_checkpoints_and_unfinished_outputs_are_committed_when_due_and_the_directory_is_quiet(
    job: Job, pool: Pool
) -> None:
    job.poll()
    fill(job.place, {"model.pt": "1", "deep/er/opt.pt": "2", ".half.tmp": "x", "empty": ""})
    fill(job.output, {"rows.csv": "r"})
    job.poll(changed=True)
    assert committed(pool) == {}, "not yet time"
    job.poll(changed=True, after=100)
    assert committed(pool) == {}, "not quiet"
    job.poll()
    assert committed(pool) == {
        "checkpoints/model.pt": "1",
        "checkpoints/deep/er/opt.pt": "2",
        "checkpoints/empty": "",
        "unfinished/output/rows.csv": "r",
    }
    assert [event["bytes"] for event in job.events("committed")] == [3]


def test_a_directory_that_is_never_quiet_is_committed_after_twice_the_interval(job: Job, pool: Pool) -> None:
    job.poll()
    fill(job.place, {"model.pt": "1"})
    job.poll(changed=True, after=150)
    assert committed(pool) == {}
    job.poll(changed=True, after=60)
    assert committed(pool) == {"checkpoints/model.pt": "1"}


def test_nothing_is_sent_when_nothing_has_changed(job: Job, pool: Pool) -> None:
    job.poll()
    job.poll(after=500)
    assert job.events("committed") == []


def test_unchanged_files_are_not_sent_again_and_deletions_are_applied(job: Job, pool: Pool) -> None:
    job.poll()
    fill(job.place, {"a": "aaa", "b": "bb", "c": "c"})
    job.poll(changed=True)
    job.poll(after=100)
    fill(job.place, {"b": "new b"})
    (job.place / "c").unlink()
    job.poll(changed=True)
    job.poll(after=100)
    assert committed(pool) == {"checkpoints/a": "aaa", "checkpoints/b": "new b"}
    assert [event["bytes"] for event in job.events("committed")] == [6, 5]
    assert len(list((pool.root / "committed").glob("commit-*"))) == 1, "older ones are cleared away"


def test_files_from_the_restored_commit_are_not_sent_back(tmp_path: Path, pool: Pool) -> None:
    for place in (pool.root, tmp_path / "sandbox"):
        commit(place, 0, {"checkpoints/" + STEP % (1, 1) + "/state.bin": "given"})
    job = Job(tmp_path / "sandbox", pool)
    job.poll()
    fill(job.place, {STEP % (2, 2) + "/state.bin": "22"})
    job.poll(changed=True)
    job.poll(after=100)
    assert sorted(committed(pool).values()) == ["22", "given"]
    assert [event["bytes"] for event in job.events("committed")] == [2]
    job.commits.finish()


def test_without_links_on_the_access_point_all_files_are_sent_again(job: Job, pool: Pool) -> None:
    pool.refuse["link"] = -127
    job.poll()
    for content in ("1", "2"):
        fill(job.place, {"a": "aaa", "b": content})
        job.poll(changed=True)
        job.poll(after=100)
    assert committed(pool) == {"checkpoints/a": "aaa", "checkpoints/b": "2"}


def test_a_complete_state_exists_at_every_moment_of_a_commit(tmp_path: Path) -> None:
    """Close the connection before each request in turn: the old or the new state exists, never a mixture."""
    for cut in range(100):
        home = tmp_path / str(cut)
        with chirp_server(home / "access-point") as pool:
            job = Job(home / "sandbox", pool)
            job.poll()
            fill(job.place, {"a": "old a", "b": "old b"})
            job.poll(changed=True)
            job.poll(after=100)
            old, begun = committed(pool), len(pool.requests)
            fill(job.place, {"a": "new a", "b": "new b", "c": "new c"})
            job.poll(changed=True)
            pool.hang_up_at = begun + cut
            job.poll(after=100)
            new = {"checkpoints/" + name: "new " + name for name in "abc"}
            assert committed(pool) in (old, new)
            whole = len(pool.requests) <= begun + cut
            pool.hang_up_at = None
            if job.events("warning"):
                assert "retrying in 30 s" in job.events("warning")[-1]["text"]
                job.poll(after=30)
            assert committed(pool) == new
            job.commits.finish()
        if whole:
            break
    assert 15 < cut < 99


def test_the_pauses_between_failing_commits_grow(job: Job, pool: Pool) -> None:
    job.poll()
    pool.refuse["open"] = -6
    fill(job.place, {"a": "1"})
    job.poll(changed=True)
    job.poll(after=100)
    for pause in (30, 60):
        job.poll(after=pause - 2)
        failed = len(job.events("warning"))
        job.poll(after=3)
        assert len(job.events("warning")) == failed + 1
    assert "no space left on the access point" in job.events("warning")[-1]["text"]


def test_a_file_that_changes_while_it_is_sent_prevents_the_commit(job: Job, pool: Pool) -> None:
    job.poll()
    fill(job.place, {"a": "1"})
    job.poll(changed=True)
    pool.wait_at = "close"
    job.now += 100
    job.commits.poll(False)
    assert pool.waiting.wait(10)
    with open(job.place / "a", "a") as file:
        file.write("more")
    pool.proceed.set()
    job.poll()
    assert committed(pool) == {}
    assert "changed while it was sent" in job.events("warning")[-1]["text"]
    job.poll(after=31)
    assert committed(pool) == {"checkpoints/a": "1more"}


def test_a_checkpoint_that_is_removed_while_it_is_sent_is_sent_completely(job: Job, pool: Pool) -> None:
    job.poll()
    fill(job.place, {STEP % (1, 1) + "/" + name: name * 10 for name in ("manifest.json", "state.bin")})
    job.poll(changed=True)
    pool.wait_at = "open"
    job.now += 100
    job.commits.poll(False)
    assert pool.waiting.wait(10)
    shutil.rmtree(job.place / (STEP % (1, 1)))
    pool.proceed.set()
    job.poll()
    assert len(committed(pool)) == 2


def test_a_commit_under_way_does_not_delay_the_end(job: Job, pool: Pool) -> None:
    job.poll()
    fill(job.place, {"a": "1"})
    job.poll(changed=True)
    pool.wait_at = "open"
    job.now += 100
    job.commits.poll(False)
    assert pool.waiting.wait(10)
    began = time.monotonic()
    job.commits.finish()
    work = job.commits._work
    assert work is not None and not work.is_alive()
    assert time.monotonic() - began < 5


def test_a_job_that_is_evicted_after_a_commit_resumes_from_its_own_files(job: Job, pool: Pool) -> None:
    job.poll()
    fill(job.place, {"a": "committed"})
    job.poll(changed=True)
    job.poll(after=100)
    fill(job.place, {"a": "saved at the end"})
    layout.pack(str(job.home))
    shutil.rmtree(job.home / "committed", ignore_errors=True)
    shutil.copytree(pool.root / "committed", job.home / "committed")
    layout.restore_newest(str(job.home))
    assert checkpoints(job.home) == {"a": "saved at the end"}


def test_live_progress_is_written_to_the_jobs_ad(job: Job, pool: Pool) -> None:
    job.poll()
    fill(job.home / "travel", {"progress.json": '{"event":"progress","step":1234}'})
    job.poll(after=61)
    assert pool.attributes["ChirpOutlastStep"] == "1234"
    assert abs(int(pool.attributes["ChirpOutlastHeard"]) - time.time()) < 60


def test_a_pool_that_refuses_attributes_still_gets_commits(job: Job, pool: Pool) -> None:
    pool.refuse["set_job_attr_delayed"] = -8
    job.poll()
    fill(job.place, {"a": "1"})
    job.poll(changed=True)
    job.poll(after=100)
    assert committed(pool) == {"checkpoints/a": "1"}
    assert job.events("warning") == []


# Without chirp.


def without_service(home: Path, pool: Pool) -> Job:
    return Job(home / "sandbox", None)


def without_files(home: Path, pool: Pool) -> Job:
    pool.refuse.update(mkdir=-8, open=-8)
    return Job(home / "sandbox", pool)


@pytest.mark.parametrize("begin", [without_service, without_files])
def test_without_chirp_checkpoints_are_committed_by_restarts_in_place(
    tmp_path: Path, pool: Pool, begin: Callable[[Path, Pool], Job]
) -> None:
    job = begin(tmp_path, pool)
    job.poll()
    assert "by restarts in place" in job.events("warning")[0]["text"]
    job.poll(after=101)
    assert not job.commits.wants_restart(), "nothing has been saved"
    job.poll(changed=True)
    job.poll()
    assert job.commits.wants_restart()
    job.commits.note_stopped(saved=True)
    assert job.commits.restarts


def test_by_default_checkpoints_are_committed_by_restarts_although_chirp_is_offered(
    tmp_path: Path, pool: Pool
) -> None:
    job = Job(tmp_path / "sandbox", pool, commit="auto")
    job.poll(changed=True)
    job.poll(after=101)
    assert pool.requests == [] and job.commits.wants_restart()
    assert job.events("warning") == []


def test_a_training_that_did_not_save_for_a_restart_is_not_restarted_again(tmp_path: Path) -> None:
    job = Job(tmp_path, None, commit="restart")
    job.poll(changed=True)
    job.poll(after=101)
    assert job.commits.wants_restart()
    job.commits.note_stopped(saved=False)
    again = Job(tmp_path, None, commit="restart")
    again.poll(changed=True)
    again.poll(after=101)
    assert not again.commits.wants_restart()


def test_transferred_checkpoints_are_no_reason_for_a_restart(tmp_path: Path) -> None:
    fill(tmp_path / "travel/checkpoints", {"a": "1"})
    job = Job(tmp_path, None, commit="restart")
    job.poll(after=500)
    assert not job.commits.wants_restart()


def test_commit_never_makes_no_commits(tmp_path: Path, pool: Pool) -> None:
    job = Job(tmp_path / "sandbox", pool, commit="never")
    job.poll(changed=True)
    job.poll(after=500)
    assert pool.requests == [] and not job.commits.wants_restart()


def test_only_the_job_that_began_an_attempt_continues_it(tmp_path: Path) -> None:
    job = Job(tmp_path, None)
    with pytest.raises(legs.NotClaimed):
        legs.claim_next(job.order, "8.0", "there")
    assert claim.read(Leg(1, str(tmp_path / "travel")).claim_path) is not None


@pytest.mark.parametrize("rights", [nullcontext, permissions_apply], ids=["root", "user"])
def test_checkpoints_without_permissions_are_packed(
    tmp_path: Path, rights: Callable[[], AbstractContextManager[None]]
) -> None:
    step = STEP % (1, 1)
    fill(tmp_path / "travel" / "checkpoints", {f"{step}/part": "weights"})
    os.link(tmp_path / "travel" / "checkpoints" / step / "part", tmp_path / "travel" / "checkpoints" / "best")
    for path in (step + "/part", step, "."):
        (tmp_path / "travel" / "checkpoints" / path).chmod(0)
    with rights():
        layout.pack(str(tmp_path))
        packed = manifest.read(str(tmp_path / "travel"))
        assert packed is not None
        assert packed.files == {f"checkpoints/{step}/part": 7, "checkpoints/best": 7}
        assert set(checkpoints(tmp_path).values()) == {"weights"}
