"""`outlast status` while nobody supervises: what is so now, not what was last recorded."""

from __future__ import annotations

from support.experiments import GATED, Lab, open_journal


def test_status_follows_a_job_from_its_start_to_its_end_without_a_controller(lab: Lab) -> None:
    gate = lab.root / "gate"
    live = lab.experiment("live", {"train.sh": GATED}, command="sh train.sh %s" % gate, outputs=["out.txt"])
    assert lab.outlast("submit", live).returncode == 0
    lab.running_job(live)
    with open_journal(live) as journal:
        (attempt,) = journal.attempts()
    assert attempt.state.value == "queued", "nothing has observed the start"
    run = lab.outlast("status", live, "--json").json["runs"][0]
    assert run["now"]["state"] == "running" and (run["cluster"], run["cpus"], run["gpus"]) == ("local", 1, 0)
    assert " running " in lab.outlast("status", live).stdout
    assert lab.outlast("status", live, "--refresh", "--json").json["runs"][0]["now"]["state"] == "running"
    gate.touch()

    def now() -> dict[str, str]:
        found: dict[str, str] = lab.outlast("status", live, "--json").json["runs"][0]["now"]
        return found

    lab.until("the end in status", lambda: now()["state"] == "ended")
    assert (
        now()["detail"] == "attempt 1 ended as finished; `outlast up` or `outlast tick` publishes its results"
    )
    assert lab.outlast("tick", live).returncode == 0
    assert now()["state"] == "finished"
