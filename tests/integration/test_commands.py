"""The commands as users and scripts run them: real processes, pipes instead of a terminal."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from outlast.domain.model import EntryKind
from support.experiments import GATED, Ended, Lab, open_journal, states

PLAIN, BUG, HELD = "mix-kind=plain", "mix-kind=bug", "mix-kind=held"


@pytest.fixture(scope="module")
def mixed() -> Iterator[tuple[Lab, Path, Ended]]:
    """An experiment with one run finished, one failed and one cancelled, and the output of `up`."""
    root = Path(tempfile.mkdtemp(prefix="ol-"))
    lab = Lab(root)
    try:
        mix = lab.experiment(
            "mix",
            command="sh train.sh {kind}",
            sweep={"kind": ["plain", "bug", "held"]},
            outputs=["first.txt"],
            checkpoints={"grace": "1s"},
        )
        lab.outlast("submit", mix)
        lab.running_job(mix, HELD)
        lab.outlast("cancel", HELD, "-C", mix)
        yield lab, mix, lab.outlast("up", mix)
    finally:
        lab.close()
        shutil.rmtree(root, ignore_errors=True)


Mixed = tuple[Lab, Path, Ended]


def test_up_prints_what_happened_to_each_run_and_exits_with_1_if_one_failed(mixed: Mixed) -> None:
    _, path, up = mixed
    assert up.returncode == 1
    assert "FINISHED: results are in results/%s" % PLAIN in up.stdout
    assert "FAILED: the same failure twice" in up.stdout and "| no such layer" in up.stdout
    assert "all runs have ended: 1 cancelled, 1 failed, 1 finished" in up.stdout
    assert "outlast explain %s" % (path / BUG) in up.stdout and "outlast report" in up.stdout


def test_up_on_an_experiment_that_has_ended_reports_the_same_again(mixed: Mixed) -> None:
    lab, mix, _ = mixed
    again = lab.outlast("up", mix, "--json")
    assert again.returncode == 1
    assert again.json == {
        "runs": {"cancelled": 1, "failed": 1, "finished": 1},
        "failed": [BUG],
        "held_back": [],
    }


def test_status_lists_every_run(mixed: Mixed) -> None:
    lab, mix, _ = mixed
    text = lab.outlast("status", mix)
    assert text.returncode == 0
    for run, state in ((PLAIN, "finished"), (BUG, "failed"), (HELD, "cancelled")):
        assert re.search("^%s +%s" % (re.escape(run), state), text.stdout, re.M), text.stdout
    found = lab.outlast("status", "--json", cwd=mix).json
    assert found["counts"] == {"finished": 1, "failed": 1, "cancelled": 1} and found["controller"] is None
    assert [(run["run"], run["state"]) for run in found["runs"]] == [
        (PLAIN, "finished"),
        (BUG, "failed"),
        (HELD, "cancelled"),
    ]


def test_explain_shows_what_was_decided_in_each_attempt_and_why(mixed: Mixed) -> None:
    lab, mix, _ = mixed
    text = lab.outlast("explain", PLAIN, "-C", mix).stdout
    assert re.findall(r"^attempt (\d): (\S+)", text, re.M) == [
        ("1", "continue"),
        ("2", "continue"),
        ("3", "finished"),
    ]
    assert "attempt 2 ended as continue" in text and "with a new checkpoint; continue" in text
    assert "cancelled by the user" in lab.outlast("explain", HELD, cwd=mix).stdout
    found = lab.outlast("explain", "bug", "-C", mix, "--json").json
    assert (found["run"], found["state"], len(found["attempts"])) == (BUG, "failed", 2)
    assert [entry["kind"] for entry in found["entries"]][-1] == "failed"


def test_report_books_every_second_of_every_attempt(mixed: Mixed) -> None:
    lab, mix, _ = mixed
    text = lab.outlast("report", mix).stdout
    assert "slot time" in text and "useful" in text and PLAIN in text
    found = lab.outlast("report", mix, "--json").json
    assert len(found["attempts"]) == 6
    assert sum(found["uses"].values()) == pytest.approx(found["slot"], abs=1e-6)
    for attempt in found["attempts"]:
        assert sum(attempt["uses"].values()) == pytest.approx(attempt["slot"], abs=1e-6)


def test_logs_prints_the_last_attempt_or_the_given_one(mixed: Mixed) -> None:
    lab, mix, _ = mixed
    assert lab.outlast("logs", PLAIN, "-C", mix).stdout == "plain: part 3\n"
    assert lab.outlast("logs", mix / PLAIN, "--attempt", "1").stdout == "plain: part 1\n"
    assert lab.outlast("logs", PLAIN, "-C", mix, "-f", "--attempt", "2").stdout == "plain: part 2\n"
    missing = lab.outlast("logs", PLAIN, "-C", mix, "--attempt", "9")
    assert missing.returncode == 2 and "has 3 attempts; there is no attempt 9" in missing.stderr


def test_nothing_is_coloured_if_the_output_is_not_a_terminal(mixed: Mixed) -> None:
    lab, mix, up = mixed
    outputs = [up.output]
    for words in (("status", mix), ("explain", BUG, "-C", mix), ("report", mix), ("check", mix), ("--help",)):
        outputs.append(lab.outlast(*words, TERM="xterm-256color").output)
    assert all(outputs) and "\x1b" not in "".join(outputs)


def test_submitting_again_changes_nothing(mixed: Mixed) -> None:
    lab, mix, _ = mixed
    before = states(mix)
    again = lab.outlast("submit", mix)
    assert again.returncode == 0 and "3 runs already submitted; not changed" in again.stdout
    assert lab.outlast("submit", mix, "--json").json["submitted"] == []
    assert states(mix) == before
    with open_journal(mix) as journal:
        assert sum(row.entry.kind is EntryKind.ADDED for row in journal.entries()) == 3


def test_status_does_not_import_the_heavy_libraries(mixed: Mixed) -> None:
    lab, mix, _ = mixed
    probe = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "outlast", "status", str(mix)],
        env=lab.environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert probe.returncode == 0
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in probe.stderr.splitlines()}
    assert "click" in imported and "sqlite3" in imported
    assert not imported & {"pydantic", "pydantic_core", "ruamel", "rich", "numpy", "asyncio"}


def test_cancel_and_retry_refuse_runs_that_have_ended_or_finished(mixed: Mixed) -> None:
    lab, mix, _ = mixed
    over = lab.outlast("cancel", PLAIN, "-C", mix)
    assert over.returncode == 0 and "already ended: %s" % PLAIN in over.stdout
    refused = lab.outlast("retry", PLAIN, "-C", mix)
    assert refused.returncode == 2 and "is finished; `outlast retry --again" in refused.stderr


# While something runs


def test_all_views_work_on_a_running_experiment(lab: Lab) -> None:
    text = 'echo \'{"event": "progress", "step": 3, "total": 4}\' >> "$OUTLAST_PROGRESS_FILE"\n' + GATED
    gate = lab.root / "gate"
    live = lab.experiment("live", {"train.sh": text}, command="sh train.sh %s" % gate, outputs=["out.txt"])
    run = lab.start("run", live)
    lab.running_job(live)
    lab.until("the start is recorded", lambda: "running" in lab.outlast("status", live).stdout)
    status = lab.outlast("status", live)
    assert (
        "step 3 of 4 (75 %)" in status.stdout
        and "supervised by `outlast run` (pid %d)" % run.pid in status.stdout
    )
    assert lab.outlast("status", live, "--json").json["runs"][0]["attempt"] == "running"
    assert "attempt 1: running" in lab.outlast("explain", cwd=live).stdout
    assert json.loads(lab.outlast("explain", "live", "-C", live, "--json").stdout)["state"] == "active"
    assert "1 attempt is running; its time" in lab.outlast("report", live).stdout
    assert lab.outlast("report", live, "--json").json["attempts"] == []
    assert "waits for" in lab.outlast("logs", cwd=live).stdout
    gate.touch()
    assert lab.finish(run).returncode == 0


def test_logs_follows_from_attempt_to_attempt_and_ends_with_the_run(lab: Lab) -> None:
    gate = lab.root / "gate"
    text = 'echo "attempt $OUTLAST_ATTEMPT"\n%s' % GATED
    text += '[ "$OUTLAST_ATTEMPT" -ge 3 ] || { date +%N > "$OUTLAST_CHECKPOINT_DIR/x"; exit 85; }\n'
    long = lab.experiment("long", {"train.sh": text}, command="sh train.sh %s" % gate, outputs=["out.txt"])
    run = lab.start("run", long)
    lab.running_job(long)
    follower = lab.start("logs", "-f", "long", "-C", long)
    assert follower.stdout is not None
    assert follower.stdout.readline() == "attempt 1\n"
    gate.touch()
    followed = lab.finish(follower)
    assert followed.returncode == 0
    assert re.findall("^attempt .", followed.stdout, re.M) == ["attempt 2", "attempt 3"]
    assert lab.finish(run).returncode == 0


def test_runs_and_parallel_are_respected(lab: Lab) -> None:
    several = lab.experiment(
        "several", command="sh train.sh plain", runs=5, parallel=2, outputs=["first.txt"]
    )
    ended = lab.outlast("run", several, "--json")
    assert ended.returncode == 0 and ended.json == {"runs": {"finished": 5}, "failed": [], "held_back": []}
    active = most = 0
    with open_journal(several) as journal:
        for row in journal.entries():
            active += (row.entry.kind is EntryKind.INTENDED) - (row.entry.kind is EntryKind.ENDED)
            most = max(most, active)
    assert most == 2


def test_a_sweep_puts_its_values_into_the_command_as_they_were_written(lab: Lab) -> None:
    text = 'echo "$1 $2" > "$OUTLAST_OUTPUT_DIR/out.txt"\n'
    grid = lab.experiment(
        "grid", {"train.sh": text}, command="sh train.sh {lr} {size}", outputs=["out.txt"],
        sweep={"lr": ["1e-3", "0.10"], "size": [8, 16]},
    )  # fmt: skip
    assert lab.outlast("run", grid).returncode == 0
    results = sorted(path.read_text() for path in (grid / "results").glob("*/out.txt"))
    assert results == ["0.10 16\n", "0.10 8\n", "1e-3 16\n", "1e-3 8\n"]


def test_cancel_all_cancels_running_and_waiting_runs(lab: Lab) -> None:
    held = lab.experiment("held", command="sh train.sh held", runs=3, parallel=1, checkpoints={"grace": "1s"})
    assert lab.outlast("submit", held).returncode == 0
    lab.running_job(held)
    ended = lab.outlast("cancel", "--all", cwd=held)
    assert ended.returncode == 0
    assert set(states(held).values()) == {"cancelled"}
    assert lab.outlast("up", held).returncode == 1


def test_a_dry_run_shows_the_job_and_writes_nothing(lab: Lab) -> None:
    dry = lab.experiment("dry", command="sh train.sh plain")
    before = sorted(dry.iterdir())
    ended = lab.outlast("submit", dry, "--dry-run")
    assert ended.returncode == 0
    assert "train.sh" in ended.stdout and "Nothing was written or submitted" in ended.stdout
    assert lab.outlast("submit", dry, "--dry-run", "--json").json["runs"] == ["dry"]
    assert sorted(dry.iterdir()) == before


def test_a_fresh_experiment_runs_as_it_is(lab: Lab) -> None:
    assert lab.outlast("init", "fresh").returncode == 0
    fresh = lab.root / "fresh"
    assert lab.outlast("check", fresh).returncode == 0
    text, count = re.subn(r"--epochs \d+", "--epochs 25 --pause 0", (fresh / "params.yaml").read_text())
    assert count == 1
    (fresh / "params.yaml").write_text(text)
    ended = lab.outlast("run", cwd=fresh)
    assert ended.returncode == 0, ended.output
    assert (fresh / "results" / "fresh" / "model.json").exists()


def test_a_command_whose_output_is_closed_exits_without_a_message(mixed: Mixed) -> None:
    lab, mix, _ = mixed
    for command in ("status", "explain", "logs"):
        process = lab.start(command, mix if command == "status" else mix / BUG)
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert (process.wait(60), process.stderr.read()) == (141, "")


def test_a_program_that_does_not_read_its_input_does_not_end_the_command(mixed: Mixed) -> None:
    lab, mix, _ = mixed
    unread = "import subprocess; subprocess.run(['true'], input=b'x' * 10**6)"
    prelude = (
        "import outlast.controller.supervisor as s\ncontrol = s.control\ndef unread(*a, **k):\n    %s\n"
        % unread
    )
    ended = lab.outlast("tick", mix, prelude=prelude + "    return control(*a, **k)\ns.control = unread")
    assert ended.returncode == 0 and "1 finished" in ended.stdout


def test_up_continues_when_its_output_is_closed(lab: Lab) -> None:
    deaf = lab.experiment("deaf", command="sh train.sh plain", outputs=["first.txt"])
    process = lab.start("run", deaf)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("submitted 1 run")
    process.stdout.close()
    assert process.wait(60) == 0
    assert states(deaf) == {"deaf": "finished"}
