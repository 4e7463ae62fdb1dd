"""Experiments of 1,000 to 100,000 runs: how the cost of each command grows with their number."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

from measuring import Cost, experiment, outlast, private_cluster, table
from verdicts import Goal, Row, show

SIZES = [1_000, 10_000, 100_000]
#: The most jobs at a time: what a site allows a user, for instance.
PARALLEL = 500
SMOKE = {"SIZES": [2, 4], "PARALLEL": 2, "FEW": 2, "ROUNDS": 1}
PARAMS = """
name: many
command: sleep 3600
runs: %d
parallel: %d
cluster: one
resources: {time: 2h}
"""
#: The goals at 100,000 runs: seconds, and MB of memory.
GOALS = {"submit": 60.0, "tick": 10.0, "status --json": 10.0, "report": 10.0, "cancel --all": 10.0}
MOST_MEMORY = 1000.0
#: The goal for `status` of few runs, in seconds of CPU time, and how often it is measured.
FEW = 200
MOST_CPU_FEW = 0.15
ROUNDS = 5


def main() -> None:
    costs = {size: dict(_measure(size)) for size in SIZES}
    first, last = SIZES[0], SIZES[-1]
    rows = []
    for name, cost in costs[last].items():
        goal = GOALS.get(name) if last >= 100_000 else None
        missed = goal is not None and (cost.wall > goal or cost.memory > MOST_MEMORY)
        rows.append(
            (
                name,
                *("%.2f" % costs[size][name].wall for size in SIZES),
                *("%.2f" % costs[size][name].cpu for size in SIZES),
                *("%.0f" % (1e6 * costs[size][name].cpu / size) for size in SIZES),
                "%.0f" % cost.memory,
                "" if goal is None else "%.0f s, %.0f MB" % (goal, MOST_MEMORY),
                "" if goal is None else "MISSED" if missed else "met",
            )
        )
    sizes = ["%dk" % (size // 1000) if size >= 1000 else str(size) for size in SIZES]
    head = (
        "",
        *("%s: s" % size for size in sizes),
        *("%s: CPU s" % size for size in sizes),
        *("%s: CPU µs/run" % size for size in sizes),
        "peak MB",
        "goal",
        "verdict",
    )
    table("%d to %d runs in one experiment, %d jobs at a time" % (first, last, PARALLEL), head, rows)
    print()
    show("Few runs", [_status_of_few()])


def _status_of_few() -> Row:
    with private_cluster() as folder:
        path = experiment(folder, "few", PARAMS % (FEW, PARALLEL))
        _finish(path, FEW)
        outlast("status", str(path))  # compiles what it imports
        cpu = statistics.median(outlast("status", str(path)).cpu for _ in range(ROUNDS))
    return Row("status of %d runs: CPU time" % FEW, cpu, "s", Goal(most=MOST_CPU_FEW))


def _measure(size: int) -> Iterator[tuple[str, Cost]]:
    with private_cluster() as folder:
        path = experiment(folder, "many", PARAMS % (size, PARALLEL))
        (path / "clusters.yaml").write_text("one: {scheduler: local, hosts: {alpha: 1}}\n")
        yield "check", outlast("check", str(path))
        yield "submit", outlast("submit", str(path))
        outlast("tick", str(path))  # submits the rest of the jobs
        yield "tick", outlast("tick", str(path))
        yield "status", outlast("status", str(path))
        states = outlast("status", str(path), "--json")
        yield "status --json", states
        first = json.loads(states.output)["runs"][0]["run"]
        yield "explain, one run", outlast("explain", first, "-C", str(path))
        yield "logs, one run", outlast("logs", first, "-C", str(path))
        yield "submit again", outlast("submit", str(path))
        yield "cancel --all", outlast("cancel", "--all", "-C", str(path))
        yield "retry, one run", outlast("retry", first, "-C", str(path))
        done = experiment(folder, "done", PARAMS % (size, PARALLEL))
        _finish(done, size)
        yield "status, all finished", outlast("status", str(done))
        yield "report", outlast("report", str(done))
        yield "report --json", outlast("report", str(done), "--json")
        from outlast.schedulers.local import LocalScheduler

        LocalScheduler("bench", name="one").stop(force=True)


def _finish(path: Path, size: int) -> None:
    """Write the journal of an experiment in which each run has finished with its first attempt."""
    from outlast.domain.model import EntryKind, JournalEntry, Spec
    from outlast.journal.journal import Journal

    now = time.time()
    journal = Journal(path / "journal.sqlite", create=True)
    journal.acquire_lease(0, {})
    spec = journal.add_spec(Spec("many", "true"))
    for begin in range(0, size, 1000):
        entries = []
        for position in range(begin, min(begin + 1000, size)):
            run = "many-%06d" % position
            entries.append(
                JournalEntry(now, run, EntryKind.ADDED, None, {"position": position, "spec": spec})
            )
            token = "t%d" % position
            account = {"slot": 60.0, "spans": [["stage", 2.0], ["compute", 57.0]], "saves": [[30.0, 7]]}
            end = {"outcome": "finished", "detail": "why", "step": 7, "computed": 1, "account": account}
            for kind, data in (
                (EntryKind.INTENDED, {"number": 1, "reason": "first attempt"}),
                (EntryKind.QUEUED, {"job": str(position)}),
                (EntryKind.STARTED, {"host": "host%d" % (position % 100), "started": now}),
                (EntryKind.ENDED, end),
            ):
                entries.append(JournalEntry(now, run, kind, token, data))
            entries.append(JournalEntry(now, run, EntryKind.ACCEPTED, token, {}))
            entries.append(JournalEntry(now, run, EntryKind.FINISHED, None, {"reason": "finished"}))
        journal.append(entries)
    journal.close()


if __name__ == "__main__":
    main()
