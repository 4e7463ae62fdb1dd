"""`data:` of params.yaml and the data settings of a profile: their meaning, and all mistakes at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from outlast.node.staging.item import DataItem
from outlast.schedulers.profile import Profile
from outlast.spec import BadSpec, Parsed, read
from outlast.spec.pinning import CannotPin, pin
from outlast.spec.yamlfile import parse

SHA = "ab" * 32
PIN = "`outlast data pin` adds a digest"


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    experiment = tmp_path / "experiment"
    experiment.mkdir()
    (experiment / "own.csv").write_bytes(b"x" * 5000)
    return experiment


def parsed(directory: Path, data: str, cluster: str = "local", clusters: str = "") -> Parsed:
    """Read an experiment; `data` has the lines below `data:`."""
    (directory / "params.yaml").write_text(f"command: sh -c true\ncluster: {cluster}\ndata:\n{data}")
    (directory / "clusters.yaml").write_text(clusters or "unused: {scheduler: local}\n")
    return read(directory)


def items(directory: Path, data: str, cluster: str = "local", clusters: str = "") -> tuple[DataItem, ...]:
    return parsed(directory, data, cluster, clusters).spec.data


def mistakes(directory: Path, data: str, cluster: str = "local", clusters: str = "") -> list[str]:
    with pytest.raises(BadSpec) as caught:
        parsed(directory, data, cluster, clusters)
    return [str(mistake) for mistake in caught.value.mistakes]


def warnings(directory: Path, data: str) -> list[str]:
    return [str(warning) for warning in parsed(directory, data).warnings]


# Valid entries


def test_every_key_of_an_entry_is_read(directory: Path) -> None:
    (found,) = items(
        directory,
        f"  - url: [osdf:///a/train.tar, pelican://f.org/a/train.tar]\n    sha256: {SHA.upper()}\n"
        "    md5: q83vASNFZ4mrze8BI0VniQ==\n    size: 147897477120\n    unpack: nested\n    to: ./data/\n"
        "    method: osdf\n    writable: yes\nresources: {disk: 1TB}\n",
    )
    assert found == DataItem(
        ("osdf:///a/train.tar", "pelican://f.org/a/train.tar"),
        {"sha256": SHA, "md5": "abcdef0123456789abcdef0123456789"},
        147897477120,
        "nested",
        "data",
        "osdf",
        writable=True,
    )


def test_a_text_alone_is_short_for_its_url(directory: Path) -> None:
    assert items(directory, "  - https://a.org/x.tar\n") == items(
        directory, "  - {url: https://a.org/x.tar}\n"
    )


@pytest.mark.parametrize(
    ("written", "meant"),
    [("yes", "yes"), ("true", "yes"), ("no", "no"), ("false", "no"), ("nested", "nested")],
)
def test_yaml_booleans_are_accepted_for_unpack(directory: Path, written: str, meant: str) -> None:
    (found,) = items(directory, f"  - {{url: https://a.org/x.tar, unpack: {written}}}\n")
    assert found.unpack == meant


@pytest.mark.parametrize(
    ("name", "digest"),
    [("md5", "0" * 30 + "12"), ("crc32", "00001234"), ("crc32c", "1234e567"), ("adler32", "12345678")],
)
def test_a_digest_that_looks_like_a_number_is_kept_as_written(
    directory: Path, name: str, digest: str
) -> None:
    (found,) = items(directory, f"  - {{url: https://a.org/x.tar, {name}: {digest}}}\n")
    assert found.digests == {name: digest}


@pytest.mark.parametrize("written", ["own.csv", "file:own.csv", "./own.csv", "FILE:own.csv"])
def test_a_relative_path_starts_from_the_experiments_directory(directory: Path, written: str) -> None:
    (found,) = items(directory, f"  - {written}\n")
    assert found.urls == (f"file://{directory}/own.csv",)


def test_a_path_with_characters_special_in_urls_keeps_its_name(directory: Path) -> None:
    (directory / "a b%20#?.csv").touch()
    (found,) = items(directory, '  - "a b%20#?.csv"\n')
    assert found.name == "a b%20#?.csv"


# Mistakes


def test_all_mistakes_are_reported_at_once_with_their_lines(directory: Path) -> None:
    found = mistakes(
        directory,
        "  - url: ftp://a.org/x\n    sha256: 1234\n    size: 5GB\n    to: ../x\n    unpack: maybe\n"
        "  - {to: x}\n  - nope.csv\n  - {url: https://a.org/y, md5: }\n",
    )
    assert [line.split(": ")[0] + ": " + line.split(": ")[1] for line in found] == [
        "params.yaml:4: data[1].url",
        "params.yaml:5: data[1].sha256",
        "params.yaml:6: data[1].size",
        "params.yaml:7: data[1].to",
        "params.yaml:8: data[1].unpack",
        "params.yaml:9: data[2]",
        "params.yaml:10: data[3]",
        "params.yaml:11: data[4].md5",
    ]


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [
        ("s3://bucket/key", "s3: URLs are not supported; write the https URL of the object"),
        ("htps://a.org/x", 'did you mean "https"? (supported: https, http, osdf, pelican or file)'),
        ("stash:///a/b", "write osdf:///PATH"),
        ("https://a.org/", "https://a.org/ names a host but no file"),
        ("osdf:///", "names no object"),
        ("file://other/x", "names a file on the machine other"),
        ("{url: []}", "is an empty list"),
        ("{url: https://a.org/x, to: /abs}", '"/abs" must be relative, below the data directory'),
        ("{url: https://a.org/x, to: ~/x}", "must be relative"),
        (
            "{url: https://a.org/x, sha256: abcd}",
            "is not a sha256 digest (4 characters); write 64 hexadecimal",
        ),
        ("{url: https://a.org/x, size: 1.5}", "must be the exact number of bytes"),
        ("{url: https://a.org/x, methd: http}", 'did you mean "method"?'),
        ("{url: own.csv, method: http}", "http is for http or https URLs, and this is not one"),
        ("{url: https://a.org/x, method: osdf}", "osdf is for osdf or pelican URLs"),
        ("{url: https://a.org/x, method: shared}", "shared is for files, and this is a URL"),
        (
            "{url: https://a.org/x, method: native}",
            "native is for HTCondor: the local cluster has no file transfer",
        ),
        ("{url: own.csv, size: 4}", "has 5,000 bytes, but size is 4"),
        ("own.cvs", 'does not exist; did you mean "own.csv"?'),
        ("$SCRATCH/x", "variables such as $SCRATCH are not expanded here"),
        ("{url: /tmp, unpack: yes}", "/tmp is a folder: there is nothing to unpack"),
        ("{url: /tmp, size: 4}", "/tmp is a folder, which has neither digest nor size"),
    ],
)
def test_a_mistake_has_its_cause_and_a_hint(directory: Path, entry: str, sentence: str) -> None:
    (found,) = mistakes(directory, f"  - {entry}\n")
    assert found.startswith("params.yaml:4: data[1]")
    assert sentence in found


@pytest.mark.parametrize(
    "url",
    [
        "https://me:hunter2@a.org/x.tar",
        "https://hunter2@a.org/x.tar",
        "pelican://hunter2@f.org/x.tar",
        "osdf://me:hunter2@f.org/x.tar",
        "https://a.org/x.tar?token=hunter2",
        "https://a.org/x.tar?a=b&access_token=hunter2",
        "osdf:///a/x.tar?authz=hunter2",
        "https://a.org/x.tar?X-Amz-Signature=hunter2",
        "https://a.org/x.tar?x=Bearer%20hunter2",
        "https://a.org/x.tar?x=eyJhbGciOiJIUzI1NiJ9.hunter2.c",
    ],
)
def test_a_secret_in_a_url_is_refused_and_not_repeated(directory: Path, url: str) -> None:
    (found,) = mistakes(directory, f"  - {url}\n")
    assert "which everybody who sees the experiment could read" in found
    assert "set a token by file or command in the cluster's profile" in found
    assert "hunter2" not in found


def test_a_query_without_a_secret_is_accepted(directory: Path) -> None:
    (found,) = items(directory, "  - https://a.org/x.tar?download=1&version=2\n")
    assert found.name == "x.tar"


def test_two_entries_with_the_same_target_are_a_mistake(directory: Path) -> None:
    (found,) = mistakes(directory, "  - https://a.org/x.csv\n  - https://b.org/x.csv\n")
    assert found == (
        "params.yaml:5: data[2]: is stored as x.csv, like the entry in line 4; give one of them another to:"
    )
    assert items(directory, "  - https://a.org/x.csv\n  - {url: https://b.org/x.csv, to: b}\n")
    into = "  - {url: https://a.org/%s.tar, unpack: yes, to: d}\n"
    assert items(directory, into % "x" + into % "y")


def test_a_group_instead_of_a_list_gets_a_hint(directory: Path) -> None:
    (found,) = mistakes(directory, "  url: https://a.org/x.csv\n")
    assert found.endswith('data: must be a list, not a group {...}; begin each entry with "- "')


# Warnings


def test_data_without_a_digest_is_warned_about(directory: Path) -> None:
    unless = ", unless the server sends a checksum"
    text = "no digest: the file is not verified"
    assert warnings(directory, "  - https://a.org/x\n") == [f"params.yaml:4: data[1]: {text}{unless}; {PIN}"]
    assert warnings(directory, "  - {url: https://a.org/x, size: 5}\n") == [
        f"params.yaml:4: data[1].url: no digest: only the size is verified{unless}; {PIN}"
    ]
    assert warnings(directory, "  - own.csv\n") == [f"params.yaml:4: data[1]: {text}; {PIN}"]
    assert warnings(directory, "  - {url: [https://b.org/x, http://a.org/x]}\n") == [
        "params.yaml:4: data[1].url[1]: http without a digest: "
        f"anybody on the network path can replace the data; {PIN}"
    ]
    assert warnings(directory, f"  - {{url: http://a.org/x, sha256: {SHA}}}\n") == []


def test_data_larger_than_the_requested_disk_is_warned_about(directory: Path) -> None:
    entry = f"  - {{url: https://a.org/x, sha256: {SHA}, size: 6000000000}}\n"
    (found,) = warnings(directory, entry)
    assert found.endswith("data: 6 GB do not fit into resources.disk, 5 GB; request more disk")
    assert warnings(directory, entry + "resources: {disk: 6GB}\n") == []


def test_a_writable_copy_needs_disk_beside_the_data(directory: Path) -> None:
    entry = f"  - {{url: https://a.org/x, sha256: {SHA}, size: 3000000000, writable: true}}\n"
    (found,) = warnings(directory, entry)
    assert "data: 6 GB do not fit into resources.disk, 5 GB" in found
    assert warnings(directory, entry.replace("writable: true", "writable: no")) == []


# The method


@pytest.mark.parametrize(
    ("entry", "cluster", "method"),
    [
        ("https://a.org/x", "slurm", "http"),
        ("http://a.org/x", "htcondor", "http"),
        ("osdf:///a/x", "sge", "osdf"),
        ("pelican://f.org/x", "htcondor", "osdf"),
        ("own.csv", "local", "shared"),
        ("own.csv", "slurm", "shared"),
        ("own.csv", "sge", "shared"),
        ("own.csv", "htcondor", "native"),
        ("{url: own.csv, method: native}", "slurm", "shared"),
        ("{url: own.csv, method: native}", "htcondor", "native"),
        ("{url: https://a.org/x, method: native}", "htcondor", "native"),
        ("{url: osdf:///a/x, method: native}", "htcondor", "native"),
        ("{url: /cvmfs/a/x, method: shared}", "htcondor", "shared"),
        ("{url: [own.csv, https://a.org/x]}", "slurm", "http"),
    ],
)
def test_the_method_follows_from_url_and_cluster_and_has_a_reason(
    directory: Path, entry: str, cluster: str, method: str
) -> None:
    found = parsed(directory, f"  - {entry}\n", cluster)
    (item,), (chosen,) = found.spec.data, found.data_methods
    assert (item.method, chosen.method) == (method, method)
    assert chosen.why


def test_a_file_cannot_be_a_mirror_of_a_url_if_jobs_do_not_see_it(directory: Path) -> None:
    (found,) = mistakes(directory, "  - {url: [https://a.org/x, own.csv]}\n", "htcondor")
    assert "a file on this machine cannot be a mirror of a URL: HTCondor's jobs do not see it" in found


def test_mirrors_that_htcondors_file_transfer_does_not_use_are_warned_about(directory: Path) -> None:
    entry = f"  - {{url: [https://a.org/x, https://b.org/x], sha256: {SHA}, method: native}}\n"
    (found,) = (str(one) for one in parsed(directory, entry, "htcondor").warnings)
    assert found.startswith("params.yaml:4: data[1].url[2]: HTCondor's file transfer takes one URL")


@pytest.mark.parametrize(("limit", "fits"), [("5kB", True), ("4999B", False)])
def test_native_data_over_the_pools_limit_is_refused_before_submission(
    directory: Path, limit: str, fits: bool
) -> None:
    clusters = f"pool: {{scheduler: htcondor, largest_transfer: {limit}}}\n"
    if fits:
        assert items(directory, "  - own.csv\n", "pool", clusters)
        return
    (found,) = mistakes(directory, "  - own.csv\n", "pool", clusters)
    assert found.endswith("data: 5 kB of native input exceeds the 5 kB limit of this pool; use http or osdf")


def test_data_that_a_plugin_fetches_does_not_count_against_the_pools_limit(directory: Path) -> None:
    clusters = "pool: {scheduler: htcondor, largest_transfer: 1kB}\n"
    entry = "  - {url: https://a.org/x, method: native, size: 5000000}\n"
    assert items(directory, entry, "pool", clusters)


# The profile


def profile(directory: Path, keys: str, scheduler: str = "slurm") -> Profile:
    clusters = f"farm: {{scheduler: {scheduler}, {keys}}}\n"
    return parsed(directory, "  - own.csv\n", "farm", clusters).cluster.site


def test_every_data_key_of_a_profile_is_read(directory: Path) -> None:
    found = profile(
        directory,
        "cache: $SCRATCH/c, cache_size: 2TB, "
        "token: {command: 'get \"a b\"', hosts: ['*.a.org', 'b.org:8443']}, "
        "transfers: {stall: 30s, patience: 1h, connections: 8}",
    )
    assert (found.cache, found.cache_size) == ("$SCRATCH/c", 2 * 10**12)
    assert (found.token_file, found.token_command) == ("", ("get", "a b"))
    assert found.token_hosts == ("*.a.org", "b.org:8443")
    assert (found.stall, found.patience, found.connections) == (30.0, 3600.0, 8)


def test_relative_paths_in_a_profile_start_from_its_file_if_jobs_see_them(directory: Path) -> None:
    keys = "cache: c, token: {file: t, hosts: a.org}"
    (directory / "t").touch(0o600)
    found = profile(directory, keys)
    assert (found.cache, found.token_file) == (str(directory / "c"), str(directory / "t"))
    # The token's file is read on this machine.
    found = profile(directory, keys, "htcondor")
    assert (found.cache, found.token_file) == ("c", str(directory / "t"))


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ("token: {file: x}", "token: hosts is missing; add hosts: [data.example.org]"),
        (
            "token: {file: x, command: y, hosts: a.org}",
            "token.command: cannot be combined with file",
        ),
        ("token: {hosts: https://a.org}", 'token.hosts: "https://a.org" is not a host; write a name such as'),
        ("token: {hosts: ['*']}", 'token.hosts: "*" is not a host'),
        ("token: {fil: x, hosts: a.org}", 'did you mean "file"?'),
        ("transfers: {stall: 5}", "transfers.stall: 5 has no unit"),
        ("transfers: {connections: 100}", "transfers.connections: 100 is too large"),
        ("cache_size: 5", "cache_size: 5 has no unit"),
    ],
)
def test_a_mistake_in_a_data_key_of_a_profile_is_reported(directory: Path, keys: str, sentence: str) -> None:
    clusters = f"farm: {{scheduler: slurm, {keys}}}\n"
    assert any(sentence in found for found in mistakes(directory, "  - own.csv\n", "farm", clusters))


@pytest.mark.parametrize(
    "keys", ["token: eyJhbGciOi.hunter2.abc", "token: {file: eyJhbGciOi.hunter2.abc, hosts: a.org}"]
)
def test_a_token_in_a_profile_is_refused_and_not_repeated(directory: Path, keys: str) -> None:
    found = mistakes(directory, "  - own.csv\n", "farm", f"farm: {{scheduler: slurm, {keys}}}\n")
    assert "hunter2" not in "".join(found)


def test_a_token_file_that_others_can_read_is_a_mistake_with_its_remedy(directory: Path) -> None:
    clusters = "farm:\n  scheduler: slurm\n  token: {file: t, hosts: a.org}\n"
    (directory / "t").touch()
    (directory / "t").chmod(0o640)
    (found,) = mistakes(directory, "  - own.csv\n", "farm", clusters)
    path = directory / "t"
    assert found == (
        f"clusters.yaml:3: farm.token.file: {path} can be read by others (mode 640); chmod 600 {path}"
    )
    path.chmod(0o600)
    assert items(directory, "  - own.csv\n", "farm", clusters)


def test_a_token_file_that_does_not_exist_yet_is_warned_about(directory: Path) -> None:
    clusters = "farm: {scheduler: slurm, token: {file: t, hosts: a.org}}\n"
    found = [str(one) for one in parsed(directory, "  - own.csv\n", "farm", clusters).warnings]
    assert any("put the token there before the runs start" in one for one in found)


# Pinning

PINS: dict[str, str | int] = {"sha256": SHA, "size": 5}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("- a.csv  # mine", f"- url: a.csv  # mine\n  sha256: {SHA}\n  size: 5"),
        ("  -   a.csv", f"  -   url: a.csv\n      sha256: {SHA}\n      size: 5"),
        ("- 'a.csv'\n- b", f"- url: 'a.csv'\n  sha256: {SHA}\n  size: 5\n- b"),
        (" [a.csv, b]", f" [{{url: a.csv, sha256: {SHA}, size: 5}}, b]"),
        ("- {url: a.csv}  # x", f"- {{url: a.csv, sha256: {SHA}, size: 5}}  # x"),
        ("- {url: a.csv, }", f"- {{url: a.csv, sha256: {SHA}, size: 5 }}"),
        ("- {url: a.csv, size: 7}", f"- {{url: a.csv, size: 5, sha256: {SHA}}}"),
        ("- url: a.csv # x\n  to: b", f"- url: a.csv # x\n  sha256: {SHA}\n  size: 5\n  to: b"),
        (
            "- to: b\n  url:\n    - a\n    - b # x\n\n  # y\n- c",
            f"- to: b\n  url:\n    - a\n    - b # x\n  sha256: {SHA}\n  size: 5\n\n  # y\n- c",
        ),
        ("- url: a\n  sha256: 'old' # x\n  size: 7", f"- url: a\n  sha256: {SHA} # x\n  size: 5"),
        ("- url: >-\n    a.csv\n  to: b", f"- url: >-\n    a.csv\n  to: b\n  sha256: {SHA}\n  size: 5"),
        ("- &x {url: a}\n- *x", None),
    ],
)
def test_only_what_is_pinned_changes_in_the_file(before: str, after: str | None) -> None:
    gap = "" if before.startswith(" [") else "\n"
    text = f"# first\ncommand: x   # why\ndata:{gap}{before}\nruns: 1 # last\n"
    if after is None:
        with pytest.raises(CannotPin):
            pin(text, 0, PINS)
        return
    pinned = pin(text, 0, PINS)
    assert pinned == text.replace(before, after)
    entry = parse(pinned, "params.yaml").find(("data", 0, "sha256"))
    assert entry is not None


def test_a_file_that_has_changed_in_the_meantime_is_not_edited() -> None:
    for text in ("command: x\n", "data: [a]\n", "data: [\n"):
        with pytest.raises(CannotPin):
            pin(text, 1, PINS)


def test_a_folder_is_used_in_place_and_never_transferred(directory: Path) -> None:
    (directory / "images").mkdir()
    (item,) = parsed(directory, "  - images\n").spec.data
    assert (item.method, item.name) == ("shared", "images")
    (found,) = mistakes(directory, "  - images\n", cluster="htcondor")
    assert "images is a folder; pack it into a tar" in found


@pytest.mark.parametrize(
    "second, message",
    [
        (
            "{url: sub/own.csv, to: elsewhere}",
            "HTCondor would put own.csv in the same place as the entry in line 4",
        ),
        ("{url: https://a.org/own.csv, method: native, to: x}", "the same place as the entry in line 4"),
        ("sub/order.json", "HTCondor would transfer it as order.json"),
    ],
)
def test_two_files_that_htcondor_would_put_in_the_same_place_are_a_mistake(
    directory: Path, second: str, message: str
) -> None:
    (directory / "sub").mkdir()
    for name in ("own.csv", "order.json"):
        (directory / "sub" / name).touch()
    (found,) = mistakes(directory, f"  - own.csv\n  - {second}\n", "htcondor")
    assert message in found and "another name" in found
    if "method" not in second:
        assert len(items(directory, f"  - own.csv\n  - {second}\n", "local")) == 2
