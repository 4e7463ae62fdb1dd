"""Three hundred random sequences of errors, over one to three sources, with processes that die on the way.

Whatever happens, either the right bytes get the final name, or none do and the error names the reason. From
servers that support ranges no byte is fetched twice, except what a dying process had in its buffer.
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

#: Responses that are wrong about the file.
LIES = [
    Behaviour(announce=100),
    Behaviour(announce=-100),
    Behaviour(other_range=17),
    Behaviour(status=404, server=PELICAN),
]

_offset = st.integers(0, SIZE)
_temporary = st.one_of(
    st.just(Behaviour()),
    st.builds(lambda n: Behaviour(close_after=n), _offset),
    st.builds(lambda n: Behaviour(reset_after=n), _offset),
    st.builds(lambda n: Behaviour(chunked=True, close_after=n), _offset),
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
#: Stalls take real time, so there are few.
_stalls = st.builds(lambda n: Behaviour(stall_after=n), _offset)
_wrong = st.one_of(
    st.builds(lambda n: Behaviour(flip=(n,)), st.integers(0, SIZE - 1)),
    st.builds(lambda n: Behaviour(ignore_range=True, close_after=n), _offset),
    st.just(Behaviour(ignore_range=True)),
    st.sampled_from(LIES),
)


@dataclass(frozen=True)
class Scenario:
    """The behaviour of the servers, and when processes die."""

    #: For each source: its behaviour for the first requests, one each, and for all later ones.
    plans: tuple[tuple[Behaviour, ...], ...]
    always: tuple[Behaviour, ...]
    #: Whether each source has the right file.
    right: tuple[bool, ...]
    #: The number of bytes after which each process dies; one more process follows.
    deaths: tuple[int, ...]
    pinned_size: bool

    @property
    def is_honest(self) -> bool:
        """True if all servers have the right file and support ranges, and all errors are temporary."""
        steps = [step for plan in (*self.plans, self.always) for step in plan]
        return all(self.right) and not any(step in LIES or step.flip or step.ignore_range for step in steps)


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    count = draw(st.integers(1, 3))
    with_lies = draw(st.booleans())
    steps = st.one_of(_temporary, _temporary, _wrong) if with_lies else _temporary
    plans = [draw(st.lists(steps, max_size=6)) for _ in range(count)]
    if draw(st.integers(0, 3)) == 0:
        plans[0].append(draw(_stalls))
    rest = [draw(st.sampled_from([Behaviour(), Behaviour(close_after=9000)])) for _ in range(count)]
    if with_lies and draw(st.booleans()):
        rest[0] = draw(_wrong)
    right = [not (with_lies and draw(st.integers(0, 4)) == 0) for _ in range(count)]
    deaths = draw(st.lists(st.integers(0, SIZE), max_size=3))
    return Scenario(
        tuple(tuple(plan) for plan in plans), tuple(rest), tuple(right), tuple(deaths), draw(st.booleans())
    )


class _Death(BaseException):
    pass


class _Mortal(PartFile):
    """A part file whose process dies within a block, after `life` bytes were written."""

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
@given(scenarios())
def test_the_right_bytes_or_a_clear_failure_and_never_wrong_ones(scenario: Scenario) -> None:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        servers = []
        for plan, always, right in zip(scenario.plans, scenario.always, scenario.right, strict=True):
            content = RIGHT if right else seeded(SIZE, seed=3)
            server = stack.enter_context(Misbehaving({PATH: content}))
            server.plan(*plan)
            server.always(always)
            servers.append(server)
        scene = Scene(folder, servers)
        if not _arrives(scene, scenario):
            assert not scene.target.exists()
            assert not scenario.is_honest, "temporary errors are waited out"
            return
        assert scene.target.read_bytes() == RIGHT
        assert scene.left() == ["a.bin"]
        assert threads_of_fetches() == []
        if scenario.is_honest:
            event("arrived from honest servers")
            assert scene.read - SIZE <= BLOCK * len(scenario.deaths)


def _arrives(scene: Scene, scenario: Scenario) -> bool:
    """Return True if the file arrives, in the last process or an earlier one."""
    size = SIZE if scenario.pinned_size else None
    for life in scenario.deaths:
        try:
            scene.fetch(PINNED, size=size, sink=_Mortal(scene.folder, life))
        except _Death:
            event("a process died")
            assert not scene.target.exists()
            continue
        except FetchFailed as error:
            _assert_names_reason(error)
            continue
        return True
    try:
        scene.fetch(PINNED, size=size)
    except FetchFailed as error:
        _assert_names_reason(error)
        return False
    return True


def _assert_names_reason(error: FetchFailed) -> None:
    event("failed: %s" % error.cause.kind.value)
    assert str(error.cause) in str(error)
    assert error.outcome
