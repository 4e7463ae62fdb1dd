"""From a plan to the data directory: through the store, by links, once for everybody."""

from __future__ import annotations

import hashlib
import io
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from outlast.node.staging.cache.data_cache import DataCache
from outlast.node.staging.errors import ErrorKind, FetchFailed
from outlast.node.staging.fetch.fetch_settings import FetchSettings
from outlast.node.staging.item import DataItem
from outlast.node.staging.plan import DataPlan
from outlast.node.staging.stager import Stager
from servers.behaviour import Behaviour
from servers.misbehaving import Misbehaving


def tar_of(files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


TRAIN = tar_of({"a.txt": b"a", "deep/b.txt": b"b" * 3000, "inner.tar": tar_of({"c.txt": b"c"})})
OTHER = tar_of({"z.txt": b"z"})
FILES = {"/train.tar": TRAIN, "/other.tar": OTHER, "/plain.bin": b"plain" * 1000}


def sha256(content: bytes) -> dict[str, str]:
    return {"sha256": hashlib.sha256(content).hexdigest()}


def pin(path: str) -> dict[str, str]:
    return sha256(FILES[path])


@pytest.fixture
def server() -> Iterator[Misbehaving]:
    with Misbehaving(FILES) as running:
        yield running


@pytest.fixture
def store(tmp_path: Path) -> DataCache:
    return DataCache(str(tmp_path / "cache"))


def arrivals(tmp_path: Path, store: DataCache, name: str = "data", **plan: Any) -> Stager:
    (tmp_path / name).mkdir(exist_ok=True)
    return Stager(DataPlan(**{"patience": 2.0, "stall": 1.0, **plan}), str(tmp_path / name), store)


def content(top: Path) -> dict[str, bytes]:
    """Through the links, as a training sees it."""
    found: dict[str, bytes] = {}
    for path in sorted(top.iterdir()):
        if path.is_dir():
            found.update({f"{path.name}/{name}": data for name, data in content(path).items()})
        else:
            found[path.name] = path.read_bytes()
    return found


def gets(server: Misbehaving) -> int:
    return sum(request.method == "GET" for request in server.requests)


def test_a_second_attempt_finds_what_the_first_has_fetched(
    tmp_path: Path, store: DataCache, server: Misbehaving
) -> None:
    wanted = DataItem((server.url("/plain.bin"),), pin("/plain.bin"))
    first = arrivals(tmp_path, store).bring(wanted)
    second = arrivals(tmp_path, store, "later").bring(wanted)
    assert first.receipt is not None and first.receipt.vouched == "pinned"
    assert second.receipt is None
    assert content(tmp_path / "later") == {"plain.bin": FILES["/plain.bin"]}
    assert gets(server) == 1


def test_what_nobody_pinned_is_kept_as_well_until_the_source_has_another_file(
    tmp_path: Path, store: DataCache, server: Misbehaving
) -> None:
    wanted = DataItem((server.url("/plain.bin"),))
    arrivals(tmp_path, store).bring(wanted)
    assert arrivals(tmp_path, store, "same").bring(wanted).receipt is None
    server.put("/plain.bin", b"changed")
    assert arrivals(tmp_path, store, "new").bring(wanted).receipt is not None
    assert content(tmp_path / "new") == {"plain.bin": b"changed"}


@pytest.mark.parametrize("unpack", ["yes", "nested"])
def test_an_archive_is_unpacked_into_its_directory(
    tmp_path: Path, store: DataCache, server: Misbehaving, unpack: str
) -> None:
    wanted = DataItem((server.url("/train.tar"),), pin("/train.tar"), unpack=unpack, to="train")
    arrivals(tmp_path, store).bring(wanted)
    inner = (
        {"train/inner/c.txt": b"c"} if unpack == "nested" else {"train/inner.tar": tar_of({"c.txt": b"c"})}
    )
    assert content(tmp_path / "data") == {"train/a.txt": b"a", "train/deep/b.txt": b"b" * 3000, **inner}


@pytest.mark.parametrize("to", ["", "both", "deep/down"])
def test_two_archives_share_a_directory_and_the_store_is_not_written_to(
    tmp_path: Path, store: DataCache, server: Misbehaving, to: str
) -> None:
    bring = arrivals(tmp_path, store)
    one = bring.bring(DataItem((server.url("/train.tar"),), pin("/train.tar"), unpack="yes", to=to))
    bring.bring(DataItem((server.url("/other.tar"),), pin("/other.tar"), unpack="yes", to=to))
    bring.bring(DataItem((server.url("/plain.bin"),), pin("/plain.bin"), to=f"{to}/below" if to else "below"))
    there = content(tmp_path / "data" / to)
    assert there.keys() == {"a.txt", "deep/b.txt", "inner.tar", "z.txt", "below/plain.bin"}
    assert sorted(path.name for path in Path(one.path).iterdir()) == ["a.txt", "deep", "inner.tar"]


def test_two_items_that_bring_the_same_name_are_refused_in_words(
    tmp_path: Path, store: DataCache, server: Misbehaving
) -> None:
    bring = arrivals(tmp_path, store)
    bring.bring(DataItem((server.url("/other.tar"),), pin("/other.tar"), unpack="yes"))
    server.put("/more.tar", tar_of({"z.txt": b"another"}))
    with pytest.raises(ValueError, match=r"both bring z\.txt"):
        bring.bring(DataItem((server.url("/more.tar"),), unpack="yes"))


def test_what_is_in_use_is_marked_until_it_is_released(
    tmp_path: Path, store: DataCache, server: Misbehaving
) -> None:
    bring = arrivals(tmp_path, store)
    bring.bring(DataItem((server.url("/plain.bin"),), pin("/plain.bin")))
    assert [entry.in_use for entry in store.entries()] == [True]
    bring.release()
    assert [entry.in_use for entry in store.entries()] == [False]


def test_room_is_made_for_what_comes(tmp_path: Path, server: Misbehaving) -> None:
    store = DataCache(str(tmp_path / "cache"), limit=64 * 2**20 + len(TRAIN) + 100)
    bring = arrivals(tmp_path, store)
    bring.bring(DataItem((server.url("/plain.bin"),), pin("/plain.bin")))
    bring.release()
    bring.bring(DataItem((server.url("/train.tar"),), pin("/train.tar")))
    assert [entry.size for entry in store.entries()] == [len(TRAIN)]


def of_another_user(tmp_path: Path, digests: Mapping[str, str]) -> Path:
    """Where somebody else has a file with this digest in the same cache."""
    entry = tmp_path / "cache" / "of-99999" / "objects" / f"sha256-{digests['sha256']}"
    entry.mkdir(parents=True)
    return entry / "content"


def test_another_users_copy_spares_the_network_and_a_wrong_one_does_no_harm(
    tmp_path: Path, store: DataCache, server: Misbehaving
) -> None:
    digests = pin("/plain.bin")
    theirs = of_another_user(tmp_path, digests)
    theirs.write_bytes(FILES["/plain.bin"])
    wanted = DataItem((server.url("/plain.bin"),), digests)
    first = arrivals(tmp_path, store)
    first.bring(wanted)
    first.release()
    assert gets(server) == 0
    theirs.write_bytes(b"rubbi" * 1000)
    assert store.remove(store.entries()[0])
    arrivals(tmp_path, store, "again").bring(wanted)
    assert content(tmp_path / "again") == {"plain.bin": FILES["/plain.bin"]}


def test_a_longer_copy_of_another_users_keeps_no_mirror_from_being_asked(
    tmp_path: Path, store: DataCache, server: Misbehaving
) -> None:
    digests = pin("/plain.bin")
    of_another_user(tmp_path, digests).write_bytes(b"rubbish, and longer" * 1000)
    mirrors = (server.url("/plain.bin"), server.url("/nowhere.bin"))
    arrivals(tmp_path, store).bring(DataItem(mirrors, digests))
    assert content(tmp_path / "data") == {"plain.bin": FILES["/plain.bin"]}


def test_another_users_copy_is_no_source_where_a_checksum_is_all_that_is_pinned(
    tmp_path: Path, store: DataCache, server: Misbehaving
) -> None:
    server.put("/right.bin", b"plumless")
    wanted = DataItem((server.url("/right.bin"),), {"crc32": "4ddb0c25"})
    arrivals(tmp_path, store, "first").bring(wanted)
    (entry,) = store.entries()
    theirs = tmp_path / "other" / "of-99999" / "objects" / entry.key
    theirs.mkdir(parents=True)
    (theirs / "content").write_bytes(b"buckeroo")
    arrivals(tmp_path, DataCache(str(tmp_path / "other"))).bring(wanted)
    assert content(tmp_path / "data") == {"right.bin": b"plumless"}


def test_two_files_of_the_same_checksum_are_two(
    tmp_path: Path, store: DataCache, server: Misbehaving
) -> None:
    # As weak as a checksum of 32 bits is, these two have the same.
    files = {"/one.bin": b"plumless", "/two.bin": b"buckeroo"}
    assert len({zlib.crc32(data) for data in files.values()}) == 1
    wanted = []
    for path, data in files.items():
        server.put(path, data)
        wanted.append(DataItem((server.url(path),), {"crc32": "%08x" % zlib.crc32(data)}))
    both = arrivals(tmp_path, store)
    for item in wanted:
        both.bring(item)
    assert content(tmp_path / "data") == {path[1:]: data for path, data in files.items()}


def test_what_is_half_unpacked_needs_room_for_the_other_half_only(
    tmp_path: Path, store: DataCache, server: Misbehaving, monkeypatch: pytest.MonkeyPatch
) -> None:
    big = tar_of({"big": bytes(3_000_000)})
    server.put("/big.tar", big)
    wanted = DataItem((server.url("/big.tar"),), sha256(big), len(big), unpack="yes")
    server.always(Behaviour(status=500))
    server.plan(Behaviour(close_after=2_500_000))
    with pytest.raises(FetchFailed):
        arrivals(tmp_path, store).bring(wanted)
    server.always(Behaviour())
    margin = FetchSettings().margin
    monkeypatch.setattr("outlast.node.staging.fetch.disk_space._free", lambda place: margin + 1_000_000)
    monkeypatch.setattr("outlast.node.staging.cache.data_cache.free_space", lambda place: margin + 1_000_000)
    arrivals(tmp_path, store).bring(wanted)
    assert content(tmp_path / "data") == {"big": bytes(3_000_000)}


def test_wrong_bytes_reach_neither_the_data_directory_nor_the_store(
    tmp_path: Path, store: DataCache, server: Misbehaving
) -> None:
    server.put("/plain.bin", b"wrong" * 1000)
    bring = arrivals(tmp_path, store)
    with pytest.raises(FetchFailed) as given_up:
        bring.bring(DataItem((server.url("/plain.bin"),), pin("/plain.bin")))
    assert given_up.value.trouble.kind is ErrorKind.WRONG_DIGEST
    assert given_up.value.costs.by_kind[ErrorKind.WRONG_DIGEST].count
    assert content(tmp_path / "data") == {}
    assert store.entries() == []


def test_the_next_attempt_goes_on_where_this_one_gave_up(
    tmp_path: Path, store: DataCache, server: Misbehaving
) -> None:
    large = b"0123456789" * 100_000
    server.put("/large.bin", large)
    server.plan(Behaviour(close_after=700_000))
    server.always(Behaviour(status=503))
    wanted = DataItem((server.url("/large.bin"),), {"sha256": hashlib.sha256(large).hexdigest()})
    with pytest.raises(FetchFailed):
        arrivals(tmp_path, store, patience=0.5).bring(wanted)
    server.always(Behaviour())
    arrived = arrivals(tmp_path, store).bring(wanted)
    assert arrived.receipt is not None
    assert arrived.receipt.resumed_from == 700_000


def test_a_shared_file_is_used_where_it_lies_and_looked_at_once(tmp_path: Path, store: DataCache) -> None:
    file = tmp_path / "plain.bin"
    file.write_bytes(FILES["/plain.bin"])
    wanted = DataItem((str(file),), pin("/plain.bin"), method="shared")
    arrivals(tmp_path, store).bring(wanted)
    assert (tmp_path / "data" / "plain.bin").resolve() == file
    note = next((tmp_path / "cache").rglob("notes/*"))
    looked = note.stat().st_mtime_ns
    arrivals(tmp_path, store, "again").bring(wanted)
    assert note.stat().st_mtime_ns == looked
    file.write_bytes(b"wrong" * 1000)
    with pytest.raises(FetchFailed, match="sha256"):
        arrivals(tmp_path, store, "changed").bring(wanted)


def test_a_shared_folder_is_linked_as_it_is(tmp_path: Path, store: DataCache) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    (folder / "a.png").write_bytes(b"a")
    arrivals(tmp_path, store).bring(DataItem((folder.as_uri(),), method="shared", to="train"))
    assert content(tmp_path / "data") == {"train/images/a.png": b"a"}


@pytest.mark.parametrize("unpack", ["no", "yes"])
def test_what_was_whole_when_a_process_was_killed_is_not_fetched_again(
    tmp_path: Path, store: DataCache, server: Misbehaving, monkeypatch: pytest.MonkeyPatch, unpack: str
) -> None:
    wanted = DataItem((server.url("/other.tar"),), pin("/other.tar"), unpack=unpack, to="x")

    def killed(place: str, size: int, source: str) -> None:
        raise InterruptedError

    with monkeypatch.context() as patch, pytest.raises(InterruptedError):
        patch.setattr("outlast.node.staging.stager.write_entry", killed)
        arrivals(tmp_path, store).bring(wanted)
    before = gets(server)
    arrivals(tmp_path, store, "next").bring(wanted)
    assert gets(server) == before == 1
    expected = {"x/z.txt": b"z"} if unpack == "yes" else {"x/other.tar": OTHER}
    assert content(tmp_path / "next") == expected
