"""HTCondor's file transfer plugin: the starter calls us for `transfer_input_files` that are URLs.

It runs where the job will, outside of the job's container and network, in the job's directory. HTCondor has
brought the work order there before: it says what is pinned, how patient to be, and who may have a token.
"""

from __future__ import annotations

import errno
import os
import re
import time
from dataclasses import replace
from typing import Any, Mapping, Sequence

from outlast.node.order import read_order
from outlast.node.staging import plugin_receipt
from outlast.node.staging.condor_plugin_codes import METHODS, code_of
from outlast.node.staging.errors import FINAL, ErrorKind, FetchFailed
from outlast.node.staging.fetch.fetch import fetch
from outlast.node.staging.fetch.part_file import PartFile
from outlast.node.staging.fetch.receipt import Receipt
from outlast.node.staging.item import DataItem
from outlast.node.staging.plan import DataPlan
from outlast.node.staging.stager import settings_of, sources_of

_ORDER = "order.json"
#: Of the node's own troubles.
_FAILED = 1
_KIND = "ErrorKind"
#: In an ad, which is between square brackets; strings have backslashes before quotes.
_ATTRIBUTE = re.compile(r'\b(?P<name>[A-Za-z_]\w*)\s*=\s*"(?P<text>(?:[^"\\]|\\.)*)"')
_LARGEST = 16 * 2**20


def is_asked(argv: Sequence[str]) -> bool:
    """Whether these are the arguments that HTCondor gives to a plugin."""
    return "-classad" in argv or "-infile" in argv


def main(argv: Sequence[str]) -> int:
    if "-classad" in argv:
        print(_old(_abilities()), end="")
        return 0
    options = dict(zip(argv, argv[1:]))
    with open(options["-infile"], encoding="utf-8", errors="surrogateescape") as file:
        wishes = _ads(file.read(_LARGEST))
    answers = [_refuse(wish) if "-upload" in argv else _bring(wish) for wish in wishes]
    # Its space is allocated already, for the case of a full disk: it must not be truncated first.
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
    with open(os.open(options["-outfile"], flags, 0o644), "r+b") as out:
        out.write("".join(_new(answer) for answer in answers).encode("utf-8", "surrogateescape"))
        out.truncate()
    failed = [answer for answer in answers if not answer["TransferSuccess"]]
    return _code_of(failed[0]) if failed else 0 if answers else _FAILED


def _code_of(answer: Mapping[str, Any]) -> int:
    kind = answer.get("TransferErrorData", {}).get(_KIND)
    return _FAILED if kind is None else code_of(ErrorKind(kind))


def _abilities() -> Mapping[str, Any]:
    return {
        "MultipleFileSupport": True,
        "PluginType": "FileTransfer",
        "PluginVersion": "1.0",
        "ProtocolVersion": 2,
        "SupportedMethods": METHODS,
    }


def _bring(wish: Mapping[str, str]) -> dict[str, Any]:
    url, path = wish.get("Url", ""), wish.get("LocalFileName", "")
    began = time.time()
    answer: dict[str, Any] = {
        "TransferUrl": url,
        "TransferFileName": os.path.basename(path),
        "TransferProtocol": url.partition(":")[0],
        "TransferType": "download",
        "TransferStartTime": int(began),
        "TransferSuccess": False,
    }
    try:
        receipt = _fetch(url, path)
        answer.update(TransferSuccess=True, TransferTotalBytes=receipt.bytes, TransferFileBytes=receipt.bytes)
        answer.update(DeveloperData=_told(receipt))
    except FetchFailed as error:
        answer.update(TransferError=str(error), **_reason(error.trouble.kind))
    except (OSError, ValueError) as error:
        full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        answer.update(
            TransferError="%s: %s" % (path, error), **_reason(ErrorKind.DISK_FULL if full else None)
        )
    answer.update(TransferEndTime=int(time.time()), ConnectionTimeSeconds=time.time() - began)
    return answer


def _fetch(url: str, path: str) -> Receipt:
    folder, name = os.path.split(os.path.abspath(path))
    plan, wanted = _plan(folder), DataItem((url,))
    wanted = next((replace(item, urls=(url,)) for item in plan.items if item.name == wanted.name), wanted)
    sink = PartFile(folder, name)
    try:
        receipt = fetch(wanted, sources_of(plan, wanted), sink, settings_of(plan))
    finally:
        sink.close()
    final = os.path.join(folder, wanted.name)
    if name != wanted.name and not os.path.lexists(final):
        os.link(os.path.join(folder, name), final)  # HTCondor leaves %20 and the like in names
    plugin_receipt.note(final, receipt)
    return receipt


def _plan(folder: str) -> DataPlan:
    """What the work order says. Jobs of others, which have none, may use the plugin as well."""
    path = os.path.join(folder, _ORDER)
    return read_order(path).data if os.path.exists(path) else DataPlan()


def _told(receipt: Receipt) -> Mapping[str, Any]:
    troubles = receipt.costs.to_dict()
    return {
        "Digests": ", ".join("%s:%s" % pair for pair in receipt.digests.items()),
        "VouchedBy": receipt.vouched,
        "Troubles": ", ".join("%s %d" % (kind, cost["count"]) for kind, cost in troubles.items()),
    }


def _reason(kind: ErrorKind | None) -> dict[str, Any]:
    """None: the node is at fault."""
    told = {} if kind is None else {_KIND: kind.value}
    return {"TransferErrorData": {"ErrorType": "Transfer", "Retryable": kind not in FINAL, **told}}


def _refuse(wish: Mapping[str, str]) -> dict[str, Any]:
    return {
        "TransferUrl": wish.get("Url", ""),
        "TransferFileName": os.path.basename(wish.get("LocalFileName", "")),
        "TransferSuccess": False,
        "TransferError": "this plugin brings files to jobs; it takes none away",
    }


def _ads(text: str) -> list[dict[str, str]]:
    """Their strings, by name; the rest of an ad is not for us."""
    found = []
    for part in re.findall(r"\[((?:[^\]\"]|\"(?:[^\"\\]|\\.)*\")*)\]", text):
        found.append({one["name"]: re.sub(r"\\(.)", r"\1", one["text"]) for one in _ATTRIBUTE.finditer(part)})
    return found


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, Mapping):
        return "[ %s]" % "".join("%s = %s; " % (name, _value(one)) for name, one in value.items())
    text = " ".join(str(value).split())
    return '"%s"' % text.replace("\\", "\\\\").replace('"', '\\"')


def _new(ad: Mapping[str, Any]) -> str:
    return _value(ad) + "\n"


def _old(ad: Mapping[str, Any]) -> str:
    return "".join("%s = %s\n" % (name, _value(value)) for name, value in ad.items())
