"""No file that a training made is lost: not between attempts, not for want of a rule, not by a check."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from support.experiments import Lab

#: Writes what people's scripts write into their working directory, and ends.
FORGETFUL = """\
import os
open("model.pt", "w").write("weights")
os.makedirs("plots/.cache", exist_ok=True)
open("plots/loss.txt", "w").write("down")
open("plots/.cache/state", "w").write("hidden")
open("config.json", "w").write('{"layers": 2}')
os.makedirs("__pycache__", exist_ok=True)
open("__pycache__/train.pyc", "w").write("cache")
os.symlink("model.pt", "best.pt")
"""

#: Appends to a log and keeps its best model, part by part. How a part ends is the word at its place.
PARTS = """\
import os, signal, sys, time
parts = sys.argv[1].split(",")
place = os.path.join(os.environ["OUTLAST_CHECKPOINT_DIR"], "part")
part = int(open(place).read()) if os.path.exists(place) else 0
assert os.path.exists("best.pt") == (part > 0), os.listdir(".")
if part == 0:
    open("best.pt", "w").write("best of part 0")
with open("log.csv", "a") as log:
    log.write("part %d\\n" % part)
with open(place + ".tmp", "w") as file:
    file.write(str(part + 1))
os.replace(place + ".tmp", place)
print("part", part, flush=True)
end = parts[part]
if end == "crash":
    sys.exit(1)
if end == "continue":
    sys.exit(85)
while end != "finish":
    time.sleep(0.02)
"""


def results(directory: Path, run: str | None = None) -> dict[str, str]:
    place = directory / "results" / (run or directory.name)
    return {str(p.relative_to(place)): p.read_text() for p in sorted(place.rglob("*")) if p.is_file()}


def explained(lab: Lab, directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = lab.outlast("explain", directory / directory.name, "--json").json
    return found


@pytest.mark.parametrize("outputs", [[], ["model.pt"]], ids=["none named", "one named"])
def test_every_new_or_changed_file_is_in_the_results_and_nothing_else(lab: Lab, outputs: list[str]) -> None:
    files = {"train.py": FORGETFUL, "config.json": '{"layers": 1}', "unchanged.txt": "sent"}
    directory = lab.experiment("noout", files, command="python train.py", outputs=outputs)
    done = lab.outlast("run", directory)
    assert done.returncode == 0, done.output
    assert results(directory) == {
        "model.pt": "weights",
        "best.pt": "weights",
        "config.json": '{"layers": 2}',
        "plots/loss.txt": "down",
        "plots/.cache/state": "hidden",
    }
    assert "results are in results/noout" in done.output


def test_a_run_that_wrote_no_file_is_not_said_to_have_results(lab: Lab) -> None:
    directory = lab.experiment("silent", {"train.sh": "true\n"}, command="sh train.sh")
    done = lab.outlast("run", directory)
    assert done.returncode == 0 and "FINISHED" in done.output
    assert "results are in" not in done.output and "no files" in done.output


def test_files_above_the_limit_stay_and_are_named_with_their_path(lab: Lab) -> None:
    script = "open('small.txt', 'w').write('s' * 100); open('large.bin', 'w').write('l' * 5000)\n"
    files = {"train.py": script}
    directory = lab.experiment("large", files, command="python train.py", other_outputs="1kB")
    done = lab.outlast("run", directory)
    assert done.returncode == 0, done.output
    assert list(results(directory)) == ["small.txt"]
    (left,) = directory.glob("workdir/large/*/left")
    assert (left / "large.bin").read_text() == "l" * 5000
    for shown in (done.output, lab.outlast("explain", directory / "large").output):
        assert str(left) in shown and "5 kB" in shown and "other_outputs" in shown
    # The next attempts leave it alone, too.
    again = lab.outlast("retry", directory / "large", "--again")
    assert again.returncode == 0 and lab.outlast("up", directory).returncode == 0
    assert (left / "large.bin").read_text() == "l" * 5000


@pytest.mark.parametrize(
    "limit, said", [(None, "2 GB"), ("0B", "stay in workdir"), ("5 GB", "5 GB")], ids=str
)
def test_check_says_what_is_kept(lab: Lab, limit: str | None, said: str) -> None:
    keys = {} if limit is None else {"other_outputs": limit}
    directory = lab.experiment("said", {"train.py": FORGETFUL}, command="python train.py", **keys)
    done = lab.outlast("check", directory)
    assert done.returncode == 0 and said in done.output and "working directory" in done.output
    found = lab.outlast("check", directory, "--json").json
    assert found["other_outputs"] == {None: 2 * 10**9, "0B": 0, "5 GB": 5 * 10**9}[limit]


def test_files_in_the_working_directory_are_back_in_every_next_attempt(lab: Lab) -> None:
    """After "continue", a crash, a kill without warning, an eviction with notice, and the wall-time limit."""
    ends = "continue,crash,kill,evict,limit,finish"
    directory = lab.experiment(
        "parts",
        {"train.py": PARTS},
        command="python train.py %s" % ends,
        outputs=["best.pt"],
        resources={"time": "10s"},
        checkpoints={"grace": "1s"},
    )
    process = lab.start("run", directory)
    for number, harm in ((3, "kill"), (4, "evict")):
        log = directory / "logs" / "parts" / ("%03d.log" % number)
        lab.until("attempt %d" % number, lambda log=log: log.exists() and "part" in log.read_text())
        view = lab.running_job(directory)
        getattr(lab.scheduler(directory), harm)(view.token)
    done = lab.finish(process)
    assert done.returncode == 0, done.output
    assert results(directory) == {
        "best.pt": "best of part 0",
        "log.csv": "".join("part %d\n" % part for part in range(6)),
    }


#: Writes a number below its bound, and a log that counts the attempts.
BELOW = """\
import json
json.dump({"accuracy": 0.998}, open("metrics.json", "w"))
open("log.csv", "a").write("line\\n")
"""
BOUND = {"path": "metrics.json", "key": "accuracy", "at_least": 0.9999}


def test_a_number_out_of_bounds_is_not_tried_again_and_can_be_accepted(lab: Lab) -> None:
    directory = lab.experiment("below", {"train.py": BELOW}, command="python train.py", outputs=[BOUND])
    done = lab.outlast("run", directory)
    rejected = directory / "results" / "below.rejected"
    assert done.returncode == 1 and str(rejected) in done.output and "outlast accept below" in done.output
    assert len(explained(lab, directory)["attempts"]) == 1
    assert not (directory / "results" / "below").exists()
    note = (rejected / "OUTLAST-REJECTED.txt").read_text()
    assert "accuracy = 0.998" in note and "at least 0.9999" in note
    assert json.loads((rejected / "metrics.json").read_text()) == {"accuracy": 0.998}
    accepted = lab.outlast("accept", directory / "below")
    assert accepted.returncode == 0, accepted.output
    assert results(directory) == {"metrics.json": '{"accuracy": 0.998}', "log.csv": "line\n"}
    assert not rejected.exists()
    entries = [(entry["kind"], entry.get("by")) for entry in explained(lab, directory)["entries"]]
    assert entries[-2:] == [("accepted", "user"), ("finished", None)]
    assert lab.outlast("status", directory, "--json").json["runs"][0]["state"] == "finished"
    again = lab.outlast("accept", directory / "below")
    assert again.returncode == 2 and "nothing to accept" in again.output


def test_a_retry_after_a_rejection_continues_and_does_not_change_what_was_rejected(lab: Lab) -> None:
    directory = lab.experiment("below", {"train.py": BELOW}, command="python train.py", outputs=[BOUND])
    assert lab.outlast("run", directory).returncode == 1
    bound = {**BOUND, "at_least": 0.5}
    lab.params(directory, name="below", code=["train.py"], command="python train.py", outputs=[bound])
    assert lab.outlast("retry", directory / "below").returncode == 0
    assert lab.outlast("up", directory).returncode == 0
    assert results(directory)["log.csv"] == "line\nline\n"
    assert results(directory, "below.rejected")["log.csv"] == "line\n"


def test_an_output_that_is_missing_twice_leaves_the_others_in_the_rejected_results(lab: Lab) -> None:
    files = {"train.py": BELOW}
    directory = lab.experiment("gone", files, command="python train.py", outputs=["model.pt", "metrics.json"])
    done = lab.outlast("run", directory)
    assert done.returncode == 1 and "model.pt is missing" in done.output
    assert len(explained(lab, directory)["attempts"]) == 2
    assert results(directory, "gone.rejected")["log.csv"] == "line\nline\n"


def test_a_changed_file_of_the_code_comes_back_and_gives_way_to_other_code(lab: Lab) -> None:
    script = """\
import sys
text = open("state.txt").read()
if text.startswith("old"):
    open("state.txt", "a").write("+")
    sys.exit(1)
"""
    files = {"train.py": script, "state.txt": "old"}
    directory = lab.experiment("state", files, command="python train.py")
    assert lab.outlast("run", directory).returncode == 1
    (directory / "state.txt").write_text("new")
    assert lab.outlast("retry", directory / "state").returncode == 0
    assert lab.outlast("up", directory).returncode == 0
    assert results(directory) == {"state.txt.earlier": "old++"}


#: Leaves everything behind that is hard to carry; its second attempt finds a directory in place of a file.
HOSTILE = """\
import os, socket, sys
outside, first = sys.argv[1], not os.path.exists("log.csv")
open("log.csv", "a").write("line\\n")
if first:
    open("changes", "w").write("a file")
    for number in range(3000):
        open("small-%d" % number, "w").close()
    os.mkfifo("pipe")
    socket.socket(socket.AF_UNIX).bind("socket")
    os.symlink(outside, "out")
    os.symlink(outside + "/victim", "victim")
    os.symlink("log.csv", "inside")
    for name in ("locked", "locked-directory/file"):
        os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
        open(name, "w").write("locked")
        os.chmod(name, 0)
    os.chmod("locked-directory", 0)
    open(b"latin-\\xe9", "w").write("not UTF-8")
    with open("sparse.bin", "w") as file:
        file.truncate(3 * 10**9)
    for place in (".", os.environ["OUTLAST_OUTPUT_DIR"]):
        os.chdir(place)
        for _ in range(300):
            os.mkdir("deep")
            os.chdir("deep")
        open("model.pt", "w").write(os.path.basename(place))
        os.chdir(os.path.dirname(os.path.abspath(sys.argv[0])))
    sys.exit(1)
os.unlink("changes")
os.mkdir("changes")
open("changes/inner", "w").write("a directory")
assert os.path.islink("out") and os.path.islink("victim"), os.listdir(".")
assert open("locked").read() == "locked" and os.path.exists(b"latin-\\xe9")
"""


def test_nothing_that_a_training_leaves_behind_hangs_harms_or_is_lost_silently(
    lab: Lab, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "victim").write_text("untouched")
    (outside / "victim").chmod(0o400)
    command = "python train.py %s" % outside
    directory = lab.experiment("hostile", {"train.py": HOSTILE}, command=command)
    done = lab.outlast("run", directory)
    assert done.returncode == 0, done.output
    place = directory / "results" / "hostile"
    small = [path for path in place.iterdir() if path.name.startswith("small-")]
    assert len(small) == 3000
    assert (place / "log.csv").read_text() == "line\nline\n" == (place / "inside").read_text()
    assert (place / "changes/inner").read_text() == "a directory"
    assert (place / "locked").read_text() == "locked" == (place / "locked-directory/file").read_text()
    assert Path(os.fsdecode(os.fsencode(place) + b"/latin-\xe9")).read_text() == "not UTF-8"
    deep = [os.path.join(top, name) for top, _, names in os.walk(place) for name in names if "model" in name]
    assert sorted(Path(path).read_text() for path in deep) == [".", "output"]
    (left,) = directory.glob("workdir/hostile/*/left")
    assert (left / "sparse.bin").stat().st_size == 3 * 10**9 and str(left) in done.output
    assert not [name for name in ("pipe", "socket", "out", "victim") if os.path.lexists(place / name)]
    assert (outside / "victim").read_text() == "untouched"
    assert (outside / "victim").stat().st_mode & 0o777 == 0o400
    assert "nested too deeply" in lab.outlast("explain", directory / "hostile").output
