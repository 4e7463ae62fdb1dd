"""Three hundred random sequences of troubles over one to three sources, and processes that die on the way.

Whatever happens, the right bytes get the name, or nothing does and the reason is said. Where the servers know
ranges no byte is fetched twice but what a dying process had in its buffer.
"""

from __future__ import annotations

import contextlib
import tempfile
from dataclasses import dataclass
from pathlib import Path

from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from outlast.node.archives.sink import Block
from outlast.node.staging.errors import FetchFailed
from outlast.node.staging.fetch.part_file import PartFile
from servers.behaviour import PELICAN, Behaviour, seeded
from servers.misbehaving import Misbehaving
from support.fetching import BLOCK, CONTENT, PATH, Scene, sha256, threads_of_fetches

SIZE = 40_000
RIGHT = CONTENT[:SIZE]
PINNED = sha256(RIGHT)

#: Answers that contradict what the file is.
LIES = [
    Behaviour(announce=100),
    Behaviour(announce=-100),
    Behaviour(other_range=17),
    Behaviour(status=404, server=PELICAN),
]

_where = st.integers(0, SIZE)
_passing = st.one_of(
    st.just(Behaviour()),
    st.builds(lambda n: Behaviour(close_after=n), _where),
    st.builds(lambda n: Behaviour(reset_after=n), _where),
    st.builds(lambda n: Behaviour(chunked=True, close_after=n), _where),
    st.sampled_from(
        [
            Behaviour(status=404),
            Behaviour(status=403),
            Behaviour(status=500),
            Behaviour(status=429, headers=(("Retry-After", "3"),)),
            Behaviour(rubbish=b"\0\1\2"),
            Behaviour(chunked=True),
            Behaviour(chunked=True, no_last_chunk=True),
            Behaviour(chunked=True, trailers=(("X-Transfer-Status", "500: no"),)),
        ]
    ),
)
#: A stall takes real time: few of them.
_stalls = st.builds(lambda n: Behaviour(stall_after=n), _where)
_wrong = st.one_of(
    st.builds(lambda n: Behaviour(flip=(n,)), st.integers(0, SIZE - 1)),
    st.builds(lambda n: Behaviour(ignore_range=True, close_after=n), _where),
    st.just(Behaviour(ignore_range=True)),
    st.sampled_from(LIES),
)


@dataclass(frozen=True)
class Play:
    #: For each source: what it does with one request after the other, and with all others.
    plans: tuple[tuple[Behaviour, ...], ...]
    always: tuple[Behaviour, ...]
    #: Whether each source has the right file.
    right: tuple[bool, ...]
    #: After how many bytes one process after the other dies.
    deaths: tuple[int, ...]
    pinned_size: bool

    @property
    def is_honest(self) -> bool:
        """All servers have the file and know ranges, and what goes wrong passes."""
        does = [step for plan in (*self.plans, self.always) for step in plan]
        return all(self.right) and not any(step in LIES or step.flip or step.ignore_range for step in does)


@st.composite
def plays(draw: st.DrawFn) -> Play:
    count = draw(st.integers(1, 3))
    harsh = draw(st.booleans())
    steps = st.one_of(_passing, _passing, _wrong) if harsh else _passing
    plans = [draw(st.lists(steps, max_size=6)) for _ in range(count)]
    if draw(st.integers(0, 3)) == 0:
        plans[0].append(draw(_stalls))
    rest = [draw(st.sampled_from([Behaviour(), Behaviour(close_after=9000)])) for _ in range(count)]
    if harsh and draw(st.booleans()):
        rest[0] = draw(_wrong)
    right = [not (harsh and draw(st.integers(0, 4)) == 0) for _ in range(count)]
    deaths = draw(st.lists(st.integers(0, SIZE), max_size=3))
    return Play(
        tuple(tuple(plan) for plan in plans), tuple(rest), tuple(right), tuple(deaths), draw(st.booleans())
    )


class _Death(BaseException):
    pass


class _Mortal(PartFile):
    """Dies in the middle of a block, with what was written before it on disk."""

    def __init__(self, folder: Path, life: int) -> None:
        super().__init__(str(folder), "a.bin")
        self._life = life

    def write(self, block: Block) -> None:
        if self._life < len(block):
            super().write(memoryview(block)[: self._life])
            raise _Death
        self._life -= len(block)
        super().write(block)


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(plays())
def test_the_right_bytes_or_a_clear_failure_and_never_wrong_ones(play: Play) -> None:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        servers = []
        for plan, always, right in zip(play.plans, play.always, play.right, strict=True):
            content = RIGHT if right else seeded(SIZE, seed=3)
            server = stack.enter_context(Misbehaving({PATH: content}))
            server.plan(*plan)
            server.always(always)
            servers.append(server)
        scene = Scene(folder, servers)
        if not _lives(scene, play):
            assert not scene.target.exists()
            assert not play.is_honest, "what passes is waited out"
            return
        assert scene.target.read_bytes() == RIGHT
        assert scene.left() == ["a.bin"]
        assert threads_of_fetches() == []
        if play.is_honest:
            event("arrived from honest servers")
            assert scene.read - SIZE <= BLOCK * len(play.deaths)


def _lives(scene: Scene, play: Play) -> bool:
    """Whether the file arrives, in the last process or one before."""
    size = SIZE if play.pinned_size else None
    for life in play.deaths:
        try:
            scene.fetch(PINNED, size=size, sink=_Mortal(scene.folder, life))
        except _Death:
            event("a process died")
            assert not scene.target.exists()
            continue
        except FetchFailed as error:
            _assert_clear(error)
            continue
        return True
    try:
        scene.fetch(PINNED, size=size)
    except FetchFailed as error:
        _assert_clear(error)
        return False
    return True


def _assert_clear(error: FetchFailed) -> None:
    event("given up: %s" % error.trouble.kind.value)
    assert str(error.trouble) in str(error)
    assert error.outcome
