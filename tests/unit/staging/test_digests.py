"""Digests: the right ones are computed, by whichever implementation there is, and rightly compared."""

from __future__ import annotations

import base64
import hashlib
import zlib
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.node.staging.fetch import crc32c, digests
from outlast.node.staging.fetch.digests import NOBODY, PINNED, SOURCE, Digests, normalised, proof
from outlast.node.staging.item import ALGORITHMS
from servers.behaviour import crc32c as slow_crc32c
from servers.behaviour import seeded

CONTENT = seeded(50_001)
FOUND = {
    "sha256": hashlib.sha256(CONTENT).hexdigest(),
    "sha1": hashlib.sha1(CONTENT).hexdigest(),
    "md5": hashlib.md5(CONTENT).hexdigest(),
    "crc32c": "%08x" % slow_crc32c(CONTENT),
    "crc32": "%08x" % zlib.crc32(CONTENT),
    "adler32": "%08x" % zlib.adler32(CONTENT),
}


def test_all_algorithms_are_computed_in_any_cut_and_memory_comes_back() -> None:
    computing = Digests(ALGORITHMS)
    computing.replay(memoryview(CONTENT)[:7])
    back = []
    for start in range(7, len(CONTENT), 999):
        computing.feed(memoryview(CONTENT)[start : start + 999], lambda start=start: back.append(start))  # type: ignore[misc]
    assert computing.results() == FOUND
    assert back == list(range(7, len(CONTENT), 999))


def test_an_error_of_the_thread_is_raised_and_memory_comes_back_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Bad:
        def update(self, data: object) -> None:
            raise RuntimeError("out of order")

    monkeypatch.setattr(digests, "_new", lambda algorithm: Bad())
    computing, back = Digests(("sha256",)), []
    computing.feed(b"1", lambda: back.append(1))
    computing.feed(b"2", lambda: back.append(2))
    with pytest.raises(RuntimeError, match="out of order"):
        computing.results()
    assert back == [1, 2]


@given(st.lists(st.binary(max_size=40)))
def test_the_tables_give_what_the_definition_gives(parts: list[bytes]) -> None:
    computing = crc32c.ByTable()
    for part in parts:
        computing.update(memoryview(part))
    assert computing.hexdigest() == "%08x" % slow_crc32c(b"".join(parts))


def test_a_package_is_used_if_it_is_right_and_not_if_it_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    packages: dict[str, object] = {}

    def import_module(name: str) -> object:
        if name in packages:
            return packages[name]
        raise ImportError(name)

    monkeypatch.setattr(crc32c.importlib, "import_module", import_module)
    monkeypatch.setattr(crc32c, "ByKernel", None)

    def is_slow() -> bool:
        crc32c._best.cache_clear()
        return crc32c.is_slow()

    try:
        assert is_slow()
        packages["crc32c"] = SimpleNamespace(crc32c=lambda data, value: 17)
        assert is_slow()
        packages["google_crc32c"] = SimpleNamespace(implementation="python", extend=None)
        assert is_slow()
        packages["google_crc32c"] = SimpleNamespace(implementation="c", extend=_extend)
        assert not is_slow()
        computing = crc32c.new()
        computing.update(memoryview(CONTENT))
        assert computing.hexdigest() == FOUND["crc32c"]
    finally:
        crc32c._best.cache_clear()


def _extend(crc: int, data: bytes) -> int:
    assert isinstance(data, bytes), "the real one takes nothing else"
    table = crc32c.ByTable()
    table._crc = crc ^ 0xFFFFFFFF
    table.update(data)
    return int(table.hexdigest(), 16)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_hexadecimal_and_base64_mean_the_same(algorithm: str) -> None:
    value = FOUND[algorithm]
    encoded = base64.b64encode(bytes.fromhex(value)).decode()
    assert normalised(algorithm, value.upper()) == normalised(algorithm, encoded) == value


@pytest.mark.parametrize(("algorithm", "text"), [("sha256", "abc"), ("md5", FOUND["sha1"]), ("sha3", "00")])
def test_what_is_no_digest_is_said_to_be_none(algorithm: str, text: str) -> None:
    with pytest.raises(ValueError, match="no %s digest|known are sha256" % algorithm):
        normalised(algorithm, text)


def test_what_is_pinned_goes_before_what_a_source_says_and_that_before_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    two = {name: FOUND[name] for name in ("md5", "sha256")}
    assert proof(two, {"sha1": "x"}, "sha256").vouched == PINNED
    assert set(proof(two, {}, "sha256").expected) == {"md5", "sha256"}
    said = proof({}, {"adler32": "x", "md5": FOUND["md5"]}, "sha256")
    assert (said.algorithms, said.vouched) == (("md5",), SOURCE)
    assert (proof({}, {}, "sha256").algorithms, proof({}, {}, "sha256").vouched) == (("sha256",), NOBODY)
    monkeypatch.setattr(crc32c, "is_slow", lambda: True)
    assert proof({}, {"crc32c": "x", "adler32": "y"}, "sha256").algorithms == ("adler32",)
    assert proof({}, {"crc32c": "x"}, "sha256").algorithms == ("crc32c",)
    assert proof({"crc32c": "x", "sha256": "y"}, {}, "").algorithms == ("sha256",)
    assert set(proof({"crc32c": "x", "adler32": "y"}, {}, "").algorithms) == {"crc32c", "adler32"}
