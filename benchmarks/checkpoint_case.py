"""One way to save and load a state, in a process of its own: `python checkpoint_case.py WAY BYTES DIRECTORY`.

Prints one line of JSON: seconds that a save blocked the loop, seconds until the state was durable, seconds to
load it into existing tensors, and the peak memory of saving relative to the state. `python checkpoint_case.py
resumed BYTES DIRECTORY`, in a directory left by outlast.save, prints the seconds that the first save blocks a
loop that has resumed.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from measuring import shrink

TENSORS = 288
SAVES = 5
#: Seconds of work between two saves, as in a training loop.
WORK = 1.0
SMOKE = {"SAVES": 2, "WORK": 0.01}

State = dict[str, torch.Tensor]
#: Takes a state and a number; returns a function that waits until the state is durable. Later work is
#: finished before the next save, because real saves are minutes apart.
Save = Callable[[State, int], Callable[[], Any]]
Load = Callable[[State], None]


def make(size: int) -> State:
    generator = torch.Generator().manual_seed(1)
    each = size // TENSORS // 4
    return {"layer.%d.weight" % n: torch.randn(each, generator=generator) for n in range(TENSORS)}


def durable(path: Path, write: Callable[[Path], Any]) -> None:
    """Write a file durably and atomically: to a temporary file, synced, renamed, directory synced."""
    temporary = path.with_suffix(".tmp")
    write(temporary)
    descriptor = os.open(temporary, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
    temporary.rename(path)
    descriptor = os.open(path.parent, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def ours(place: Path) -> tuple[Save, Load]:
    from outlast.training.training_session import SessionSettings, TrainingSession

    session = TrainingSession(SessionSettings(directory=str(place / "checkpoints"), keep=2))

    def save(state: State, number: int) -> Callable[[], Any]:
        session.save(state, number)
        return session._background.wait_for_work

    def load(target: State) -> None:
        copy(TrainingSession(SessionSettings(directory=str(place / "checkpoints"))).load(), target)

    return save, load


def copy(source: State, target: State) -> None:
    for name, tensor in target.items():
        tensor.copy_(source[name])


def torch_save(place: Path) -> tuple[Save, Load]:
    path = place / "state.pt"

    def save(state: State, number: int) -> Callable[[], Any]:
        durable(path, lambda temporary: torch.save(state, temporary))
        return lambda: None

    return save, lambda target: copy(torch.load(path), target)


def safetensors(place: Path) -> tuple[Save, Load]:
    from safetensors.torch import load_file, save_file

    path = place / "state.safetensors"

    def save(state: State, number: int) -> Callable[[], Any]:
        durable(path, lambda temporary: save_file(state, temporary))
        return lambda: None

    return save, lambda target: copy(load_file(path), target)


def dcp(place: Path) -> tuple[Save, Load]:
    import torch.distributed.checkpoint as distributed

    # A store in memory needs no port, which another process may have.
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)

    def save(state: State, number: int) -> Callable[[], Any]:
        future = distributed.async_save(state, checkpoint_id=str(place / ("dcp-%d" % number)))
        return future.result  # type: ignore[no-any-return]

    def load(target: State) -> None:
        newest = max(place.glob("dcp-*"), key=lambda path: int(path.name[4:]))
        distributed.load(target, checkpoint_id=str(newest))

    return save, load


def bare(place: Path) -> tuple[Save, Load]:
    """The lower limit for durability: existing bytes written and synced, without checks."""
    content: list[memoryview] = []

    def write(temporary: Path) -> None:
        with open(temporary, "wb", buffering=0) as file:
            rest = content[0]
            while rest:
                rest = rest[file.write(rest) :]

    def save(state: State, number: int) -> Callable[[], Any]:
        if not content or len(content[0]) != size_of(state):
            content[:] = [memoryview(bytearray(size_of(state)))]
            content[0][:] = b"".join(bytes(tensor.numpy()) for tensor in state.values())
        durable(place / "bare", write)
        return lambda: None

    def load(target: State) -> None:
        (place / "bare").read_bytes()

    return save, load


def in_memory(place: Path) -> tuple[Save, Load]:
    """The lower limit for blocking: a copy by torch into existing tensors."""
    kept: State = {}

    def save(state: State, number: int) -> Callable[[], Any]:
        if kept.keys() != state.keys():
            kept.clear()
            kept.update((name, torch.zeros_like(tensor)) for name, tensor in state.items())
        copy(state, kept)
        return lambda: None

    return save, lambda target: copy(kept, target)


WAYS = {
    "outlast.save": ours,
    "torch.save": torch_save,
    "safetensors": safetensors,
    "dcp": dcp,
    "bare": bare,
    "copy": in_memory,
}


def size_of(state: State) -> int:
    return sum(tensor.nbytes for tensor in state.values())


def memory(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def work() -> None:
    until = time.monotonic() + WORK
    left, right = torch.randn(256, 256), torch.randn(256, 256)
    while time.monotonic() < until:
        left = torch.tanh(left @ right)


def resumed(directory: Path) -> None:
    from outlast.training.training_session import SessionSettings, TrainingSession

    session = TrainingSession(SessionSettings(directory=str(directory / "checkpoints"), keep=2))
    state = {name: tensor.clone() for name, tensor in session.load().items()}
    work()
    session.should_stop()
    work()
    began = time.monotonic()
    session.save(state, SAVES + 1)
    print(json.dumps({"first": time.monotonic() - began}), flush=True)
    session.wait()


def main() -> None:
    way, size, directory = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    if "--smoke" in sys.argv:
        shrink(sys.modules[__name__])
    if way == "resumed":
        resumed(directory)
        shutil.rmtree(directory)
        return
    directory.mkdir()
    state = make(size)
    save, load = WAYS[way](directory)
    save({"warm": torch.zeros(1024)}, 0)()
    before = memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    blocked, down = [], []
    for number in range(1, SAVES + 1):
        for thread in threading.enumerate():
            if thread.name == "outlast":
                thread.join()
        os.sync()
        work()
        began = time.monotonic()
        wait = save(state, number)
        blocked.append(time.monotonic() - began)
        wait()
        down.append(time.monotonic() - began)
    most = memory("VmHWM") - before
    target = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    loads = []
    for _ in range(3):
        began = time.monotonic()
        load(target)
        loads.append(time.monotonic() - began)
    if way != "bare":
        assert all(torch.equal(target[name], tensor) for name, tensor in state.items())
    if way != "outlast.save":  # the case `resumed` uses it
        shutil.rmtree(directory)
    # The first save is left out, because it allocates memory that later ones reuse.
    result = {
        "first": blocked[0],
        "blocked": statistics.median(blocked[1:]),
        "durable": statistics.median(down[1:]),
        "load": statistics.median(loads),
        "memory": most / size_of(state),
    }
    print(json.dumps(result), flush=True)
    os._exit(0)  # some libraries leave threads running


if __name__ == "__main__":
    main()
