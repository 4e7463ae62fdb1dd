"""Secrets in the environment of the submitting process do not leave it."""

from __future__ import annotations

import os

from support.experiments import GATED, Lab, processes_with

SECRET = "hunter2-%s" % os.urandom(8).hex()
NAMES = ("SECRET_TOKEN", "AWS_SECRET_ACCESS_KEY", "WANDB_API_KEY", "HF_TOKEN", "SSH_AUTH_SOCK")


def test_no_secret_is_in_a_file_a_job_name_an_argument_or_a_jobs_environment(lab: Lab) -> None:
    gate = lab.root / "gate"
    text = "env; " + GATED
    quiet = lab.experiment("quiet", {"train.sh": text}, command="sh train.sh %s" % gate, outputs=["out.txt"])
    lab.environment.update(dict.fromkeys(NAMES, SECRET), https_proxy="http://me:%s@proxy:3128" % SECRET)
    run = lab.start("run", quiet)
    lab.running_job(quiet)
    for name in (*NAMES, "https_proxy"):
        del lab.environment[name]
    shown = [lab.outlast(command, quiet, "--json").stdout for command in ("status", "report")]
    assert not [pid for pid in processes_with(SECRET) if pid != run.pid], "a process shows the secret"
    gate.touch()
    ended = lab.finish(run)
    assert ended.returncode == 0, ended.output
    files = [path for path in lab.root.rglob("*") if path.is_file()]
    assert {"journal.sqlite", "jobs.jsonl", "001.log"} <= {path.name for path in files}
    assert [path for path in files if SECRET.encode() in path.read_bytes()] == []
    assert SECRET not in ended.output + "".join(shown)
