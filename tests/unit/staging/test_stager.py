"""The stager: from a plan to links in the data directory, through a shared cache."""

from __future__ import annotations

import hashlib
import io
import shutil
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from outlast.node.staging.cache.data_cache import DataCache
from outlast.node.staging.cache.user_directory import UnsafeCache
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
def cache(tmp_path: Path) -> DataCache:
    return DataCache(str(tmp_path / "cache"))


def make_stager(tmp_path: Path, cache: DataCache, name: str = "data", **plan: Any) -> Stager:
    (tmp_path / name).mkdir(exist_ok=True)
    return Stager(DataPlan(**{"patience": 2.0, "stall": 1.0, **plan}), str(tmp_path / name), cache)


def content(top: Path) -> dict[str, bytes]:
    """Return the content of all files below `top`, following links as a training script does."""
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
    tmp_path: Path, cache: DataCache, server: Misbehaving
) -> None:
    item = DataItem((server.url("/plain.bin"),), pin("/plain.bin"))
    first = make_stager(tmp_path, cache).stage(item)
    second = make_stager(tmp_path, cache, "later").stage(item)
    assert first.receipt is not None and first.receipt.vouched == "pinned"
    assert second.receipt is None
    assert content(tmp_path / "later") == {"plain.bin": FILES["/plain.bin"]}
    assert gets(server) == 1


def test_an_item_without_a_digest_is_cached_until_its_source_has_another_file(
    tmp_path: Path, cache: DataCache, server: Misbehaving
) -> None:
    item = DataItem((server.url("/plain.bin"),))
    make_stager(tmp_path, cache).stage(item)
    assert make_stager(tmp_path, cache, "same").stage(item).receipt is None
    server.put("/plain.bin", b"changed")
    assert make_stager(tmp_path, cache, "new").stage(item).receipt is not None
    assert content(tmp_path / "new") == {"plain.bin": b"changed"}


@pytest.mark.parametrize("unpack", ["yes", "nested"])
def test_an_archive_is_unpacked_into_its_directory(
    tmp_path: Path, cache: DataCache, server: Misbehaving, unpack: str
) -> None:
    item = DataItem((server.url("/train.tar"),), pin("/train.tar"), unpack=unpack, to="train")
    make_stager(tmp_path, cache).stage(item)
    inner = (
        {"train/inner/c.txt": b"c"} if unpack == "nested" else {"train/inner.tar": tar_of({"c.txt": b"c"})}
    )
    assert content(tmp_path / "data") == {"train/a.txt": b"a", "train/deep/b.txt": b"b" * 3000, **inner}


@pytest.mark.parametrize("to", ["", "both", "deep/down"])
def test_two_archives_share_a_directory_and_the_cache_is_not_written_to(
    tmp_path: Path, cache: DataCache, server: Misbehaving, to: str
) -> None:
    staging = make_stager(tmp_path, cache)
    one = staging.stage(DataItem((server.url("/train.tar"),), pin("/train.tar"), unpack="yes", to=to))
    staging.stage(DataItem((server.url("/other.tar"),), pin("/other.tar"), unpack="yes", to=to))
    staging.stage(
        DataItem((server.url("/plain.bin"),), pin("/plain.bin"), to=f"{to}/below" if to else "below")
    )
    there = content(tmp_path / "data" / to)
    assert there.keys() == {"a.txt", "deep/b.txt", "inner.tar", "z.txt", "below/plain.bin"}
    assert sorted(path.name for path in Path(one.path).iterdir()) == ["a.txt", "deep", "inner.tar"]


def test_two_items_that_provide_the_same_name_are_refused_with_a_message(
    tmp_path: Path, cache: DataCache, server: Misbehaving
) -> None:
    staging = make_stager(tmp_path, cache)
    staging.stage(DataItem((server.url("/other.tar"),), pin("/other.tar"), unpack="yes"))
    server.put("/more.tar", tar_of({"z.txt": b"another"}))
    with pytest.raises(ValueError, match=r"both provide z\.txt"):
        staging.stage(DataItem((server.url("/more.tar"),), unpack="yes"))


def test_a_staged_item_is_marked_as_in_use_until_it_is_released(
    tmp_path: Path, cache: DataCache, server: Misbehaving
) -> None:
    staging = make_stager(tmp_path, cache)
    staging.stage(DataItem((server.url("/plain.bin"),), pin("/plain.bin")))
    assert [entry.in_use for entry in cache.entries()] == [True]
    staging.release()
    assert [entry.in_use for entry in cache.entries()] == [False]


def test_room_is_made_for_a_new_item(tmp_path: Path, server: Misbehaving) -> None:
    cache = DataCache(str(tmp_path / "cache"), limit=64 * 2**20 + len(TRAIN) + 100)
    staging = make_stager(tmp_path, cache)
    staging.stage(DataItem((server.url("/plain.bin"),), pin("/plain.bin")))
    staging.release()
    staging.stage(DataItem((server.url("/train.tar"),), pin("/train.tar")))
    assert [entry.size for entry in cache.entries()] == [len(TRAIN)]


def of_another_user(tmp_path: Path, digests: Mapping[str, str]) -> Path:
    """Return the path at which another user has a file with this digest in the same cache."""
    entry = tmp_path / "cache" / "of-99999" / "objects" / f"sha256-{digests['sha256']}"
    entry.mkdir(parents=True)
    return entry / "content"


def test_another_users_copy_saves_the_download_and_a_wrong_one_does_no_harm(
    tmp_path: Path, cache: DataCache, server: Misbehaving
) -> None:
    digests = pin("/plain.bin")
    theirs = of_another_user(tmp_path, digests)
    theirs.write_bytes(FILES["/plain.bin"])
    item = DataItem((server.url("/plain.bin"),), digests)
    first = make_stager(tmp_path, cache)
    first.stage(item)
    first.release()
    assert gets(server) == 0
    theirs.write_bytes(b"rubbi" * 1000)
    assert cache.remove(cache.entries()[0])
    make_stager(tmp_path, cache, "again").stage(item)
    assert content(tmp_path / "again") == {"plain.bin": FILES["/plain.bin"]}


def test_a_longer_copy_of_another_user_does_not_prevent_the_use_of_mirrors(
    tmp_path: Path, cache: DataCache, server: Misbehaving
) -> None:
    digests = pin("/plain.bin")
    of_another_user(tmp_path, digests).write_bytes(b"rubbish, and longer" * 1000)
    mirrors = (server.url("/plain.bin"), server.url("/nowhere.bin"))
    make_stager(tmp_path, cache).stage(DataItem(mirrors, digests))
    assert content(tmp_path / "data") == {"plain.bin": FILES["/plain.bin"]}


def test_another_users_copy_is_not_used_if_only_a_checksum_is_pinned(
    tmp_path: Path, cache: DataCache, server: Misbehaving
) -> None:
    server.put("/right.bin", b"plumless")
    item = DataItem((server.url("/right.bin"),), {"crc32": "4ddb0c25"})
    make_stager(tmp_path, cache, "first").stage(item)
    (entry,) = cache.entries()
    theirs = tmp_path / "other" / "of-99999" / "objects" / entry.key
    theirs.mkdir(parents=True)
    (theirs / "content").write_bytes(b"buckeroo")
    make_stager(tmp_path, DataCache(str(tmp_path / "other"))).stage(item)
    assert content(tmp_path / "data") == {"right.bin": b"plumless"}


def test_two_files_with_the_same_checksum_are_kept_apart(
    tmp_path: Path, cache: DataCache, server: Misbehaving
) -> None:
    # These two files have the same 32-bit checksum.
    files = {"/one.bin": b"plumless", "/two.bin": b"buckeroo"}
    assert len({zlib.crc32(data) for data in files.values()}) == 1
    items = []
    for path, data in files.items():
        server.put(path, data)
        items.append(DataItem((server.url(path),), {"crc32": "%08x" % zlib.crc32(data)}))
    staging = make_stager(tmp_path, cache)
    for item in items:
        staging.stage(item)
    assert content(tmp_path / "data") == {path[1:]: data for path, data in files.items()}


def test_a_half_unpacked_archive_needs_room_for_the_rest_only(
    tmp_path: Path, cache: DataCache, server: Misbehaving, monkeypatch: pytest.MonkeyPatch
) -> None:
    big = tar_of({"big": bytes(3_000_000)})
    server.put("/big.tar", big)
    item = DataItem((server.url("/big.tar"),), sha256(big), len(big), unpack="yes")
    server.always(Behaviour(status=500))
    server.plan(Behaviour(close_after=2_500_000))
    with pytest.raises(FetchFailed):
        make_stager(tmp_path, cache).stage(item)
    server.always(Behaviour())
    margin = FetchSettings().margin
    monkeypatch.setattr("outlast.node.staging.fetch.disk_space._free_bytes", lambda place: margin + 1_000_000)
    monkeypatch.setattr("outlast.node.staging.cache.data_cache.free_space", lambda place: margin + 1_000_000)
    make_stager(tmp_path, cache).stage(item)
    assert content(tmp_path / "data") == {"big": bytes(3_000_000)}


def test_wrong_bytes_reach_neither_the_data_directory_nor_the_cache(
    tmp_path: Path, cache: DataCache, server: Misbehaving
) -> None:
    server.put("/plain.bin", b"wrong" * 1000)
    staging = make_stager(tmp_path, cache)
    with pytest.raises(FetchFailed) as failed:
        staging.stage(DataItem((server.url("/plain.bin"),), pin("/plain.bin")))
    assert failed.value.cause.kind is ErrorKind.WRONG_DIGEST
    assert failed.value.costs.by_kind[ErrorKind.WRONG_DIGEST].count
    assert content(tmp_path / "data") == {}
    assert cache.entries() == []


def test_the_next_attempt_resumes_where_this_one_gave_up(
    tmp_path: Path, cache: DataCache, server: Misbehaving
) -> None:
    large = b"0123456789" * 100_000
    server.put("/large.bin", large)
    server.plan(Behaviour(close_after=700_000))
    server.always(Behaviour(status=503))
    item = DataItem((server.url("/large.bin"),), {"sha256": hashlib.sha256(large).hexdigest()})
    with pytest.raises(FetchFailed):
        make_stager(tmp_path, cache, patience=0.5).stage(item)
    server.always(Behaviour())
    staged = make_stager(tmp_path, cache).stage(item)
    assert staged.receipt is not None
    assert staged.receipt.resumed_from == 700_000


def test_a_shared_file_is_used_in_place_and_verified_once(tmp_path: Path, cache: DataCache) -> None:
    file = tmp_path / "plain.bin"
    file.write_bytes(FILES["/plain.bin"])
    item = DataItem((str(file),), pin("/plain.bin"), method="shared")
    make_stager(tmp_path, cache).stage(item)
    assert (tmp_path / "data" / "plain.bin").resolve() == file
    record = next((tmp_path / "cache").rglob("notes/*"))
    verified = record.stat().st_mtime_ns
    make_stager(tmp_path, cache, "again").stage(item)
    assert record.stat().st_mtime_ns == verified
    file.write_bytes(b"wrong" * 1000)
    with pytest.raises(FetchFailed, match="sha256"):
        make_stager(tmp_path, cache, "changed").stage(item)


def test_a_shared_folder_is_linked_as_it_is(tmp_path: Path, cache: DataCache) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    (folder / "a.png").write_bytes(b"a")
    make_stager(tmp_path, cache).stage(DataItem((folder.as_uri(),), method="shared", to="train"))
    assert content(tmp_path / "data") == {"train/images/a.png": b"a"}


@pytest.mark.parametrize("unpack", ["no", "yes"])
def test_data_that_was_complete_when_the_process_was_killed_is_not_fetched_again(
    tmp_path: Path, cache: DataCache, server: Misbehaving, monkeypatch: pytest.MonkeyPatch, unpack: str
) -> None:
    item = DataItem((server.url("/other.tar"),), pin("/other.tar"), unpack=unpack, to="x")

    def killed(*args: object) -> None:
        raise InterruptedError

    with monkeypatch.context() as patch, pytest.raises(InterruptedError):
        patch.setattr("outlast.node.staging.stager.write_entry", killed)
        make_stager(tmp_path, cache).stage(item)
    before = gets(server)
    make_stager(tmp_path, cache, "next").stage(item)
    assert gets(server) == before == 1
    expected = {"x/z.txt": b"z"} if unpack == "yes" else {"x/other.tar": OTHER}
    assert content(tmp_path / "next") == expected


@pytest.mark.parametrize("unpack", ["no", "yes"])
def test_a_writable_item_is_a_private_copy_and_the_cache_stays_as_it_is(
    tmp_path: Path, cache: DataCache, server: Misbehaving, unpack: str
) -> None:
    item = DataItem((server.url("/train.tar"),), pin("/train.tar"), unpack=unpack, to="train", writable=True)
    make_stager(tmp_path, cache).stage(item)
    before = content(tmp_path / "data")
    path = tmp_path / "data" / "train" / ("deep/b.txt" if unpack == "yes" else "train.tar")
    assert path.stat().st_mode & 0o200
    path.write_bytes(b"changed")
    (path.parent / "derived.npy").write_bytes(b"derived")
    assert make_stager(tmp_path, cache, "later").stage(item).receipt is None
    assert content(tmp_path / "later") == before
    assert gets(server) == 1


def test_a_later_leg_finds_its_private_copy_as_it_left_it(
    tmp_path: Path, cache: DataCache, server: Misbehaving
) -> None:
    item = DataItem((server.url("/other.tar"),), pin("/other.tar"), unpack="yes", to="x", writable=True)
    make_stager(tmp_path, cache).stage(item)
    (tmp_path / "data" / "x" / "z.txt").write_bytes(b"changed")
    make_stager(tmp_path, cache).stage(item)
    assert content(tmp_path / "data") == {"x/z.txt": b"changed"}


def test_a_private_copy_that_was_interrupted_is_made_anew(
    tmp_path: Path, cache: DataCache, server: Misbehaving
) -> None:
    item = DataItem((server.url("/train.tar"),), pin("/train.tar"), unpack="yes", writable=True)
    staging, count = make_stager(tmp_path, cache), 0
    staging.stage(item)
    before = content(tmp_path / "data")

    def stop() -> None:
        nonlocal count
        count += "later-writable" in [path.name for path in tmp_path.iterdir()]
        if count == 3:
            raise InterruptedError

    interrupted = make_stager(tmp_path, cache, "later")
    interrupted.pulse = stop
    with pytest.raises(InterruptedError):
        interrupted.stage(item)
    make_stager(tmp_path, cache, "later").stage(item)
    assert content(tmp_path / "later") == before


def test_a_shared_folder_and_a_shared_file_can_be_requested_as_writable(
    tmp_path: Path, cache: DataCache
) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    (folder / "a.png").write_bytes(b"a")
    (folder / "latest").symlink_to("a.png")
    staging = make_stager(tmp_path, cache)
    staging.stage(DataItem((str(folder),), method="shared", writable=True))
    staging.stage(DataItem((str(folder / "a.png"),), method="shared", to="one", writable=True))
    for path in ("images/a.png", "one/a.png"):
        (tmp_path / "data" / path).write_bytes(b"changed")
    names = ("images/a.png", "images/latest", "one/a.png")
    assert content(tmp_path / "data") == dict.fromkeys(names, b"changed")
    assert (folder / "a.png").read_bytes() == b"a"


def test_a_pinned_item_is_not_linked_if_its_cache_was_exchanged_during_the_fetch(
    tmp_path: Path, cache: DataCache, server: Misbehaving, monkeypatch: pytest.MonkeyPatch
) -> None:
    item = DataItem((server.url("/other.tar"),), pin("/other.tar"), unpack="yes", to="x")
    own, linked = Path(cache.root), tmp_path / "data" / "x"
    real = Stager._link_item

    def exchange_and_link(*args: Any) -> None:
        own.rename(tmp_path / "aside")
        shutil.copytree(tmp_path / "aside", own)
        real(*args)

    monkeypatch.setattr(Stager, "_link_item", exchange_and_link)
    with pytest.raises(UnsafeCache):
        make_stager(tmp_path, cache).stage(item)
    assert linked.exists()


def test_a_training_that_alters_its_data_does_not_alter_it_for_the_next_run(
    tmp_path: Path, cache: DataCache, server: Misbehaving
) -> None:
    item = DataItem((server.url("/train.tar"),), pin("/train.tar"), unpack="yes", to="train")
    first = make_stager(tmp_path, cache)
    first.stage(item)
    before = content(tmp_path / "data")
    path = tmp_path / "data" / "train" / "deep" / "b.txt"
    stored = path.stat().st_ctime_ns
    while path.stat().st_ctime_ns == stored:
        path.chmod(0o644)
    path.write_bytes(b"B" * 3000)
    first.release()
    staged = make_stager(tmp_path, cache, "next").stage(item)
    assert staged.receipt is not None
    assert content(tmp_path / "next") == before


def test_only_a_writable_item_has_that_key_in_a_work_order() -> None:
    item = DataItem(("/a",))
    assert "writable" not in item.to_dict()
    assert DataItem.from_dict(item.to_dict()) == item
    writable = DataItem(("/a",), writable=True)
    assert DataItem.from_dict(writable.to_dict()) == writable
