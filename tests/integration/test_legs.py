"""Legs: a job that its scheduler starts again, and the jobs of a chain, which run one order in turn."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from integration.test_node_program import CONTINUED, Bench, bench, pyz  # noqa: F401 - fixtures
from outlast.domain import outcomes
from outlast.exchange.attempt_log import read_attempt
from outlast.local_cluster.processes import is_alive, start_ticks
from outlast.node import claim, legs, time_limits
from outlast.node.order import BadOrder, WorkOrder, read_order
from outlast.node.output_rule import OutputRule
from outlast.node.protocol import EXIT_NOT_CLAIMED

JOB = {"OUTLAST_JOB": "17_1"}


def ends(bench: Bench) -> list[str | None]:  # noqa: F811
    report = read_attempt(bench.exchange)
    assert report is not None
    found = [outcomes.of_leg(leg) for leg in report.legs]
    return [outcome.value if outcome else None for outcome in found]


def test_a_job_that_is_started_again_works_on_the_next_leg(bench: Bench) -> None:  # noqa: F811
    script = 'cd "$OUTLAST_OUTPUT_DIR"; echo "$OUTLAST_TOKEN" >>seen; test $(wc -l <seen) = 3 || exit 85'
    for code in (CONTINUED, CONTINUED, 0):
        assert bench.run("sh", "-c", script, variables=JOB) == code
    assert ends(bench) == ["continue", "continue", "finished"]
    delivered = bench.exchange / "leg-3" / "output" / "seen"
    assert delivered.read_text().split() == [bench.token, bench.token + ".2", bench.token + ".3"]


@pytest.mark.parametrize("job", ["18_1", ""])
def test_another_job_cannot_claim_an_attempt_that_is_taken(bench: Bench, job: str) -> None:  # noqa: F811
    assert bench.run("sh", "-c", "exit 85", variables=JOB) == CONTINUED
    assert bench.run("true", variables={"OUTLAST_JOB": job}) == EXIT_NOT_CLAIMED
    assert "belongs to job 17_1" in bench.stderr
    assert ends(bench) == ["continue"]


def test_a_job_that_is_started_again_after_its_attempt_was_given_up_exits(bench: Bench) -> None:  # noqa: F811
    assert bench.run("sh", "-c", "exit 85", variables=JOB) == CONTINUED
    legs.fence(str(bench.exchange), by="controller")
    assert bench.run("true", variables=JOB) == EXIT_NOT_CLAIMED
    assert "was given up by controller" in bench.stderr
    legs.fence(str(bench.exchange), by="controller")
    assert [holder.fenced for _, holder in legs.claimed(str(bench.exchange))] == [False, True]


def test_a_job_that_is_started_again_after_it_has_finished_exits(bench: Bench) -> None:  # noqa: F811
    assert bench.run("sh", "-c", 'echo done >"$OUTLAST_OUTPUT_DIR/it"', variables=JOB) == 0
    assert bench.run("false", variables=JOB) == EXIT_NOT_CLAIMED
    assert ends(bench) == ["finished"]


@pytest.mark.parametrize(("files", "length", "listed"), [(700, 120, True), (1000, 250, False)])
def test_a_job_that_is_started_again_after_it_has_delivered_many_files_exits(
    bench: Bench,  # noqa: F811
    files: int,
    length: int,
    listed: bool,
) -> None:
    script = "import os; os.chdir(os.environ['OUTLAST_OUTPUT_DIR'])\n"
    script += "for n in range(%d): open(str(n).zfill(%d), 'w').write('x')" % (files, length)
    assert bench.run(sys.executable, "-c", script, variables=JOB) == 0
    assert bench.run("false", variables=JOB) == EXIT_NOT_CLAIMED
    assert "has finished" in bench.stderr
    report = read_attempt(bench.exchange)
    assert report is not None and report.delivered_total == (files, files)
    assert (report.delivered is not None) is listed
    assert ends(bench) == ["finished"]


def test_a_leg_that_is_still_running_may_save_before_the_next_one_begins(bench: Bench) -> None:  # noqa: F811
    save = "trap 'sleep 1; echo 7 >$OUTLAST_CHECKPOINT_DIR/step; exit 85' TERM; echo >$READY; sleep 9 & wait"
    first = bench.start("sh", "-c", save, variables=JOB)
    bench.read_ready()
    first.send_signal(signal.SIGTERM)
    assert bench.run("sh", "-c", "test $(cat $OUTLAST_CHECKPOINT_DIR/step) = 7", variables=JOB) == 0
    assert bench.end(first) == CONTINUED
    assert ends(bench) == ["evicted", "finished"]


def test_processes_of_an_earlier_leg_are_killed(bench: Bench) -> None:  # noqa: F811
    first = bench.start("sh", "-c", "setsid sleep 600 & echo $! >$READY; wait", variables=JOB)
    pid = int(bench.read_ready())
    ticks = start_ticks(pid) or 0
    first.send_signal(signal.SIGKILL)
    first.communicate(timeout=60)
    assert is_alive(pid, ticks)
    os.utime(bench.exchange / "events.jsonl", (0, 0))  # no heartbeat for a long time
    assert bench.run("true", variables=JOB) == 0
    assert not is_alive(pid, ticks)


def test_the_jobs_of_a_chain_continue_the_run_and_the_rest_exit_at_once(bench: Bench) -> None:  # noqa: F811
    script = 'cd "$OUTLAST_CHECKPOINT_DIR"; echo x >>steps; test $(wc -l <steps) = 3 || exit 85'
    marker = bench.top / "cancelled"
    codes = [
        bench.run(
            *("sh", "-c", script),
            jobs=6,
            variables={"OUTLAST_JOB": "%d_1" % number, "OUTLAST_CANCEL_REST": "touch '%s'" % marker},
        )
        for number in range(20, 26)
    ]
    assert codes == [CONTINUED, CONTINUED, 0, 86, 86, 86] and marker.exists()
    assert ends(bench) == ["continue", "continue", "finished"]


def chain(bench: Bench, *commands: tuple[str, ...], **changes: Any) -> list[int]:  # noqa: F811
    """Run the jobs of a chain, each with its own command; return their exit codes."""
    cancel = "touch '%s'" % (bench.top / "cancelled")
    return [
        bench.run(
            *command,
            jobs=len(commands),
            variables={"OUTLAST_JOB": str(number), "OUTLAST_CANCEL_REST": cancel},
            **changes,
        )
        for number, command in enumerate(commands)
    ]


CRASH = ("python", "-c", "raise ValueError('no')")
OTHER_CRASH = ("python", "-c", "raise KeyError('no')")
NO_MEMORY = ("python", "-c", "raise MemoryError")
EVICTED = ("sh", "-c", "kill -TERM $PPID; sleep 60")
SAVE = ("sh", "-c", "date +%N >$OUTLAST_CHECKPOINT_DIR/step; exit 85")
WRONG = [OutputRule("metrics.json")]


@pytest.mark.parametrize(
    ("command", "outputs"),
    [(CRASH, []), (NO_MEMORY, []), (("true",), WRONG)],
    ids=["crash", "memory", "output"],
)
def test_a_chain_ends_after_the_same_failure_twice(
    bench: Bench,  # noqa: F811
    command: tuple[str, ...],
    outputs: list[OutputRule],
) -> None:
    assert chain(bench, *(command,) * 2, outputs=tuple(outputs)) == [1, 1]
    assert (bench.top / "cancelled").exists()
    assert chain(bench, *(command,) * 2, outputs=tuple(outputs)) == [86, 86]
    assert "failed twice in the same way" in bench.stderr


def test_an_eviction_between_two_identical_failures_does_not_reset_the_count(bench: Bench) -> None:  # noqa: F811
    assert chain(bench, CRASH, EVICTED, CRASH, CRASH) == [1, CONTINUED, 1, 86]


def test_a_chain_continues_after_another_failure_and_after_progress(bench: Bench) -> None:  # noqa: F811
    assert chain(bench, CRASH, OTHER_CRASH, CRASH, SAVE, CRASH, ("true",)) == [1, 1, 1, CONTINUED, 1, 0]


def test_a_chain_that_cannot_be_cancelled_is_reported_and_does_no_harm(bench: Bench) -> None:  # noqa: F811
    variables = {"OUTLAST_JOB": "1", "OUTLAST_CANCEL_REST": "no-such-program --all"}
    assert bench.run("true", jobs=2, variables=variables) == 0
    assert "could not be cancelled from here" in bench.stderr


def test_the_schedulers_signal_for_the_limit_is_no_eviction(bench: Bench) -> None:  # noqa: F811
    script = "trap 'exit 85' TERM; echo >$READY; while :; do sleep 0.1; done"
    process = bench.start("sh", "-c", script, limit_signal="USR1")
    bench.read_ready()
    process.send_signal(signal.SIGUSR1)
    assert bench.end(process) == CONTINUED
    assert bench.events("stop")[0]["why"] == "limit" and ends(bench) == ["continue"]


def test_a_job_ends_itself_once_another_has_taken_over_its_attempt(
    bench: Bench,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from outlast.node import main, pulse

    bench.write_order("sh", "-c", "echo >$READY; exec sleep 600")
    monkeypatch.setattr(pulse, "HEARTBEAT_INTERVAL", 0.05)
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            code = main.run(str(bench.top / "order.json"), "17_1")
        finally:
            os._exit(code)
    ready = os.open(bench.top / "ready", os.O_RDONLY)
    assert os.read(ready, 1)
    os.close(ready)
    assert not (bench.exchange / "leg-2").exists()
    legs.fence(str(bench.exchange), by="controller")
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == CONTINUED
    assert bench.last["outcome"] == "evicted" and bench.events("stop")[0]["why"] == "taken over"


def test_the_scratch_of_the_node_is_used_and_cleaned_up(bench: Bench) -> None:  # noqa: F811
    room = bench.top / "room"
    room.mkdir()
    script = 'pwd >"$OUTLAST_OUTPUT_DIR/where"'
    assert bench.run("sh", "-c", script, node_scratch="$ROOM", variables={**JOB, "ROOM": str(room)}) == 0
    assert (bench.exchange / "output" / "where").read_text().startswith(str(room))
    assert list(room.iterdir()) == []


def test_a_missing_scratch_of_the_node_is_reported_and_not_needed(bench: Bench) -> None:  # noqa: F811
    assert bench.run("true", node_scratch="$NOWHERE/at-all") == 0
    assert "does not exist" in bench.stderr


def test_relative_paths_in_an_order_are_relative_to_its_directory(bench: Bench) -> None:  # noqa: F811
    places = {"exchange": "travel", "scratch": "scratch", "checkpoints": "travel/checkpoints", "log": "log"}
    (bench.top / "travel").mkdir()
    bench.write_order("true", **places)
    order = read_order(str(bench.top / "order.json"))
    assert (order.exchange, order.log) == (str(bench.top / "travel"), str(bench.top / "log"))
    assert order.code is None


def test_a_signal_that_does_not_exist_makes_a_bad_order(bench: Bench) -> None:  # noqa: F811
    assert bench.run("true", limit_signal="NOPE") == 87


@pytest.mark.parametrize("ahead, expected", [(900, 900), (30, 3600), (-5, 3600), (9999, 3600)])
def test_an_earlier_end_announced_by_the_scheduler_is_used(tmp_path: Path, ahead: int, expected: int) -> None:
    end = int(time.time()) + ahead
    ad = tmp_path / "ad"
    ad.write_text('Name = "slot"\nGLIDEIN_ToRetire = %d\nx = 1\n' % end)
    for environment in ({"SLURM_JOB_END_TIME": str(end)}, {"_CONDOR_MACHINE_AD": str(ad)}):
        assert abs(time_limits.seconds_left(3600, environment) - expected) < 5
    strange: dict[str, Any] = {"SLURM_JOB_END_TIME": "soon", "_CONDOR_MACHINE_AD": str(tmp_path / "none")}
    assert time_limits.seconds_left(3600, strange) == 3600


def test_torn_claims_and_logs_of_earlier_legs_are_ignored(tmp_path: Path) -> None:
    order = WorkOrder("t", "e", "r", 1, ("true",), str(tmp_path), "/s", "/c", "/l", jobs=4)
    for leg, text in zip(legs.possible_legs(str(tmp_path)), ("", '{"event": "end"', "[1]"), strict=False):
        Path(leg.directory).mkdir(exist_ok=True)
        assert claim.acquire(leg.claim_path, "t", "j", "h")
        Path(leg.events_path).write_text(text)
        os.utime(leg.events_path, (0, 0))
    taken, leg = legs.claim_next(order, "k", "h")
    assert leg.number == 4 and taken.previous_scratch == "/s.3" and taken.scratch == "/s.4"
    assert json.loads(Path(leg.claim_path).read_text())["job"] == "k"
    with pytest.raises(BadOrder):
        read_order(str(tmp_path / "none"))
