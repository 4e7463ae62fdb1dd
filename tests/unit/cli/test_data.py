"""`outlast data`: fetched by hand, asked, pinned, and what is in a cache."""

from __future__ import annotations

import hashlib
import json
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from outlast.cli import data_progress, live
from outlast.cli.commands.data import command
from outlast.cli.data_common import ADVICE
from outlast.cli.data_progress import in_words, state_of_trouble
from outlast.node.event_log import EventLog
from outlast.node.staging.cache.data_cache import DataCache
from outlast.node.staging.cache.entry import write_entry
from outlast.node.staging.errors import OUTCOMES, ErrorKind
from outlast.node.staging.fetch.receipt import FetchProgress
from outlast.node.staging.item import DataItem
from outlast.node.staging.phase import StagePhase
from outlast.node.staging.plan import DataPlan
from servers.behaviour import Behaviour, rfc3230, seeded
from servers.certificates import Authority
from servers.misbehaving import Misbehaving
from support.archives import tar

DOCS = Path(__file__).resolve().parents[3] / "docs"
BODY = seeded(300_000)
SHA = hashlib.sha256(BODY).hexdigest()
MD5 = hashlib.md5(BODY).hexdigest()
ARCHIVE = tar({"d/one": b"1", "d/two": b"2"})


@pytest.fixture
def server() -> Iterator[Misbehaving]:
    with Misbehaving({"/a.bin": BODY, "/b.bin": BODY, "/c.tar": ARCHIVE}) as running:
        running.put("/v.bin", BODY, digest_headers={"Digest": rfc3230(BODY, "md5")})
        yield running


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    experiment = tmp_path / "experiment"
    experiment.mkdir()
    return experiment


def typed(*arguments: str | Path) -> Result:
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


def told(*arguments: str | Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(typed(*arguments, "--json").stdout)
    return found


def write(directory: Path, *entries: str, more: str = "") -> None:
    lines = "".join("  - %s\n" % entry for entry in entries)
    (directory / "params.yaml").write_text("command: sh -c true\ndata:\n%s%s" % (lines, more))


# fetch


def test_a_fetch_tells_what_came_and_who_vouched_for_it(server: Misbehaving, tmp_path: Path) -> None:
    result = typed("fetch", server.url("/v.bin"), "--to", tmp_path / "x")
    assert (tmp_path / "x" / "v.bin").read_bytes() == BODY
    lines = result.stdout.splitlines()
    assert lines[0] == "%s is there" % (tmp_path / "x" / "v.bin")
    assert lines[1].startswith("  300 kB in ")
    assert lines[2] == "  checked: md5 is the one that the source tells"
    pinned = typed("fetch", server.url("/a.bin"), "--to", tmp_path, "--sha256", SHA)
    assert "  checked: sha256 is the pinned one" in pinned.stdout
    nobody = typed("fetch", server.url("/b.bin"), "--to", tmp_path)
    assert "nobody vouched for it; its digest is sha256 %s" % SHA in nobody.stdout


def test_troubles_are_told_with_what_they_cost(server: Misbehaving, tmp_path: Path) -> None:
    server.plan(Behaviour(close_after=100_000))
    options = ("--to", tmp_path, "--sha256", SHA, "--connections", "1", "--mirror", server.url("/b.bin"))
    result = typed("fetch", server.url("/a.bin"), *options)
    assert re.search(r"trouble: truncated, 1×", result.stdout)
    assert "from %s: " % server.url("/a.bin") in result.stdout
    assert "from %s: " % server.url("/b.bin") in result.stdout


def test_an_archive_is_unpacked_on_the_way(server: Misbehaving, tmp_path: Path) -> None:
    result = typed("fetch", server.url("/c.tar"), "--to", tmp_path / "t", "--unpack", "yes")
    assert result.stdout.startswith("%s has what was in c.tar" % (tmp_path / "t"))
    assert (tmp_path / "t" / "d" / "two").read_bytes() == b"2"
    assert not (tmp_path / "t" / "c.tar").exists()


def test_a_fetch_in_json_has_path_and_receipt(server: Misbehaving, tmp_path: Path) -> None:
    found = told("fetch", server.url("/a.bin"), "--to", tmp_path)
    assert (found["ok"], found["path"], found["bytes"]) == (True, str(tmp_path / "a.bin"), len(BODY))
    assert found["digests"] == {"sha256": SHA}


def test_what_did_not_arrive_ends_with_1_and_what_to_do(server: Misbehaving, tmp_path: Path) -> None:
    arguments = ("fetch", server.url("/a.bin"), "--to", tmp_path, "--sha256", "00" * 32)
    result = typed(*arguments)
    assert result.exit_code == 1
    assert "a.bin did not arrive: " in result.stderr
    assert ADVICE[ErrorKind.WRONG_DIGEST] in result.stderr
    assert list(tmp_path.glob("[!.]*")) == []
    found = told(*arguments)
    assert (found["ok"], found["kind"]) == (False, "wrong digest")


def test_a_file_that_is_there_is_never_overwritten(server: Misbehaving, tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"mine")
    for more in ((), ("--sha256", SHA)):
        result = typed("fetch", server.url("/a.bin"), "--to", tmp_path, *more)
        assert isinstance(result.exception, Exception)
        assert "is there already" in str(result.exception)
    assert (tmp_path / "a.bin").read_bytes() == b"mine"
    assert server.requests == []


def test_the_same_command_again_finds_the_right_file_there(server: Misbehaving, tmp_path: Path) -> None:
    arguments = ("fetch", server.url("/a.bin"), "--to", tmp_path, "--sha256", SHA)
    typed(*arguments)
    before = len(server.requests)
    again = typed(*arguments)
    assert (again.exit_code, len(server.requests)) == (0, before)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--sha256", "12"), "--sha256: '12' is not a valid sha256 digest"),
        (("--patience", "5"), "--patience: 5 has no unit"),
        (("--token-file", "x"), "--token-file: say which hosts may have the token"),
    ],
)
def test_a_wrong_option_is_said_before_anything_is_asked(
    server: Misbehaving, tmp_path: Path, options: tuple[str, ...], sentence: str
) -> None:
    result = typed("fetch", server.url("/a.bin"), "--to", tmp_path, *options)
    assert sentence in str(result.exception)
    assert server.requests == []


def test_a_token_goes_to_the_hosts_that_are_named_and_to_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path / "authority")
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.bundle))
    token = tmp_path / "token"
    token.write_text("hunter2")
    token.chmod(0o600)
    with Misbehaving({"/a.bin": BODY}, authority.issue()) as server:
        for host, sent in (("127.0.0.1", "Bearer hunter2"), ("other.example.org", "")):
            to = tmp_path / host
            options = ("--to", to, "--token-file", token, "--token-host", host)
            result = typed("fetch", server.url("/a.bin"), *options)
            assert result.exit_code == 0
            assert server.requests[-1].headers.get("authorization", "") == sent
            assert "hunter2" not in result.output


def test_every_trouble_has_its_advice() -> None:
    assert set(ADVICE) == set(ErrorKind)


def test_progress_in_words_has_what_a_person_waits_for() -> None:
    assert in_words(FetchProgress(10**9, 4 * 10**9, 10**8, "https://a.org/x", 2)) == (
        "1 GB of 4 GB (25 %), 100 MB/s, 30 s left, 2 connections, from https://a.org/x"
    )
    assert (
        in_words(FetchProgress(10**9, None, 10**8, "https://a.org/x", 1), with_source=False)
        == "1 GB, 100 MB/s"
    )
    assert in_words(FetchProgress(10**9, None, 0.0, "", 0, "it broke")) == "1 GB, waiting"


@pytest.mark.parametrize(
    ("progress", "expected"),
    [
        (FetchProgress(1, None, 9.0, "u", 1), []),
        (
            FetchProgress(1, None, 0.0, "", 0, "no", 11.2, 59.5),
            ["no", "next try in 12 s, giving up in 1 min"],
        ),
        (
            FetchProgress(1, None, 0.0, "u", 1, "no", None, 579.5),
            ["no", "trying again, giving up in 9 min 40 s"],
        ),
        (FetchProgress(1, None, 0.0, "", 0, "busy", 300.0, 60.0), ["busy", "giving up in 1 min"]),
        (FetchProgress(1, None, 0.0, "u", 1, "", None, 590.0), ["no new bytes", "giving up in 9 min 50 s"]),
    ],
)
def test_trouble_is_shown_with_the_next_try_and_the_time_to_give_up(
    progress: FetchProgress, expected: list[str]
) -> None:
    assert state_of_trouble(progress) == expected


def test_the_progress_of_a_job_shows_trouble_with_the_same_countdown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time", lambda: 1e9)
    file = tmp_path / "fetching"
    staging = StagePhase(DataPlan(), str(tmp_path), str(file), EventLog(str(tmp_path / "events")))
    staging._report_progress(
        DataItem(("http://a/x.tar",)), FetchProgress(0, None, 0.0, "", 0, "it is busy", 30.0, 590.0)
    )
    line = json.loads(file.read_text())
    assert live._fetching(line) == (
        "fetches x.tar: 0 B; it is busy; next try in 30 s, giving up in 9 min 50 s"
    )
    for unusable in (time.time() - 1, float("inf"), float("nan"), "soon", None):
        line.update(next_try_at=unusable, gives_up_at=unusable)
        assert live._fetching(line) == "fetches x.tar: 0 B; it is busy"


def test_a_refused_connection_is_shown_again_and_again_with_a_countdown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_progress, "LINE_EVERY", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        place = "127.0.0.1:%d" % closed.getsockname()[1]
    result = typed("fetch", "http://%s/a.bin" % place, "--to", tmp_path, "--patience", "2s")
    assert result.exit_code == 1
    line = r"a\.bin: 0 B, waiting; connection refused by %s; (next try in \d s, )?giving up in [12] s"
    assert len(re.findall(line % re.escape(place), result.stderr)) >= 2


# check


def test_all_sources_are_asked_and_nothing_is_fetched(server: Misbehaving, directory: Path) -> None:
    write(directory, "{url: [%s, %s]}" % (server.url("/v.bin"), server.url("/b.bin")))
    result = typed("check", directory)
    assert result.exit_code == 0
    assert "v.bin comes by http: the node program fetches it" in result.stdout
    assert re.search(r"%s +yes +300 kB +md5" % re.escape(server.url("/v.bin")), result.stdout)
    assert re.search(r"%s +yes +300 kB +none" % re.escape(server.url("/b.bin")), result.stdout)
    assert result.stdout.endswith("Next: outlast data pin %s, so that it stays so\n" % directory)
    assert {request.method for request in server.requests} == {"HEAD"}


def test_mirrors_that_differ_are_found(server: Misbehaving, directory: Path) -> None:
    write(directory, "{url: [%s, %s]}" % (server.url("/a.bin"), server.url("/c.tar")))
    result = typed("check", directory)
    assert result.exit_code == 1
    assert "%s has another file than %s" % (server.url("/c.tar"), server.url("/a.bin")) in result.stdout


@pytest.mark.parametrize(
    ("pins", "wrong"), [("size: 5", "300000 bytes"), ("md5: %s" % ("0" * 32), "tells the md5")]
)
def test_a_source_that_contradicts_a_pin_is_found(
    server: Misbehaving, directory: Path, pins: str, wrong: str
) -> None:
    write(directory, "{url: %s, %s}" % (server.url("/v.bin"), pins))
    result = typed("check", directory)
    assert result.exit_code == 1
    assert wrong in result.stdout
    assert "1 problem" in result.stdout


def test_a_source_that_does_not_answer_well_is_named_with_its_trouble(
    server: Misbehaving, directory: Path
) -> None:
    write(directory, server.url("/none.bin"))
    found = told("check", directory)
    (item,) = found["data"]
    (source,) = item["sources"]
    assert (found["ok"], source["ok"], source["kind"]) == (False, False, "missing for now")
    assert item["problems"] == ["%s: %s" % (source["source"], source["detail"])]


def test_data_that_does_not_fit_is_a_problem(server: Misbehaving, directory: Path) -> None:
    write(directory, server.url("/a.bin"), more="resources: {disk: 200kB}\n")
    found = told("check", directory)
    assert found["room"] == ["300 kB of data do not fit into resources.disk, 200 kB"]
    (directory / "clusters.yaml").write_text("local: {cache: c, cache_size: 100kB}\n")
    assert told("check", directory)["room"] == ["300 kB of data do not fit into cache_size, 100 kB"]


def test_mistakes_in_the_files_come_first(directory: Path) -> None:
    write(directory, "ftp://a.org/x")
    for part in ("check", "pin"):
        result = typed(part, directory)
        assert result.exit_code == 2
        assert "ftp: URLs are not supported" in result.stderr


# pin


def test_pinning_writes_sha256_and_size_and_leaves_the_rest_as_it_is(
    server: Misbehaving, directory: Path
) -> None:
    write(directory, "%s  # mine" % server.url("/a.bin"), "{url: %s, to: d}" % server.url("/v.bin"))
    before = (directory / "params.yaml").stat().st_mode
    result = typed("pin", directory)
    assert result.exit_code == 0
    assert (directory / "params.yaml").read_text() == (
        "command: sh -c true\ndata:\n"
        f"  - url: {server.url('/a.bin')}  # mine\n    sha256: {SHA}\n    size: 300000\n"
        f"  - {{url: {server.url('/v.bin')}, to: d, sha256: {SHA}, size: 300000}}\n"
    )
    assert (directory / "params.yaml").stat().st_mode == before
    assert sorted(path.name for path in directory.iterdir()) == ["params.yaml"]
    assert "a.bin: pinned, as it was fetched now\n    sha256: %s\n" % SHA in result.stdout


def test_what_is_pinned_is_left_alone_unless_asked_for_again(server: Misbehaving, directory: Path) -> None:
    write(directory, "{url: %s, md5: %s}" % (server.url("/a.bin"), "0" * 32))
    before = (directory / "params.yaml").read_text()
    assert "nothing to do" in typed("pin", directory).stdout
    assert ((directory / "params.yaml").read_text(), server.requests) == (before, [])
    assert typed("pin", directory, "--again").exit_code == 0
    after = (directory / "params.yaml").read_text()
    assert "md5: %s, sha256: %s, size: 300000" % (MD5, SHA) in after


def test_the_sources_own_word_is_taken_without_fetching(server: Misbehaving, directory: Path) -> None:
    write(directory, server.url("/v.bin"), "{url: %s, to: d}" % server.url("/a.bin"))
    result = typed("pin", directory, "--trust-source")
    assert result.exit_code == 1
    assert "md5: %s\n    size: 300000\n" % MD5 in (directory / "params.yaml").read_text()
    assert "a.bin: no source tells its digest; without --trust-source it is fetched" in result.stderr
    assert {request.method for request in server.requests} == {"HEAD"}


def test_no_old_digest_stays_beside_a_new_one(server: Misbehaving, directory: Path) -> None:
    write(directory, "{url: %s, sha256: %s}" % (server.url("/v.bin"), SHA))
    before = (directory / "params.yaml").read_text()
    found = told("pin", directory, "--again", "--trust-source")
    (item,) = found["data"]
    assert (item["state"], (directory / "params.yaml").read_text()) == ("failed", before)


# cache


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """Three entries, each used later than the one before, and one that was begun."""
    root = tmp_path / "cache"
    store = DataCache(str(root))
    for number in (1, 2, 3):

        def fill(place: str, pulse: object, number: int = number) -> None:
            Path(place, "content").write_bytes(b"x" * number * 1000)
            write_entry(place, number * 1000, "https://a.org/%d" % number)

        store.obtain("sha256-%d" % number, fill).release()
    begun = Path(store.root, "arriving", "sha256-4")
    begun.mkdir()
    (begun / ".content.part").write_bytes(b"x" * 500)
    return root


def keys(found: dict[str, Any], part: str) -> set[str]:
    return {one["key"] for one in found[part]}


def test_a_cache_is_listed_with_what_is_under_way_and_what_is_free(cache: Path) -> None:
    found = told("cache", "--path", cache)
    assert keys(found, "entries") == {"sha256-1", "sha256-2", "sha256-3"}
    assert keys(found, "arriving") == {"sha256-4"}
    assert found["total"] == 6500
    result = typed("cache", "--path", cache)
    assert re.search(r"sha256-2 +2 kB .* https://a.org/2", result.stdout)
    assert re.search(r"sha256-4 +500 B +- +unfinished", result.stdout)
    assert re.search(r": 6.5 kB in 4 items, .+ free$", result.stdout.strip())


def test_keeping_so_much_removes_what_was_used_longest_ago(cache: Path) -> None:
    found = told("cache", "--path", cache, "--keep", "5kB")
    assert keys(found, "removed") == {"sha256-1"}
    assert keys(found, "entries") == {"sha256-2", "sha256-3"}
    assert keys(found, "arriving") == {"sha256-4"}


def test_clearing_removes_all_but_what_is_in_use(cache: Path) -> None:
    held = DataCache(str(cache)).find("sha256-2")
    assert held is not None
    found = told("cache", "--path", cache, "--clear")
    assert keys(found, "entries") == {"sha256-2"}
    assert keys(found, "removed") == {"sha256-1", "sha256-3", "sha256-4"}
    assert Path(held.content).exists()


def test_the_cache_of_a_cluster_is_the_one_that_its_profile_names(cache: Path, directory: Path) -> None:
    (directory / "clusters.yaml").write_text(
        "farm: {scheduler: slurm, cache: %s}\nnode: {scheduler: slurm, cache: $NOWHERE_SET/c}\n" % cache
    )
    assert told("cache", "-C", directory, "--cluster", "farm")["path"] == str(cache)
    for name, sentence in (
        ("node", "is a place that only the nodes of cluster node know"),
        ("slurm", "cluster slurm names no cache"),
        ("frm", 'did you mean "farm"?'),
    ):
        assert sentence in str(typed("cache", "-C", directory, "--cluster", name).exception)


def test_looking_makes_no_cache(tmp_path: Path) -> None:
    result = typed("cache", "--path", tmp_path / "none")
    assert (result.exit_code, list(tmp_path.iterdir())) == (0, [])
    assert "there is no cache yet" in result.stdout


# documentation


@pytest.mark.parametrize("kind", ErrorKind)
def test_every_trouble_is_explained_with_how_an_attempt_ends_for_it(kind: ErrorKind) -> None:
    row = r"(?m)^\| `%s` \| .+ \| .+ \| `%s` \|$" % (kind.value, OUTCOMES[kind].value)
    assert re.search(row, (DOCS / "howto" / "get-data.md").read_text(encoding="utf-8"))


def test_every_key_that_is_printed_as_json_is_in_the_reference(
    server: Misbehaving, directory: Path, cache: Path
) -> None:
    server.plan(Behaviour(close_after=1000))
    write(directory, server.url("/v.bin"))
    url, to = server.url("/a.bin"), directory / "x"
    printed = [
        typed("fetch", url, "--to", to, "--md5", MD5, "--json"),
        typed("fetch", server.url("/v.bin"), "--to", to, "--md5", "0" * 32, "--json"),
        typed("check", directory, "--json"),
        typed("pin", directory, "--json"),
        typed("cache", "--path", cache, "--keep", "5kB", "--json"),
    ]
    found = set(re.findall(r'"(\w+)":', "".join(result.stdout for result in printed)))
    reference = (DOCS / "reference" / "commands.md").read_text(encoding="utf-8")
    digests_and_kinds = {"sha256", "md5", "truncated"}
    assert {key for key in found - digests_and_kinds if '`"%s"`' % key not in reference} == set()
