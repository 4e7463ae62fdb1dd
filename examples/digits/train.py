"""Trains a small convolutional network to read handwritten digits, with NumPy only.

It also runs without Outlast's jobs (`python train.py`). As a job it resumes where the last attempt stopped.
However often it is interrupted, it ends with the same weights, bit for bit: a checkpoint holds the weights,
their momentum, the random state, the step, and the order of the images in the current epoch.
"""

import argparse
import gzip
import hashlib
import io
import json
import math
import os
import sys
import time
from pathlib import Path

import numpy as np

import outlast

DATA = Path(__file__).with_name("digits.csv.gz")
DATA_SHA256 = "09f66e6debdee2cd2b5ae59e0d6abbb73fc2b0e0185d2e1957e9ebb51e23aa22"
TEST_EVERY = 5  # every fifth image is for the test
BATCH = 32
CHANNELS = 32, 64
MOMENTUM = 0.9
WEIGHT_DECAY = 5e-4
SAVE_EVERY = 0.4  # seconds


def read_digits():
    """Return images of shape (count, 8, 8, 1) with values from 0 to 1, and the digit in each."""
    packed = DATA.read_bytes()
    if hashlib.sha256(packed).hexdigest() != DATA_SHA256:
        sys.exit("%s is damaged: its SHA-256 is not the one in train.py; copy it again" % DATA)
    table = np.loadtxt(io.BytesIO(gzip.decompress(packed)), delimiter=",", dtype=np.float32)
    return table[:, :64].reshape(-1, 8, 8, 1) / 16, table[:, 64].astype(np.int64)


def new_weights(hidden, random):
    """Return random weights: 3x3 convolution, 3x3 convolution with stride 2, hidden layer, ten outputs."""
    first, second = CHANNELS
    shapes = {"conv1": (9, first), "conv2": (9 * first, second), "dense": (16 * second, hidden)}
    weights = {}
    for layer, (fan_in, fan_out) in {**shapes, "output": (hidden, 10)}.items():
        scale = math.sqrt(2 / fan_in)
        weights[layer] = (random.standard_normal((fan_in, fan_out)) * scale).astype(np.float32)
        weights[layer + "_bias"] = np.zeros(fan_out, np.float32)
    return weights


def patches(images, stride):
    """Return each 3x3 neighbourhood as a row, so that a convolution is one matrix product."""
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))
    return windows[:, ::stride, ::stride].reshape(-1, 9 * images.shape[3])


def unpatches(rows, count):
    """Reverse `patches(…, stride=2)` for gradients: sum all contributions to each pixel."""
    channels = CHANNELS[0]
    rows = rows.reshape(count, 4, 4, channels, 3, 3)
    padded = np.zeros((count, 10, 10, channels), np.float32)
    for y in range(3):
        for x in range(3):
            padded[:, y : y + 8 : 2, x : x + 8 : 2] += rows[..., y, x]
    return padded[:, 1:9, 1:9].reshape(-1, channels)


def forward(weights, images):
    """Return the activations of all layers; the last are the log probabilities of the digits."""
    count = len(images)
    p1 = patches(images, 1)
    a1 = np.maximum(p1 @ weights["conv1"] + weights["conv1_bias"], 0)
    p2 = patches(a1.reshape(count, 8, 8, -1), 2)
    a2 = np.maximum(p2 @ weights["conv2"] + weights["conv2_bias"], 0)
    flat = a2.reshape(count, -1)
    a3 = np.maximum(flat @ weights["dense"] + weights["dense_bias"], 0)
    scores = a3 @ weights["output"] + weights["output_bias"]
    scores -= scores.max(axis=1, keepdims=True)
    return p1, a1, p2, flat, a3, scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))


def gradients(weights, images, labels):
    """Return the mean loss of these images, and its gradient for each weight."""
    count = len(images)
    p1, a1, p2, flat, a3, logs = forward(weights, images)
    loss = -float(logs[np.arange(count), labels].mean())
    delta = np.exp(logs)
    delta[np.arange(count), labels] -= 1
    delta /= count
    found = {"output": a3.T @ delta, "output_bias": delta.sum(axis=0)}
    delta = (delta @ weights["output"].T) * (a3 > 0)
    found.update({"dense": flat.T @ delta, "dense_bias": delta.sum(axis=0)})
    delta = ((delta @ weights["dense"].T) * (flat > 0)).reshape(-1, CHANNELS[1])
    found.update({"conv2": p2.T @ delta, "conv2_bias": delta.sum(axis=0)})
    delta = unpatches(delta @ weights["conv2"].T, count) * (a1 > 0)
    found.update({"conv1": p1.T @ delta, "conv1_bias": delta.sum(axis=0)})
    return loss, found


def shifted(images, random):
    """Return each image moved by up to one pixel in each direction, as augmentation."""
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)))
    moved = np.empty_like(images)
    for index, (y, x) in enumerate(random.integers(0, 3, (len(images), 2))):
        moved[index] = padded[index, y : y + 8, x : x + 8]
    return moved


def descend(state, found, rate):
    """Make one step of gradient descent with momentum."""
    for name, weight in state["weights"].items():
        velocity = state["velocity"][name]
        velocity *= MOMENTUM
        velocity -= np.float32(rate) * (found[name] + WEIGHT_DECAY * weight)
        np.add(weight, velocity, out=weight)


def score(weights, images, labels):
    """Return mean loss and accuracy."""
    logs = forward(weights, images)[-1]
    right = int((logs.argmax(axis=1) == labels).sum())
    return -float(logs[np.arange(len(labels)), labels].mean()), right / len(labels)


def begin(settings):
    random = np.random.default_rng(settings["seed"])
    weights = new_weights(settings["hidden"], random)
    velocity = {name: np.zeros_like(weight) for name, weight in weights.items()}
    start = {"step": 0, "order": None, "accuracy": 0.0, "random": random.bit_generator.state}
    return {"settings": settings, "weights": weights, "velocity": velocity, **start}


def save(state, random):
    state["random"] = random.bit_generator.state
    outlast.save(state, step=state["step"])


def train(state, train_set, test_set):
    """Train from the state's step to the end of the last epoch."""
    settings, (images, labels) = state["settings"], train_set
    batches = math.ceil(len(images) / BATCH)
    total = settings["epochs"] * batches
    random = np.random.default_rng()
    random.bit_generator.state = state["random"]
    saved = time.monotonic()
    while state["step"] < total:
        epoch, batch = divmod(state["step"], batches)
        if batch == 0:
            state["order"] = random.permutation(len(images))
        chosen = state["order"][batch * BATCH : (batch + 1) * BATCH]
        loss, found = gradients(state["weights"], shifted(images[chosen], random), labels[chosen])
        # The learning rate falls to 0 along a cosine.
        descend(state, found, settings["lr"] * (1 + math.cos(math.pi * state["step"] / total)) / 2)
        state["step"] += 1
        if batch == batches - 1:
            state["accuracy"] = score(state["weights"], *test_set)[1]
            print("epoch %3d  loss %.4f  accuracy %.4f" % (epoch + 1, loss, state["accuracy"]), flush=True)
        outlast.progress(state["step"], total, loss=loss, accuracy=state["accuracy"])
        if outlast.should_stop():
            save(state, random)
            outlast.leave()  # exit; the next attempt continues
        if time.monotonic() - saved > SAVE_EVERY:
            save(state, random)
            saved = time.monotonic()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--lr", type=float, default=0.05, help="the learning rate at the start")
    parser.add_argument("--seed", type=int, default=1, help="for the initial weights and the order")
    parser.add_argument("--hidden", type=int, default=128, help="the width of the hidden layer")
    settings = vars(parser.parse_args())

    images, labels = read_digits()
    held_out = np.arange(len(images)) % TEST_EVERY == 0
    train_set = images[~held_out], labels[~held_out]
    test_set = images[held_out], labels[held_out]
    state = outlast.load()
    if state is None:
        state = begin(settings)
    elif state["settings"] != settings:
        sys.exit(
            "the checkpoints were saved with the settings %s, but this run has %s; use the same settings, "
            "or move the checkpoints away" % (state["settings"], settings)
        )
    print("starting at step", state["step"], flush=True)
    train(state, train_set, test_set)

    loss, accuracy = score(state["weights"], *test_set)
    output = Path(os.environ.get("OUTLAST_OUTPUT_DIR", "."))
    np.savez(output / "model.npz", **state["weights"])
    metrics = {"accuracy": accuracy, "loss": loss, "epochs": settings["epochs"], "steps": state["step"]}
    (output / "metrics.json").write_text(json.dumps(metrics) + "\n", encoding="utf-8")
    print("accuracy", accuracy)


if __name__ == "__main__":
    main()
