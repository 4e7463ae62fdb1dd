"""`env:` reaches the training process, and a secret from a file reaches nothing else."""

from __future__ import annotations

import os

from support.experiments import Lab

SECRET = "hunter2-%s" % os.urandom(8).hex()
TRAIN = """\
[ "$WANDB_API_KEY" = "$(cat "$1")" ] || exit 3
echo "$WANDB_MODE $HF_HOME" > "$OUTLAST_OUTPUT_DIR/out.txt"
"""


def test_variables_reach_the_training_and_a_secret_nothing_else(lab: Lab) -> None:
    key = lab.root / "key"
    key.write_text(SECRET + "\n")
    key.chmod(0o600)
    lab.environment["HF_HOME"] = "/big/hf"
    env = {"WANDB_MODE": "offline", "HF_HOME": {"from": "shell"}, "WANDB_API_KEY": {"file": str(key)}}
    path = lab.experiment(
        "mine", {"train.sh": TRAIN}, command="sh train.sh %s" % key, outputs=["out.txt"], env=env
    )
    shown = lab.outlast("check", path)
    assert "env       WANDB_MODE, HF_HOME, WANDB_API_KEY from a file" in shown.stdout, shown.output
    ended = lab.outlast("run", path)
    assert ended.returncode == 0, ended.output
    assert (path / "results/mine/out.txt").read_text() == "offline /big/hf\n"
    texts = [lab.outlast(name, path, "--json").stdout for name in ("status", "report", "explain")]
    assert SECRET not in ended.output + shown.output + "".join(texts)
    files = [one for one in lab.root.rglob("*") if one.is_file() and one != key]
    assert [one for one in files if SECRET.encode() in one.read_bytes()] == []


def test_a_secret_whose_file_is_gone_ends_the_run_with_its_name_and_path(lab: Lab) -> None:
    key = lab.root / "key"
    key.write_text(SECRET)
    key.chmod(0o600)
    path = lab.experiment(
        "mine",
        {},
        command="rm -f %s" % key,  # the first run takes it from the second
        code=[],
        runs=2,
        parallel=1,
        env={"WANDB_API_KEY": {"file": str(key)}},
    )
    ended = lab.outlast("run", path)
    assert ended.returncode == 1
    assert "The value of WANDB_API_KEY cannot be read from %s: No such file" % key in ended.output
    assert SECRET not in ended.output
