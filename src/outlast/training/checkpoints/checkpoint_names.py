"""Names in the checkpoint directory of a run::

    step-000000001234-g000007-s000003     a checkpoint: step, generation, sequence in the generation
    .step-….<pid>-<process>-<random>.tmp  one being written or removed
    .bad-step-…-<random>                  a damaged one, renamed
    .newer-step-…                         one of a newer version, renamed by the user to resume before it
    .generation-000007                    the claim of the newest attempt

Each attempt that works on the run claims the next generation. The newest checkpoint is the one with the
highest (generation, sequence), whatever its step: a run that went back to an earlier step continues from
there.

The node program must not import this package and has the pattern of a checkpoint's name again, in
`outlast.node.sandbox.layout`; a unit test compares the two.
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
#: Processes on two nodes, or in two containers, can have the same pid.
_PROCESS = secrets.token_hex(4)

#: Generation and sequence.
Age = Tuple[int, int]


def checkpoint_name(step: int, age: Age) -> str:
    return "step-%012d-g%06d-s%06d" % (step, age[0], age[1])


def is_checkpoint(name: str) -> bool:
    """Return True if this is the name of a complete checkpoint."""
    return _AGE.fullmatch(name) is not None


def parse_age(name: str) -> Age:
    """Return the age in a checkpoint's name, also in a `.bad-` or temporary one; (0, 0) if there is none."""
    match = _AGE.search(name)
    return (int(match.group(1)), int(match.group(2))) if match else (0, 0)


def temporary_name(name: str) -> str:
    """Return a unique name for writing or removing this checkpoint in this process."""
    return ".%s.%s-%s.tmp" % (name.replace(_BAD, ""), _owner(), secrets.token_hex(4))


def _owner() -> str:
    return "%d-%s" % (os.getpid(), _PROCESS)


def is_leftover(name: str, generation: int) -> bool:
    """Return True for an unfinished checkpoint of an older generation or of a failed save of this process."""
    match = _TEMPORARY.fullmatch(name)
    if match is None:
        return False
    theirs, owner = int(match.group(1)), match.group(3)
    return theirs < generation or (theirs == generation and owner == _owner())


def bad_name(name: str) -> str:
    """Return a unique name for a damaged checkpoint."""
    return "%s%s-%s" % (_BAD, name, secrets.token_hex(4))


def is_bad(name: str) -> bool:
    return name.startswith(_BAD)


def newer_name(name: str) -> str:
    """Return the name for a checkpoint of a newer version that shall not be loaded."""
    return ".newer-" + name


def claim_name(generation: int) -> str:
    return ".generation-%06d" % generation


def parse_claim(name: str) -> int:
    """Return the generation that this name claims; 0 if it is not a claim."""
    match = _CLAIM.fullmatch(name)
    return int(match.group(1)) if match else 0
