"""`outlast retry --again` and `--from-scratch`: another result for a finished run; the earlier one stays."""

from __future__ import annotations

from pathlib import Path

from support.experiments import Lab

TRAIN = """\
count=$(cat "$OUTLAST_CHECKPOINT_DIR/count" 2>/dev/null || echo 0)
count=$((count + 1))
echo "$count" > "$OUTLAST_CHECKPOINT_DIR/count"
echo "$1 $count" > "$OUTLAST_OUTPUT_DIR/out.txt"
"""


def test_a_finished_run_continues_with_the_new_parameters_and_keeps_its_earlier_result(lab: Lab) -> None:
    keys = {"outputs": ["out.txt"], "code": ["train.sh"], "name": "mine"}
    path = lab.experiment("mine", {"train.sh": TRAIN}, command="sh train.sh short", outputs=["out.txt"])
    assert lab.outlast("run", path).returncode == 0
    lab.params(path, **keys, command="sh train.sh long")
    refused = lab.outlast("retry", "mine", "-C", path)
    assert refused.returncode == 2
    assert "mine is finished; `outlast retry --again mine` continues it" in refused.output
    hint = lab.outlast("submit", path)
    assert "outlast retry --again" in hint.output
    again = lab.outlast("retry", "--again", "mine", "-C", path)
    assert again.returncode == 0, again.output
    assert lab.outlast("up", path).returncode == 0
    assert (path / "results/mine/out.txt").read_text() == "long 2\n"
    (before,) = path.glob("results/mine.before-*")
    assert (before / "out.txt").read_text() == "short 1\n"
    report = lab.outlast("report", path, "--json").json
    assert [one["uses"].get("lost work", 0) for one in report["attempts"]] == [0, 0]


def test_from_scratch_moves_the_checkpoints_aside_and_names_them(lab: Lab) -> None:
    path = lab.experiment("mine", {"train.sh": TRAIN}, command="sh train.sh x", outputs=["out.txt"])
    assert lab.outlast("run", path).returncode == 0
    found = lab.outlast("retry", "--again", "--from-scratch", "--json", "mine", "-C", path)
    assert found.returncode == 0, found.output
    assert lab.outlast("up", path).returncode == 0
    assert (path / "results/mine/out.txt").read_text() == "x 1\n"
    (aside,) = [name for name in found.json["moved_aside"] if "checkpoints" in name]
    assert Path(aside, "count").read_text() == "1\n"
