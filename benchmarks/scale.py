"""An experiment of 10,000 runs: what each command costs while all of them are under way."""

from __future__ import annotations

import json
import resource
import time
from collections.abc import Mapping, Sequence

from measuring import Cost, experiment, outlast, private_cluster, table

RUNS = 10_000
SMOKE = {"RUNS": 5}
PARAMS = """
name: many
command: sleep 3600
runs: %d
cluster: one
resources: {time: 2h}
"""


def main() -> None:
    rows: list[tuple[str, ...]] = []

    def row(name: str, cost: Cost) -> None:
        rows.append((name, "%.2f" % cost.wall, "%.2f" % cost.cpu, "%.0f" % cost.memory))

    with private_cluster() as folder:
        one = experiment(folder, "one", 'command: "true"\n')
        outlast("run", str(one))
        row("status of an experiment with 1 run", outlast("status", str(one)))
        path = experiment(folder, "many", PARAMS % RUNS)
        (path / "clusters.yaml").write_text("one: {scheduler: local, hosts: {alpha: 1}}\n")
        row("check", outlast("check", str(path)))
        row("submit (all recorded, jobs sent for 3 s)", outlast("submit", str(path)))
        ticks = 0
        while _queued(outlast("status", str(path), "--json")) < RUNS:
            outlast("tick", str(path))
            ticks += 1
            if ticks > 50:
                raise RuntimeError("not all jobs were sent")
        row("tick, %d attempts queued" % RUNS, outlast("tick", str(path)))
        row("status", outlast("status", str(path)))
        row("status --json", outlast("status", str(path), "--json"))
        row("report", outlast("report", str(path)))
        size = sum(file.stat().st_size for file in path.glob("journal.sqlite*"))
        row("cancel --all (until none is left)", outlast("cancel", "--all", "-C", str(path)))
        _stop(path)
    rows.append(_running())
    table("%d runs in one experiment" % RUNS, ("", "wall s", "CPU s", "peak MB"), rows)
    print(
        "journal: %.1f MB, %.0f bytes per run; ticks to send all jobs: %d" % (size / 1e6, size / RUNS, ticks)
    )


def _queued(cost: Cost) -> int:
    return sum(run["job"] is not None for run in json.loads(cost.output)["runs"])


def _stop(path: object) -> None:
    from outlast.schedulers.local import LocalScheduler

    LocalScheduler("bench", name="one").stop(force=True)


def _running() -> tuple[str, ...]:
    """A pass of the controller over attempts that are all running; more than one machine could really do."""
    from outlast.controller.controller import Controller
    from outlast.domain.model import Attempt, EntryKind, JournalEntry, Run, Spec
    from outlast.domain.observation import JobPhase, JobView, Patience, Report
    from outlast.journal.records import Records
    from outlast.schedulers.base import JobRef, JobRequest, Scheduler, Submission, SubmitStatus

    class AllRunning(Scheduler):
        patience = Patience(3, 5, 1)

        def __init__(self) -> None:
            self.jobs: dict[str, JobView] = {}

        def render(self, request: JobRequest) -> str:
            return ""

        def submit(self, requests: Sequence[JobRequest]) -> Mapping[str, Submission]:
            for request in requests:
                self.jobs[request.token] = JobView(request.token, "1", JobPhase.RUNNING, "alpha", time.time())
            return {request.token: Submission(SubmitStatus.ACCEPTED, "1") for request in requests}

        def poll(self, expected: Sequence[JobRef] = ()) -> Mapping[str, JobView]:
            return self.jobs

        def cancel(self, views: Sequence[JobView]) -> None:
            return

    class NoFiles:
        def write_order(self, run: Run, attempt: Attempt, spec: Spec) -> None: ...

        def request(self, run: Run, attempt: Attempt, spec: Spec) -> JobRequest:
            return JobRequest(attempt.token, run.name, "", "", "", 1, 0, 1, 1, 60.0, 1.0)

        def fence(self, attempt: Attempt) -> bool:
            return True

        def report(self, attempt: Attempt) -> Report | None:
            return None

        def publish(self, attempt: Attempt) -> None: ...

        def retire(self, run: Run) -> None: ...

    records = Records()
    number = records.add_spec(Spec("many", "true"))
    now = time.time()
    records.append(
        [
            JournalEntry(now, "run-%d" % i, EntryKind.ADDED, None, {"position": i, "spec": number})
            for i in range(RUNS)
        ]
    )
    controller = Controller(records, AllRunning(), NoFiles())
    controller.step()
    controller.step()
    began, cpu = time.monotonic(), time.process_time()
    controller.step()
    wall, spent = time.monotonic() - began, time.process_time() - cpu
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return ("controller pass, %d running (in memory)" % RUNS, "%.2f" % wall, "%.2f" % spent, "%.0f" % memory)


if __name__ == "__main__":
    main()
