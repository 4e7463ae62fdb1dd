"""Names in the checkpoint directory of a run.

    step-000000001234-g000007-s000003     a checkpoint: step, generation, sequence in the generation
    .step-….<pid>-<process>-<random>.tmp  one being written, or being removed
    .bad-step-…-<random>                  one that was not whole, put aside
    .generation-000007                    the claim of the newest attempt

Each attempt that works on the run claims the next generation. The newest checkpoint is that of the highest
(generation, sequence), whatever its step: a training that had to step back is newer than what it left.
"""

from __future__ import annotations

import os
import re
import secrets
from typing import Tuple

_AGE = re.compile(r"step-\d{12,}-g(\d{6,})-s(\d{6,})")
_TEMPORARY = re.compile(r"\." + _AGE.pattern + r".*\.(\d+-[0-9a-f]+)(-[0-9a-f]+)?\.tmp")
_CLAIM = re.compile(r"\.generation-(\d{6,})")
_BAD = ".bad-"
#: Processes on two nodes, or in two containers, may have one number.
_PROCESS = secrets.token_hex(4)

#: Generation and sequence.
Age = Tuple[int, int]


def checkpoint_name(step: int, age: Age) -> str:
    return "step-%012d-g%06d-s%06d" % (step, age[0], age[1])


def is_checkpoint(name: str) -> bool:
    return _AGE.fullmatch(name) is not None


def age_of(name: str) -> Age:
    """By what the name says, also of one put aside; a name that is not ours is older than all."""
    match = _AGE.search(name)
    return (int(match.group(1)), int(match.group(2))) if match else (0, 0)


def temporary_name(name: str) -> str:
    return ".%s.%s-%s.tmp" % (name.replace(_BAD, ""), _owner(), secrets.token_hex(4))


def _owner() -> str:
    return "%d-%s" % (os.getpid(), _PROCESS)


def is_left_over(name: str, generation: int) -> bool:
    """Whether this is half-written by an older generation, or by a failed save of this very process."""
    match = _TEMPORARY.fullmatch(name)
    if match is None:
        return False
    theirs, owner = int(match.group(1)), match.group(3)
    return theirs < generation or (theirs == generation and owner == _owner())


def bad_name(name: str) -> str:
    return "%s%s-%s" % (_BAD, name, secrets.token_hex(4))


def is_bad(name: str) -> bool:
    return name.startswith(_BAD)


def claim_name(generation: int) -> str:
    return ".generation-%06d" % generation


def claimed(name: str) -> int:
    """The generation that this name claims; 0 if it is no claim."""
    match = _CLAIM.fullmatch(name)
    return int(match.group(1)) if match else 0
