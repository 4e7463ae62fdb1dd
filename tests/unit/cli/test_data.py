"""`outlast data`: fetch, check, pin and cache."""

from __future__ import annotations

import hashlib
import json
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from outlast.cli import data_progress, training_progress
from outlast.cli.commands import data_fetch, data_pin
from outlast.cli.commands.data import command
from outlast.cli.data_common import ADVICE, PIN_ADVICE
from outlast.cli.data_progress import describe_error, describe_progress
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


def run_data(*arguments: str | Path) -> Result:
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


def read_json(*arguments: str | Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run_data(*arguments, "--json").stdout)
    return found


def write(directory: Path, *entries: str, more: str = "") -> None:
    lines = "".join("  - %s\n" % entry for entry in entries)
    (directory / "params.yaml").write_text("command: sh -c true\ndata:\n%s%s" % (lines, more))


# fetch


def test_a_fetch_prints_size_and_verification(server: Misbehaving, tmp_path: Path) -> None:
    result = run_data("fetch", server.url("/v.bin"), "--to", tmp_path / "x")
    assert (tmp_path / "x" / "v.bin").read_bytes() == BODY
    lines = result.stdout.splitlines()
    assert lines[0] == "fetched %s" % (tmp_path / "x" / "v.bin")
    assert lines[1].startswith("  300 kB in ")
    assert lines[2] == "  verified: md5 matches the digest from the source"
    pinned = run_data("fetch", server.url("/a.bin"), "--to", tmp_path, "--sha256", SHA)
    assert "  verified: sha256 matches the pinned digest" in pinned.stdout
    unverified = run_data("fetch", server.url("/b.bin"), "--to", tmp_path)
    assert "  not verified: no digest was known; the file has sha256 %s" % SHA in unverified.stdout


def test_errors_are_printed_with_their_cost(server: Misbehaving, tmp_path: Path) -> None:
    server.plan(Behaviour(close_after=100_000))
    options = ("--to", tmp_path, "--sha256", SHA, "--connections", "1", "--mirror", server.url("/b.bin"))
    result = run_data("fetch", server.url("/a.bin"), *options)
    assert re.search(r"error: truncated, 1×", result.stdout)
    assert "from %s: " % server.url("/a.bin") in result.stdout
    assert "from %s: " % server.url("/b.bin") in result.stdout


def test_an_archive_is_unpacked_while_it_is_fetched(server: Misbehaving, tmp_path: Path) -> None:
    result = run_data("fetch", server.url("/c.tar"), "--to", tmp_path / "t", "--unpack", "yes")
    assert result.stdout.startswith("unpacked c.tar into %s\n" % (tmp_path / "t"))
    assert (tmp_path / "t" / "d" / "two").read_bytes() == b"2"
    assert not (tmp_path / "t" / "c.tar").exists()


def test_a_fetch_in_json_has_path_and_receipt(server: Misbehaving, tmp_path: Path) -> None:
    found = read_json("fetch", server.url("/a.bin"), "--to", tmp_path)
    assert (found["ok"], found["path"], found["bytes"]) == (True, str(tmp_path / "a.bin"), len(BODY))
    assert found["digests"] == {"sha256": SHA}


def test_a_failed_fetch_exits_with_1_and_prints_what_to_do(server: Misbehaving, tmp_path: Path) -> None:
    arguments = ("fetch", server.url("/a.bin"), "--to", tmp_path, "--sha256", "00" * 32)
    result = run_data(*arguments)
    assert result.exit_code == 1
    assert "a.bin could not be fetched: " in result.stderr
    assert ADVICE[ErrorKind.WRONG_DIGEST] in result.stderr
    assert list(tmp_path.glob("[!.]*")) == []
    found = read_json(*arguments)
    assert (found["ok"], found["kind"]) == (False, "wrong digest")


def test_an_existing_file_is_never_overwritten(server: Misbehaving, tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"mine")
    for more in ((), ("--sha256", SHA)):
        result = run_data("fetch", server.url("/a.bin"), "--to", tmp_path, *more)
        assert isinstance(result.exception, Exception)
        assert "already exists" in str(result.exception)
    assert (tmp_path / "a.bin").read_bytes() == b"mine"
    assert server.requests == []


def test_the_same_command_again_accepts_the_existing_file(server: Misbehaving, tmp_path: Path) -> None:
    arguments = ("fetch", server.url("/a.bin"), "--to", tmp_path, "--sha256", SHA)
    run_data(*arguments)
    before = len(server.requests)
    again = run_data(*arguments)
    assert (again.exit_code, len(server.requests)) == (0, before)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--sha256", "12"), "--sha256: '12' is not a valid sha256 digest"),
        (("--patience", "5"), "--patience: 5 has no unit"),
        (("--token-file", "x"), "--token-file: name the hosts that may receive the token"),
    ],
)
def test_a_wrong_option_is_refused_before_any_request(
    server: Misbehaving, tmp_path: Path, options: tuple[str, ...], sentence: str
) -> None:
    result = run_data("fetch", server.url("/a.bin"), "--to", tmp_path, *options)
    assert sentence in str(result.exception)
    assert server.requests == []


def test_a_token_is_sent_to_the_named_hosts_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = Authority(tmp_path / "authority")
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.bundle))
    token = tmp_path / "token"
    token.write_text("hunter2")
    token.chmod(0o600)
    with Misbehaving({"/a.bin": BODY}, authority.issue()) as server:
        for host, sent in (("127.0.0.1", "Bearer hunter2"), ("other.example.org", "")):
            to = tmp_path / host
            options = ("--to", to, "--token-file", token, "--token-host", host)
            result = run_data("fetch", server.url("/a.bin"), *options)
            assert result.exit_code == 0
            assert server.requests[-1].headers.get("authorization", "") == sent
            assert "hunter2" not in result.output


def test_every_error_kind_has_advice() -> None:
    assert set(ADVICE) == set(PIN_ADVICE) == set(ErrorKind)


@pytest.mark.parametrize(
    ("command", "advice"), [(data_fetch.command, ADVICE), (data_pin.command, PIN_ADVICE)]
)
def test_advice_names_only_options_of_the_command_that_prints_it(
    command: click.Command, advice: dict[ErrorKind, str]
) -> None:
    options = {name for parameter in command.params for name in parameter.opts}
    named = {option for text in advice.values() for option in re.findall(r"--[a-z-]+", text)}
    assert named <= options


@pytest.mark.parametrize(
    ("status", "advice"),
    [(403, "`token: {file: FILE, hosts: [HOST]}`"), (500, "`url: [URL, URL]`")],
)
def test_a_failed_pin_names_the_keys_to_write(
    server: Misbehaving, directory: Path, status: int, advice: str
) -> None:
    server.always(Behaviour(status=status))
    write(directory, server.url("/a.bin"), more="cluster: here\n")
    (directory / "clusters.yaml").write_text(
        "here: {scheduler: local, transfers: {stall: 1s, patience: 1s}}\n"
    )
    failed = run_data("pin", directory)
    assert failed.exit_code == 1 and failed.stderr.endswith("%s\n" % advice)
    assert " --" not in failed.stderr


def test_progress_shows_size_speed_and_remaining_time() -> None:
    assert describe_progress(FetchProgress(10**9, 4 * 10**9, 10**8, "https://a.org/x", 2)) == (
        "1 GB of 4 GB (25 %), 100 MB/s, 30 s left, 2 connections, from https://a.org/x"
    )
    assert (
        describe_progress(FetchProgress(10**9, None, 10**8, "https://a.org/x", 1), with_source=False)
        == "1 GB, 100 MB/s"
    )
    assert describe_progress(FetchProgress(10**9, None, 0.0, "", 0, "it broke")) == "1 GB, waiting"


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
def test_an_error_is_shown_with_the_next_try_and_the_time_to_give_up(
    progress: FetchProgress, expected: list[str]
) -> None:
    assert describe_error(progress) == expected


def test_the_progress_of_a_job_shows_an_error_with_the_same_countdown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time", lambda: 1e9)
    file = tmp_path / "fetching"
    staging = StagePhase(DataPlan(), str(tmp_path), str(file), EventLog(str(tmp_path / "events")))
    staging._report_progress(
        DataItem(("http://a/x.tar",)), FetchProgress(0, None, 0.0, "", 0, "it is busy", 30.0, 590.0)
    )
    line = json.loads(file.read_text())
    assert training_progress._show_fetching(line) == (
        "fetching x.tar: 0 B; it is busy; next try in 30 s, giving up in 9 min 50 s"
    )
    for unusable in (time.time() - 1, float("inf"), float("nan"), "soon", None):
        line.update(next_try_at=unusable, gives_up_at=unusable)
        assert training_progress._show_fetching(line) == "fetching x.tar: 0 B; it is busy"


def test_a_refused_connection_is_shown_repeatedly_with_a_countdown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_progress, "LINE_EVERY", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        place = "127.0.0.1:%d" % closed.getsockname()[1]
    result = run_data("fetch", "http://%s/a.bin" % place, "--to", tmp_path, "--patience", "2s")
    assert result.exit_code == 1
    line = r"a\.bin: 0 B, waiting; connection refused by %s; (next try in \d s, )?giving up in [12] s"
    assert len(re.findall(line % re.escape(place), result.stderr)) >= 2


# check


def test_all_sources_are_checked_and_nothing_is_fetched(server: Misbehaving, directory: Path) -> None:
    write(directory, "{url: [%s, %s]}" % (server.url("/v.bin"), server.url("/b.bin")))
    result = run_data("check", directory)
    assert result.exit_code == 0
    assert "v.bin: method http: the node program fetches it" in result.stdout
    assert re.search(r" ok +300 kB +md5 +%s\n" % re.escape(server.url("/v.bin")), result.stdout)
    assert re.search(r" ok +300 kB +none +%s\n" % re.escape(server.url("/b.bin")), result.stdout)
    assert "No problems. Next: outlast data pin %s   # writes" % directory in result.stdout
    assert {request.method for request in server.requests} == {"HEAD"}


def test_mirrors_that_differ_are_found(server: Misbehaving, directory: Path) -> None:
    write(directory, "{url: [%s, %s]}" % (server.url("/a.bin"), server.url("/c.tar")))
    result = run_data("check", directory)
    assert result.exit_code == 1
    assert "%s has a different file than %s" % (server.url("/c.tar"), server.url("/a.bin")) in result.stdout


@pytest.mark.parametrize(
    ("pins", "wrong"), [("size: 5", "300000 bytes"), ("md5: %s" % ("0" * 32), "reports md5")]
)
def test_a_source_that_contradicts_a_pin_is_found(
    server: Misbehaving, directory: Path, pins: str, wrong: str
) -> None:
    write(directory, "{url: %s, %s}" % (server.url("/v.bin"), pins))
    result = run_data("check", directory)
    assert result.exit_code == 1
    assert wrong in result.stdout
    assert "1 problem" in result.stdout


def test_a_source_that_fails_is_shown_with_its_error(server: Misbehaving, directory: Path) -> None:
    write(directory, server.url("/none.bin"))
    found = read_json("check", directory)
    (item,) = found["data"]
    (source,) = item["sources"]
    assert (found["ok"], source["ok"], source["kind"]) == (False, False, "missing for now")
    assert item["problems"] == ["%s: %s" % (source["source"], source["detail"])]


def test_data_that_does_not_fit_is_a_problem(server: Misbehaving, directory: Path) -> None:
    write(directory, server.url("/a.bin"), more="resources: {disk: 200kB}\n")
    found = read_json("check", directory)
    assert found["room"] == ["300 kB of data do not fit into resources.disk (200 kB)"]
    (directory / "clusters.yaml").write_text("local: {cache: c, cache_size: 100kB}\n")
    assert read_json("check", directory)["room"] == ["300 kB of data do not fit into cache_size (100 kB)"]


def test_mistakes_in_params_yaml_are_reported_first(directory: Path) -> None:
    write(directory, "ftp://a.org/x")
    for part in ("check", "pin"):
        result = run_data(part, directory)
        assert result.exit_code == 2
        assert "ftp: URLs are not supported" in result.stderr


# pin


def test_pinning_writes_sha256_and_size_and_leaves_the_rest_as_it_is(
    server: Misbehaving, directory: Path
) -> None:
    write(directory, "%s  # mine" % server.url("/a.bin"), "{url: %s, to: d}" % server.url("/v.bin"))
    before = (directory / "params.yaml").stat().st_mode
    result = run_data("pin", directory)
    assert result.exit_code == 0
    assert (directory / "params.yaml").read_text() == (
        "command: sh -c true\ndata:\n"
        f"  - url: {server.url('/a.bin')}  # mine\n    sha256: {SHA}\n    size: 300000\n"
        f"  - {{url: {server.url('/v.bin')}, to: d, sha256: {SHA}, size: 300000}}\n"
    )
    assert (directory / "params.yaml").stat().st_mode == before
    assert sorted(path.name for path in directory.iterdir()) == ["params.yaml"]
    assert "a.bin: fetched, hashed and pinned\n    sha256: %s\n" % SHA in result.stdout


def test_pinned_entries_are_unchanged_without_again(server: Misbehaving, directory: Path) -> None:
    write(directory, "{url: %s, md5: %s}" % (server.url("/a.bin"), "0" * 32))
    before = (directory / "params.yaml").read_text()
    assert "nothing to do" in run_data("pin", directory).stdout
    assert ((directory / "params.yaml").read_text(), server.requests) == (before, [])
    assert run_data("pin", directory, "--again").exit_code == 0
    after = (directory / "params.yaml").read_text()
    assert "md5: %s, sha256: %s, size: 300000" % (MD5, SHA) in after


def test_trust_source_pins_reported_digests_without_fetching(server: Misbehaving, directory: Path) -> None:
    write(directory, server.url("/v.bin"), "{url: %s, to: d}" % server.url("/a.bin"))
    result = run_data("pin", directory, "--trust-source")
    assert result.exit_code == 1
    assert "md5: %s\n    size: 300000\n" % MD5 in (directory / "params.yaml").read_text()
    assert "a.bin: no source reports its digest; without --trust-source it is fetched" in result.stderr
    assert {request.method for request in server.requests} == {"HEAD"}


def test_no_old_digest_stays_next_to_a_new_one(server: Misbehaving, directory: Path) -> None:
    write(directory, "{url: %s, sha256: %s}" % (server.url("/v.bin"), SHA))
    before = (directory / "params.yaml").read_text()
    found = read_json("pin", directory, "--again", "--trust-source")
    (item,) = found["data"]
    assert (item["state"], (directory / "params.yaml").read_text()) == ("failed", before)


# cache


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """Three entries in the order of their last use, and an unfinished one."""
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


def test_a_cache_is_listed_with_unfinished_entries_and_free_space(cache: Path) -> None:
    found = read_json("cache", "--path", cache)
    assert keys(found, "entries") == {"sha256-1", "sha256-2", "sha256-3"}
    assert keys(found, "arriving") == {"sha256-4"}
    assert found["total"] == 6500
    result = run_data("cache", "--path", cache)
    assert re.search(r"sha256-2 +2 kB .* https://a.org/2", result.stdout)
    assert re.search(r"sha256-4 +500 B +- +unfinished", result.stdout)
    assert re.search(r": 6.5 kB in 4 entries, .+ free$", result.stdout.strip())


def test_keep_removes_the_least_recently_used_entries(cache: Path) -> None:
    found = read_json("cache", "--path", cache, "--keep", "5kB")
    assert keys(found, "removed") == {"sha256-1"}
    assert keys(found, "entries") == {"sha256-2", "sha256-3"}
    assert keys(found, "arriving") == {"sha256-4"}


def test_clear_removes_all_entries_that_are_not_in_use(cache: Path) -> None:
    held = DataCache(str(cache)).find("sha256-2")
    assert held is not None
    found = read_json("cache", "--path", cache, "--clear")
    assert keys(found, "entries") == {"sha256-2"}
    assert keys(found, "removed") == {"sha256-1", "sha256-3", "sha256-4"}
    assert Path(held.content).exists()


def test_the_cache_of_a_cluster_is_the_one_that_its_profile_names(cache: Path, directory: Path) -> None:
    (directory / "clusters.yaml").write_text(
        "farm: {scheduler: slurm, cache: %s}\nnode: {scheduler: slurm, cache: $NOWHERE_SET/c}\n" % cache
    )
    assert read_json("cache", "-C", directory, "--cluster", "farm")["path"] == str(cache)
    for name, sentence in (
        ("node", "is defined only on the nodes of cluster node"),
        ("slurm", "cluster slurm has no cache"),
        ("frm", 'did you mean "farm"?'),
    ):
        assert sentence in str(run_data("cache", "-C", directory, "--cluster", name).exception)


def test_listing_creates_no_cache(tmp_path: Path) -> None:
    result = run_data("cache", "--path", tmp_path / "none")
    assert (result.exit_code, list(tmp_path.iterdir())) == (0, [])
    assert "there is no cache yet" in result.stdout


# documentation


@pytest.mark.parametrize("kind", ErrorKind)
def test_every_error_kind_is_documented_with_the_outcome_of_the_attempt(kind: ErrorKind) -> None:
    row = r"(?m)^\| `%s` \| .+ \| .+ \| `%s` \|$" % (kind.value, OUTCOMES[kind].value)
    assert re.search(row, (DOCS / "howto" / "get-data.md").read_text(encoding="utf-8"))


def test_every_key_that_is_printed_as_json_is_in_the_reference(
    server: Misbehaving, directory: Path, cache: Path
) -> None:
    server.plan(Behaviour(close_after=1000))
    write(directory, server.url("/v.bin"))
    url, to = server.url("/a.bin"), directory / "x"
    printed = [
        run_data("fetch", url, "--to", to, "--md5", MD5, "--json"),
        run_data("fetch", server.url("/v.bin"), "--to", to, "--md5", "0" * 32, "--json"),
        run_data("check", directory, "--json"),
        run_data("pin", directory, "--json"),
        run_data("cache", "--path", cache, "--keep", "5kB", "--json"),
    ]
    found = set(re.findall(r'"(\w+)":', "".join(result.stdout for result in printed)))
    reference = (DOCS / "reference" / "commands.md").read_text(encoding="utf-8")
    digests_and_kinds = {"sha256", "md5", "truncated"}
    assert {key for key in found - digests_and_kinds if '`"%s"`' % key not in reference} == set()
