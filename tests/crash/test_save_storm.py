"""Two hundred kills during saves: no checkpoint reported as saved is lost, and no wrong state is loaded."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

import pytest

from outlast.training.checkpoints import checkpoint, checkpoint_names
from outlast.training.training_session import SessionSettings, TrainingSession

KILLS = int(os.environ.get("OUTLAST_SAVE_KILLS", "200"))
SEED = int(os.environ.get("OUTLAST_SAVE_SEED", random.SystemRandom().randrange(10**6)))
#: More than one block of 1 MiB, and an end within a block.
SIZE = 2**20 + 2**19 + 12345


def state_of(step: int) -> dict[str, Any]:
    content = hashlib.sha256(b"%d" % step).digest() * (SIZE // 32)
    return {"step": step, "weights": content}


def settings(place: Path, attempt: int) -> SessionSettings:
    return SessionSettings(
        directory=str(place / "checkpoints"),
        keep=2,
        progress_file=str(place / ("events-%d.jsonl" % attempt)),
        token="attempt %d" % attempt,
    )


def train(place: Path, attempt: int) -> NoReturn:
    """Save without a pause until the process is killed or stopped."""
    code = 70
    try:
        session = TrainingSession(settings(place, attempt))
        session.deadline.install_handlers()
        state = session.load()
        step = 0 if state is None else state["step"]
        assert state is None or state == state_of(step)
        while not session.should_stop():
            step += 1
            session.save(state_of(step), step)
        session.leave()
    except SystemExit as left:
        code = int(str(left.code))
    except BaseException as error:
        print("attempt %d: %r" % (attempt, error), file=sys.stderr)
    finally:
        os._exit(code)


def steps_of(place: Path, attempt: int, event: str) -> list[int]:
    """Return the steps of the events of this type that an attempt has logged."""
    try:
        lines = (place / ("events-%d.jsonl" % attempt)).read_text().splitlines()
    except FileNotFoundError:
        return []
    found = [json.loads(line) for line in lines]
    return [line["step"] for line in found if line["event"] == event]


def await_beginning(place: Path, attempt: int) -> None:
    until = time.monotonic() + 60
    while not steps_of(place, attempt, "loaded"):
        assert time.monotonic() < until, "attempt %d has not begun" % attempt
        time.sleep(0.001)


def test_two_hundred_kills_during_saves_lose_nothing_that_was_reported_as_saved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with capsys.disabled():
        print("OUTLAST_SAVE_SEED=%d " % SEED, end="")
    draws = random.Random(SEED)
    saved = 0
    left = 0
    for attempt in range(KILLS):
        child = os.fork()
        if not child:
            train(tmp_path, attempt)
        if draws.random() < 0.8:  # most of them during saves, the others anywhere
            await_beginning(tmp_path, attempt)
        time.sleep(draws.random() * 0.1)
        gently = draws.random() < 0.3
        os.kill(child, signal.SIGTERM if gently else signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert status in (85, -signal.SIGKILL, -signal.SIGTERM), status
        # A save may be durable although its event was not written, so the loaded step may be higher.
        for step in steps_of(tmp_path, attempt, "loaded"):
            assert (step or 0) >= saved
            saved = step or 0
        steps = steps_of(tmp_path, attempt, "saved")
        assert steps == sorted(steps)
        saved = max([saved, *steps])
        left += status == 85
    last = TrainingSession(settings(tmp_path, KILLS))
    state = last.load()
    assert state == state_of(state["step"]) and state["step"] >= saved > 20
    assert left > 10
    last.save(state_of(state["step"] + 1), state["step"] + 1, wait=True)
    names = [path.name for path in (tmp_path / "checkpoints").iterdir()]
    (claim,) = (name for name in names if not checkpoint_names.is_checkpoint(name))
    assert checkpoint_names.parse_claim(claim) > KILLS // 2
    for name in filter(checkpoint_names.is_checkpoint, names):
        checkpoint.verify(str(tmp_path / "checkpoints" / name))
