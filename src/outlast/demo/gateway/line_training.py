"""The training of the gateway's demo: a line is fitted to points that are fetched from the application.

It uses no more memory than its job has requested: the local cluster does not enforce that, so it sets the
limit itself, as a node's kernel would.
"""

from __future__ import annotations

import json
import os
import random
import resource
import sys
import time
from typing import Any

SECONDS_PER_EPOCH = 0.1


def train_epoch(weights: list[float], points: list[list[float]], epoch: int) -> None:
    """Change the weights by one pass over the points, in an order that depends on the epoch alone."""
    order = list(range(len(points)))
    random.Random(epoch).shuffle(order)
    for number in order:
        x, y = points[number]
        error = weights[0] + weights[1] * x - y
        weights[0] -= 0.05 * error
        weights[1] -= 0.05 * error * x


def main(epochs: int, batch_megabytes: int) -> None:
    """Train for some epochs, with a buffer of that size; resume from the newest checkpoint."""
    import outlast

    memory = int(os.environ["OUTLAST_MEMORY"])
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    buffer = bytearray(batch_megabytes * 10**6)
    with open(os.path.join(os.environ["OUTLAST_DATA_DIR"], "points.json")) as file:
        points = json.load(file)
    state: dict[str, Any] = outlast.load() or {"epoch": 0, "weights": [0.0, 0.0]}
    while state["epoch"] < epochs:
        train_epoch(state["weights"], points, state["epoch"])
        state["epoch"] += 1
        time.sleep(SECONDS_PER_EPOCH)
        outlast.progress(state["epoch"], epochs)
        stop = outlast.should_stop()
        if stop or state["epoch"] % 5 == 0:
            outlast.save(state, step=state["epoch"])
        if stop:
            outlast.leave()
    del buffer
    with open("model.json", "w") as file:
        json.dump(state, file)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
