"""HTCondor's file transfer plugin: the starter runs it for `transfer_input_files` that are URLs.

It runs on the node in the job's directory, outside the job's container and network. HTCondor has transferred
the work order there before: it has the pinned digests, the timeouts, and the hosts that get a token.
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
from outlast.node.staging.condor_plugin_codes import METHODS, exit_code_of
from outlast.node.staging.errors import FINAL, ErrorKind, FetchFailed
from outlast.node.staging.fetch.fetch import fetch
from outlast.node.staging.fetch.part_file import PartFile
from outlast.node.staging.fetch.receipt import Receipt
from outlast.node.staging.item import DataItem
from outlast.node.staging.plan import DataPlan
from outlast.node.staging.stager import settings_from_plan, sources_from_plan

_ORDER = "order.json"
#: The exit code for errors of the node itself.
_FAILED = 1
_KIND = "ErrorKind"
#: A string attribute of an ad, with quotes escaped by backslashes. An ad is enclosed in square brackets.
_ATTRIBUTE = re.compile(r'\b(?P<name>[A-Za-z_]\w*)\s*=\s*"(?P<text>(?:[^"\\]|\\.)*)"')
_MAX_INPUT = 16 * 2**20


def is_plugin_call(argv: Sequence[str]) -> bool:
    """Return True if these are the arguments that HTCondor passes to a plugin."""
    return "-classad" in argv or "-infile" in argv


def main(argv: Sequence[str]) -> int:
    """Run the plugin and return its exit code: 0, or the code of the first failed transfer."""
    if "-classad" in argv:
        print(_format_old_ad(_capabilities()), end="")
        return 0
    options = dict(zip(argv, argv[1:]))
    with open(options["-infile"], encoding="utf-8", errors="surrogateescape") as file:
        requests = _parse_ads(file.read(_MAX_INPUT))
    results = [_refuse(request) if "-upload" in argv else _download(request) for request in requests]
    # HTCondor has allocated the space of this file in case the disk is full: do not truncate it first.
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
    with open(os.open(options["-outfile"], flags, 0o644), "r+b") as out:
        out.write("".join(_format_new_ad(result) for result in results).encode("utf-8", "surrogateescape"))
        out.truncate()
    failed = [result for result in results if not result["TransferSuccess"]]
    return _exit_code(failed[0]) if failed else 0 if results else _FAILED


def _exit_code(result: Mapping[str, Any]) -> int:
    kind = result.get("TransferErrorData", {}).get(_KIND)
    return _FAILED if kind is None else exit_code_of(ErrorKind(kind))


def _capabilities() -> Mapping[str, Any]:
    return {
        "MultipleFileSupport": True,
        "PluginType": "FileTransfer",
        "PluginVersion": "1.0",
        "ProtocolVersion": 2,
        "SupportedMethods": METHODS,
    }


def _download(request: Mapping[str, str]) -> dict[str, Any]:
    """Fetch one file. Return the ad that reports the result to HTCondor."""
    url, path = request.get("Url", ""), request.get("LocalFileName", "")
    began = time.time()
    result: dict[str, Any] = {
        "TransferUrl": url,
        "TransferFileName": os.path.basename(path),
        "TransferProtocol": url.partition(":")[0],
        "TransferType": "download",
        "TransferStartTime": int(began),
        "TransferSuccess": False,
    }
    try:
        receipt = _fetch(url, path)
        result.update(TransferSuccess=True, TransferTotalBytes=receipt.bytes, TransferFileBytes=receipt.bytes)
        result.update(DeveloperData=_summarise(receipt))
    except FetchFailed as error:
        result.update(TransferError=str(error), **_error_data(error.cause.kind))
    except (OSError, ValueError) as error:
        full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        result.update(
            TransferError="%s: %s" % (path, error), **_error_data(ErrorKind.DISK_FULL if full else None)
        )
    result.update(TransferEndTime=int(time.time()), ConnectionTimeSeconds=time.time() - began)
    return result


def _fetch(url: str, path: str) -> Receipt:
    folder, name = os.path.split(os.path.abspath(path))
    plan, item = _read_plan(folder), DataItem((url,))
    item = next((replace(planned, urls=(url,)) for planned in plan.items if planned.name == item.name), item)
    sink = PartFile(folder, name)
    try:
        receipt = fetch(item, sources_from_plan(plan, item), sink, settings_from_plan(plan))
    finally:
        sink.close()
    final = os.path.join(folder, item.name)
    if name != item.name and not os.path.lexists(final):
        os.link(os.path.join(folder, name), final)  # HTCondor does not decode %20 and the like in names
    plugin_receipt.write(final, receipt)
    return receipt


def _read_plan(folder: str) -> DataPlan:
    """Return the plan of the work order; an empty one for jobs without a work order, which may use it too."""
    path = os.path.join(folder, _ORDER)
    return read_order(path).data if os.path.exists(path) else DataPlan()


def _summarise(receipt: Receipt) -> Mapping[str, Any]:
    costs = receipt.costs.to_dict()
    return {
        "Digests": ", ".join("%s:%s" % pair for pair in receipt.digests.items()),
        "VouchedBy": receipt.vouched,
        "Troubles": ", ".join("%s %d" % (kind, cost["count"]) for kind, cost in costs.items()),
    }


def _error_data(kind: ErrorKind | None) -> dict[str, Any]:
    """Return the attributes of a failed transfer. `kind` is None for an error of the node itself."""
    details = {} if kind is None else {_KIND: kind.value}
    return {"TransferErrorData": {"ErrorType": "Transfer", "Retryable": kind not in FINAL, **details}}


def _refuse(request: Mapping[str, str]) -> dict[str, Any]:
    return {
        "TransferUrl": request.get("Url", ""),
        "TransferFileName": os.path.basename(request.get("LocalFileName", "")),
        "TransferSuccess": False,
        "TransferError": "this plugin only transfers files into jobs; it does not upload",
    }


def _parse_ads(text: str) -> list[dict[str, str]]:
    """Return the string attributes of each ad, by name. Other attributes are not needed."""
    found = []
    for part in re.findall(r"\[((?:[^\]\"]|\"(?:[^\"\\]|\\.)*\")*)\]", text):
        found.append({one["name"]: re.sub(r"\\(.)", r"\1", one["text"]) for one in _ATTRIBUTE.finditer(part)})
    return found


def _format_value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, Mapping):
        return "[ %s]" % "".join("%s = %s; " % (name, _format_value(one)) for name, one in value.items())
    text = " ".join(str(value).split())
    return '"%s"' % text.replace("\\", "\\\\").replace('"', '\\"')


def _format_new_ad(ad: Mapping[str, Any]) -> str:
    return _format_value(ad) + "\n"


def _format_old_ad(ad: Mapping[str, Any]) -> str:
    return "".join("%s = %s\n" % (name, _format_value(value)) for name, value in ad.items())
