"""Local no-op runs per second, next to submitit's local executor, in one run on the same machine."""

from __future__ import annotations

import statistics
import tempfile
import time

from measuring import experiment, outlast, private_cluster, table

ROUNDS = 3
OURS, THEIRS = 400, 40


def ours() -> float:
    """Submit to checked results, the command's own start included."""
    with private_cluster() as folder:
        path = experiment(
            folder, "noop", 'name: noop\ncommand: "true"\nruns: %d\nresources: {time: 60s}\n' % OURS
        )
        return OURS / outlast("run", str(path)).wall


def theirs() -> float:
    import submitit

    with tempfile.TemporaryDirectory(prefix="submitit-bench-") as folder:
        executor = submitit.LocalExecutor(folder)
        executor.update_parameters(timeout_min=5)
        began = time.monotonic()
        # A builtin: nothing of ours has to be importable in the job.
        jobs = [executor.submit(bool) for _ in range(THEIRS)]
        for job in jobs:
            job.result()
        return THEIRS / (time.monotonic() - began)


def main() -> None:
    pairs = [(ours(), theirs()) for _ in range(ROUNDS)]
    rows = [
        ("outlast, %d runs of `true`" % OURS, "%.1f" % statistics.median(pair[0] for pair in pairs)),
        ("submitit LocalExecutor, %d calls" % THEIRS, "%.1f" % statistics.median(pair[1] for pair in pairs)),
        ("ratio (median of %d rounds)" % ROUNDS, "%.1f" % statistics.median(a / b for a, b in pairs)),
    ]
    table("local no-op runs per second", ("", "runs/s"), rows)


if __name__ == "__main__":
    main()
