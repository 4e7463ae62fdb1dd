"""The node program as HTCondor's file transfer plugin, called as the starter calls it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from outlast.node.main import main
from outlast.node.order import WorkOrder
from outlast.node.staging import plugin_receipt
from outlast.node.staging.condor_plugin_codes import error_kind_of, exit_code_of
from outlast.node.staging.errors import ErrorKind
from outlast.node.staging.item import DataItem
from outlast.node.staging.plan import DataPlan
from servers.behaviour import PELICAN, Behaviour, seeded
from servers.misbehaving import Misbehaving
from support.fetching import sha256

CONTENT = seeded(50_000)


@pytest.fixture
def server() -> Iterator[Misbehaving]:
    with Misbehaving({"/a.bin": CONTENT, "/b.bin": CONTENT}) as running:
        yield running


@pytest.fixture
def sandbox(tmp_path: Path) -> Path:
    """The directory of a job."""
    place = tmp_path / "sandbox"
    place.mkdir()
    return place


def write_order(sandbox: Path, *items: DataItem, **plan: Any) -> None:
    order = WorkOrder(
        token="t", experiment="e", run="r", number=1, command=("true",),
        exchange="travel", scratch="travel/unfinished", checkpoints="travel/checkpoints",
        log="travel/training.log", data=DataPlan(items=items, patience=1.0, **plan),
    )  # fmt: skip
    (sandbox / "order.json").write_text(order.to_json())


def run_plugin(sandbox: Path, *urls: str, upload: bool = False) -> tuple[int, list[Mapping[str, str]]]:
    """Return the exit code, and the string and boolean attributes of each result."""
    names = [url.rpartition("/")[2] for url in urls]
    ads = [
        '[ LocalFileName = "%s"; Url = "%s" ]\n' % (sandbox / n, u) for n, u in zip(names, urls, strict=True)
    ]
    (sandbox.parent / "in").write_text("".join(ads))
    out = sandbox.parent / "out"
    out.write_bytes(b"\0" * 8192)  # HTCondor allocates the space beforehand
    arguments = [
        "-infile",
        str(sandbox.parent / "in"),
        "-outfile",
        str(out),
        *(["-upload"] if upload else []),
    ]
    code = main(arguments)
    pattern = r'(\w+) = (?:"((?:[^"\\]|\\.)*)"|(true|false))'
    found = [
        {name: text or boolean for name, text, boolean in re.findall(pattern, line)}
        for line in out.read_text().splitlines()
    ]
    assert "\0" not in out.read_text()
    return code, found


def test_the_plugin_reports_its_capabilities(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-classad"]) == 0
    output = capsys.readouterr().out
    assert 'PluginType = "FileTransfer"\n' in output and "MultipleFileSupport = true\n" in output
    assert 'SupportedMethods = "osdf,pelican,http,https"\n' in output


def test_files_are_fetched_and_reported_one_by_one(sandbox: Path, server: Misbehaving) -> None:
    code, (first, second) = run_plugin(sandbox, server.url("/a.bin"), server.url("/b.bin"))
    assert code == 0
    assert first["TransferSuccess"] == second["TransferSuccess"] == "true"
    assert (sandbox / "a.bin").read_bytes() == (sandbox / "b.bin").read_bytes() == CONTENT


def test_the_costs_are_recorded_beside_the_file(sandbox: Path, server: Misbehaving) -> None:
    server.plan(Behaviour(), Behaviour(close_after=20_000))
    run_plugin(sandbox, server.url("/a.bin"))
    receipt = plugin_receipt.read(str(sandbox / "a.bin"))
    assert receipt["bytes"] == len(CONTENT) and receipt["troubles"]["truncated"]["count"] == 1
    assert plugin_receipt.read(str(sandbox / "b.bin")) == {}


def test_a_file_has_the_same_name_as_with_every_other_method(sandbox: Path, server: Misbehaving) -> None:
    server.put("/a%20b.bin", CONTENT)
    write_order(sandbox, DataItem(("a b.bin",), sha256(CONTENT), method="native"))
    assert run_plugin(sandbox, server.url("/a%20b.bin"))[0] == 0
    assert (sandbox / "a b.bin").read_bytes() == (sandbox / "a%20b.bin").read_bytes() == CONTENT
    assert plugin_receipt.read(str(sandbox / "a b.bin"))["vouched"] == "pinned"


def test_the_pinned_digest_is_verified_and_wrong_bytes_are_removed(
    sandbox: Path, server: Misbehaving
) -> None:
    write_order(sandbox, DataItem(("a.bin",), sha256(b"other"), method="native"))
    code, (result,) = run_plugin(sandbox, server.url("/a.bin"))
    assert error_kind_of(code) is ErrorKind.WRONG_DIGEST
    assert result["TransferSuccess"] == "false" and result["Retryable"] == "false"
    assert "its sha256 is" in result["TransferError"]
    assert not (sandbox / "a.bin").exists()


@pytest.mark.parametrize(
    "behaviour, kind, retryable",
    [
        (Behaviour(status=404, server=PELICAN), ErrorKind.MISSING, "false"),
        (Behaviour(status=404, server=""), ErrorKind.MISSING_FOR_NOW, "true"),
        (Behaviour(status=503), ErrorKind.SERVER_ERROR, "true"),
    ],
)
def test_the_exit_code_gives_the_error_kind(
    sandbox: Path, server: Misbehaving, behaviour: Behaviour, kind: ErrorKind, retryable: str
) -> None:
    write_order(sandbox)  # it sets the patience
    server.always(behaviour)
    code, (result,) = run_plugin(sandbox, server.url("/a.bin"))
    assert error_kind_of(code) is kind and code < 256
    assert (result["ErrorKind"], result["Retryable"]) == (kind.value, retryable)


def test_every_error_kind_has_an_exit_code_and_no_other_code_has_a_kind() -> None:
    kinds = {code: error_kind_of(code) for code in range(256)}
    assert {kind: code for code, kind in kinds.items() if kind} == {
        kind: exit_code_of(kind) for kind in ErrorKind
    }
    assert kinds[0] is kinds[1] is None


def test_a_directory_that_cannot_be_written_is_an_error_of_the_node(
    tmp_path: Path, server: Misbehaving
) -> None:
    (tmp_path / "file").touch()
    code, (result,) = run_plugin(tmp_path / "file", server.url("/a.bin"))
    assert code == 1 and result["TransferSuccess"] == "false" and "ErrorKind" not in result


def test_uploads_are_refused(sandbox: Path, server: Misbehaving) -> None:
    code, (result,) = run_plugin(sandbox, server.url("/a.bin"), upload=True)
    assert code == 1 and "does not upload" in result["TransferError"]
    assert server.requests == []


def test_unknown_keys_of_a_receipt_are_ignored_since_the_job_could_have_written_them(tmp_path: Path) -> None:
    (tmp_path / ".a.bin.receipt").write_text('{"event": "end", "bytes": 7, "troubles": {}}')
    assert plugin_receipt.read(str(tmp_path / "a.bin")) == {"bytes": 7, "troubles": {}}
