"""Digests are computed correctly by every implementation, and the right ones are compared."""

from __future__ import annotations

import base64
import hashlib
import zlib
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.node.staging.fetch import crc32c, digests
from outlast.node.staging.fetch.digests import NOBODY, PINNED, SOURCE, Digests, choose_check, normalise_digest
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


def test_all_algorithms_are_computed_from_pieces_of_any_size_and_memory_is_released() -> None:
    digest_set = Digests(ALGORITHMS)
    digest_set.update(memoryview(CONTENT)[:7])
    released = []
    for start in range(7, len(CONTENT), 999):
        digest_set.update_in_background(
            memoryview(CONTENT)[start : start + 999], lambda start=start: released.append(start)
        )  # type: ignore[misc]
    assert digest_set.results() == FOUND
    assert released == list(range(7, len(CONTENT), 999))


def test_an_error_of_the_thread_is_raised_and_memory_is_released_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Bad:
        def update(self, data: object) -> None:
            raise RuntimeError("out of order")

    monkeypatch.setattr(digests, "_new_digest", lambda algorithm: Bad())
    digest_set, released = Digests(("sha256",)), []
    digest_set.update_in_background(b"1", lambda: released.append(1))
    digest_set.update_in_background(b"2", lambda: released.append(2))
    with pytest.raises(RuntimeError, match="out of order"):
        digest_set.results()
    assert released == [1, 2]


@given(st.lists(st.binary(max_size=40)))
def test_the_tables_agree_with_the_definition(parts: list[bytes]) -> None:
    digest_set = crc32c.ByTable()
    for part in parts:
        digest_set.update(memoryview(part))
    assert digest_set.hexdigest() == "%08x" % slow_crc32c(b"".join(parts))


def test_a_package_is_used_only_if_its_result_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    packages: dict[str, object] = {}

    def import_module(name: str) -> object:
        if name in packages:
            return packages[name]
        raise ImportError(name)

    monkeypatch.setattr(crc32c.importlib, "import_module", import_module)
    monkeypatch.setattr(crc32c, "ByKernel", None)

    def is_slow() -> bool:
        crc32c._fastest.cache_clear()
        return crc32c.is_slow()

    try:
        assert is_slow()
        packages["crc32c"] = SimpleNamespace(crc32c=lambda data, value: 17)
        assert is_slow()
        packages["google_crc32c"] = SimpleNamespace(implementation="python", extend=None)
        assert is_slow()
        packages["google_crc32c"] = SimpleNamespace(implementation="c", extend=_extend)
        assert not is_slow()
        digest_set = crc32c.new_digest()
        digest_set.update(memoryview(CONTENT))
        assert digest_set.hexdigest() == FOUND["crc32c"]
    finally:
        crc32c._fastest.cache_clear()


def _extend(crc: int, data: bytes) -> int:
    assert isinstance(data, bytes), "the real one accepts nothing else"
    table = crc32c.ByTable()
    table._crc = crc ^ 0xFFFFFFFF
    table.update(data)
    return int(table.hexdigest(), 16)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_hexadecimal_and_base64_mean_the_same(algorithm: str) -> None:
    value = FOUND[algorithm]
    encoded = base64.b64encode(bytes.fromhex(value)).decode()
    assert normalise_digest(algorithm, value.upper()) == normalise_digest(algorithm, encoded) == value


@pytest.mark.parametrize(("algorithm", "text"), [("sha256", "abc"), ("md5", FOUND["sha1"]), ("sha3", "00")])
def test_an_invalid_digest_is_rejected(algorithm: str, text: str) -> None:
    with pytest.raises(ValueError, match="is not a valid %s digest|known are sha256" % algorithm):
        normalise_digest(algorithm, text)


def test_pinned_digests_come_before_those_of_a_source_and_these_before_the_fallback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    two = {name: FOUND[name] for name in ("md5", "sha256")}
    assert choose_check(two, {"sha1": "x"}, "sha256").vouched == PINNED
    assert set(choose_check(two, {}, "sha256").expected) == {"md5", "sha256"}
    offered = choose_check({}, {"adler32": "x", "md5": FOUND["md5"]}, "sha256")
    assert (offered.algorithms, offered.vouched) == (("md5",), SOURCE)
    assert (choose_check({}, {}, "sha256").algorithms, choose_check({}, {}, "sha256").vouched) == (
        ("sha256",),
        NOBODY,
    )
    monkeypatch.setattr(crc32c, "is_slow", lambda: True)
    assert choose_check({}, {"crc32c": "x", "adler32": "y"}, "sha256").algorithms == ("adler32",)
    assert choose_check({}, {"crc32c": "x"}, "sha256").algorithms == ("crc32c",)
    assert choose_check({"crc32c": "x", "sha256": "y"}, {}, "").algorithms == ("sha256",)
    assert set(choose_check({"crc32c": "x", "adler32": "y"}, {}, "").algorithms) == {"crc32c", "adler32"}
