"""The node program as HTCondor's file transfer plugin: asked as a starter asks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from outlast.node.main import main
from outlast.node.order import WorkOrder
from outlast.node.staging import plugin_receipt
from outlast.node.staging.condor_plugin_codes import code_of, kind_of
from outlast.node.staging.errors import ErrorKind
from outlast.node.staging.item import DataItem
from outlast.node.staging.plan import DataPlan
from servers.behaviour import PELICAN, Behaviour, seeded
from servers.misbehaving import Misbehaving
from support.fetching import sha256

CONTENT = seeded(50_000)


@pytest.fixture
def server() -> Iterator[Misbehaving]:
    with Misbehaving({"/a.bin": CONTENT, "/b.bin": CONTENT}) as one:
        yield one


@pytest.fixture
def sandbox(tmp_path: Path) -> Path:
    """A job's directory, where the order has arrived."""
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


def ask(sandbox: Path, *urls: str, upload: bool = False) -> tuple[int, list[Mapping[str, str]]]:
    """The exit code, and the strings and truths of the answers."""
    names = [url.rpartition("/")[2] for url in urls]
    ads = [
        '[ LocalFileName = "%s"; Url = "%s" ]\n' % (sandbox / n, u) for n, u in zip(names, urls, strict=True)
    ]
    (sandbox.parent / "in").write_text("".join(ads))
    out = sandbox.parent / "out"
    out.write_bytes(b"\0" * 8192)  # the space is allocated beforehand
    told = ["-infile", str(sandbox.parent / "in"), "-outfile", str(out), *(["-upload"] if upload else [])]
    code = main(told)
    pattern = r'(\w+) = (?:"((?:[^"\\]|\\.)*)"|(true|false))'
    found = [
        {name: text or truth for name, text, truth in re.findall(pattern, line)}
        for line in out.read_text().splitlines()
    ]
    assert "\0" not in out.read_text()
    return code, found


def test_it_says_what_it_can_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-classad"]) == 0
    said = capsys.readouterr().out
    assert 'PluginType = "FileTransfer"\n' in said and "MultipleFileSupport = true\n" in said
    assert 'SupportedMethods = "osdf,pelican,http,https"\n' in said


def test_files_come_and_are_answered_for_one_by_one(sandbox: Path, server: Misbehaving) -> None:
    code, (first, second) = ask(sandbox, server.url("/a.bin"), server.url("/b.bin"))
    assert code == 0
    assert first["TransferSuccess"] == second["TransferSuccess"] == "true"
    assert (sandbox / "a.bin").read_bytes() == (sandbox / "b.bin").read_bytes() == CONTENT


def test_what_it_cost_is_noted_beside_the_file(sandbox: Path, server: Misbehaving) -> None:
    server.plan(Behaviour(), Behaviour(close_after=20_000))
    ask(sandbox, server.url("/a.bin"))
    told = plugin_receipt.told(str(sandbox / "a.bin"))
    assert told["bytes"] == len(CONTENT) and told["troubles"]["truncated"]["count"] == 1
    assert plugin_receipt.told(str(sandbox / "b.bin")) == {}


def test_a_file_is_found_under_the_name_that_it_has_on_every_other_way(
    sandbox: Path, server: Misbehaving
) -> None:
    server.put("/a%20b.bin", CONTENT)
    write_order(sandbox, DataItem(("a b.bin",), sha256(CONTENT), method="native"))
    assert ask(sandbox, server.url("/a%20b.bin"))[0] == 0
    assert (sandbox / "a b.bin").read_bytes() == (sandbox / "a%20b.bin").read_bytes() == CONTENT
    assert plugin_receipt.told(str(sandbox / "a b.bin"))["vouched"] == "pinned"


def test_what_the_order_pins_is_compared_and_wrong_bytes_do_not_stay(
    sandbox: Path, server: Misbehaving
) -> None:
    write_order(sandbox, DataItem(("a.bin",), sha256(b"other"), method="native"))
    code, (answer,) = ask(sandbox, server.url("/a.bin"))
    assert kind_of(code) is ErrorKind.WRONG_DIGEST
    assert answer["TransferSuccess"] == "false" and answer["Retryable"] == "false"
    assert "its sha256 is" in answer["TransferError"]
    assert not (sandbox / "a.bin").exists()


@pytest.mark.parametrize(
    "behaviour, kind, again",
    [
        (Behaviour(status=404, server=PELICAN), ErrorKind.MISSING, "false"),
        (Behaviour(status=404, server=""), ErrorKind.MISSING_FOR_NOW, "true"),
        (Behaviour(status=503), ErrorKind.SERVER_ERROR, "true"),
    ],
)
def test_its_exit_code_tells_the_kind_of_trouble(
    sandbox: Path, server: Misbehaving, behaviour: Behaviour, kind: ErrorKind, again: str
) -> None:
    write_order(sandbox)  # which says how patient it is
    server.always(behaviour)
    code, (answer,) = ask(sandbox, server.url("/a.bin"))
    assert kind_of(code) is kind and code < 256
    assert (answer["ErrorKind"], answer["Retryable"]) == (kind.value, again)


def test_every_kind_of_trouble_has_an_exit_code_and_no_other_code_is_one() -> None:
    kinds = {code: kind_of(code) for code in range(256)}
    assert {kind: code for code, kind in kinds.items() if kind} == {kind: code_of(kind) for kind in ErrorKind}
    assert kinds[0] is kinds[1] is None


def test_a_directory_that_cannot_be_written_is_the_nodes_fault(tmp_path: Path, server: Misbehaving) -> None:
    (tmp_path / "file").touch()
    code, (answer,) = ask(tmp_path / "file", server.url("/a.bin"))
    assert code == 1 and answer["TransferSuccess"] == "false" and "ErrorKind" not in answer


def test_it_takes_nothing_away(sandbox: Path, server: Misbehaving) -> None:
    code, (answer,) = ask(sandbox, server.url("/a.bin"), upload=True)
    assert code == 1 and "takes none away" in answer["TransferError"]
    assert server.requests == []


def test_of_a_receipt_that_a_job_could_have_written_only_what_a_receipt_says_is_taken(tmp_path: Path) -> None:
    (tmp_path / ".a.bin.receipt").write_text('{"event": "end", "bytes": 7, "troubles": {}}')
    assert plugin_receipt.told(str(tmp_path / "a.bin")) == {"bytes": 7, "troubles": {}}
