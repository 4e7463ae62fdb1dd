"""Learns to distinguish points inside a circle from points outside it, with the standard library only.

It also runs without Outlast's jobs (`python3 train.py`). As a job it resumes where the last attempt stopped.
"""

import argparse
import json
import math
import os
import random
import time
from operator import mul

import outlast


def features(x, y):
    return (1.0, x, y, x * x, y * y, x * y)


def points(count, seed):
    """Return random points in a square, with label 1 if inside a circle of radius 0.8, else 0."""
    draw = random.Random(seed).uniform
    places = [(draw(-1, 1), draw(-1, 1)) for _ in range(count)]
    return [(features(x, y), 1.0 if x * x + y * y < 0.64 else 0.0) for x, y in places]


def predict(weights, values):
    return 1 / (1 + math.exp(-sum(map(mul, weights, values))))


def train_epoch(weights, data, rate, seed):
    """Make one pass of stochastic gradient descent; return the mean loss."""
    loss = 0.0
    # The order depends only on the epoch, so that an interrupted run ends with the same weights.
    for values, label in random.Random(seed).sample(data, len(data)):
        guess = predict(weights, values)
        loss -= math.log(max(guess if label else 1 - guess, 1e-12))
        for index, value in enumerate(values):
            weights[index] += rate * (label - guess) * value
    return loss / len(data)


def write(name, content):
    directory = os.environ.get("OUTLAST_OUTPUT_DIR", ".")
    with open(os.path.join(directory, name), "w", encoding="utf-8") as file:
        json.dump(content, file)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=80)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument(
        "--pause", type=float, default=0.1, help="seconds to wait in each epoch, to simulate a larger model"
    )
    args = parser.parse_args()

    data = points(1000, seed=1)
    state = outlast.load() or {"epoch": 0, "weights": [0.0] * 6}
    print("starting at epoch", state["epoch"])
    while state["epoch"] < args.epochs:
        loss = train_epoch(state["weights"], data, args.lr, seed=state["epoch"])
        time.sleep(args.pause)
        state["epoch"] += 1
        outlast.progress(state["epoch"], args.epochs, loss=loss)
        if outlast.should_stop():
            outlast.save(state, step=state["epoch"])
            outlast.leave()  # exit; the next attempt continues
        if state["epoch"] % 20 == 0:
            outlast.save(state, step=state["epoch"])

    test = points(1000, seed=2)
    right = sum((predict(state["weights"], values) > 0.5) == (label > 0.5) for values, label in test)
    write("model.json", {"weights": state["weights"]})
    write("metrics.json", {"accuracy": right / len(test), "loss": loss_of(state["weights"], test)})
    print("accuracy", right / len(test))


def loss_of(weights, data):
    guesses = [(predict(weights, values), label) for values, label in data]
    return -sum(math.log(max(g if label else 1 - g, 1e-12)) for g, label in guesses) / len(data)


if __name__ == "__main__":
    main()
