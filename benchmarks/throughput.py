"""Local no-op runs per second, compared with submitit's local executor on the same machine."""

from __future__ import annotations

import statistics
import tempfile
import time

from measuring import experiment, outlast, private_cluster, table

ROUNDS = 3
OURS, THEIRS = 400, 40
SMOKE = {"ROUNDS": 1, "OURS": 2, "THEIRS": 1}


def ours() -> float:
    """Return runs per second, from the start of the command to checked results."""
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
        # A builtin, so that the job does not import this module.
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
