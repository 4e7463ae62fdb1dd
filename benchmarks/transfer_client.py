"""One download by a Python client, as a process of its own: what `transfers.py` measures.

Prints what it cost without the start of the interpreter, and what came of it.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

#: What curl hands on at once is up to 16 KiB; requests is asked for much more, which is to its advantage.
PIECE = 1 << 20


class Discard:
    """A sink that keeps nothing."""

    def resume(self, identity: str, replay: Callable[[Any], None]) -> int:
        return 0

    def write(self, block: Any) -> None:
        pass

    def restart(self) -> None:
        pass

    def finish(self) -> None:
        pass

    def close(self) -> None:
        pass


def with_outlast(options: argparse.Namespace) -> Callable[[], Mapping[str, Any]]:
    from outlast.node.archives.sink import Sink
    from outlast.node.archives.unpacking import UnpackingSink
    from outlast.node.staging.fetch.fetch import fetch
    from outlast.node.staging.fetch.fetch_settings import FetchSettings
    from outlast.node.staging.fetch.part_file import PartFile
    from outlast.node.staging.fetch.receipt import FetchProgress
    from outlast.node.staging.http.http_settings import HttpSettings
    from outlast.node.staging.item import DataItem
    from outlast.node.staging.sources.http_source import HttpSource

    sink: Sink = Discard()
    if options.unpack:
        sink = UnpackingSink(options.unpack, "train.tar", nested=True)
    elif options.to:
        sink = PartFile(*os.path.split(options.to))
    wanted = DataItem((options.url,), {"sha256": options.sha256} if options.sha256 else {})
    source = HttpSource(options.url, HttpSettings(ca_file=options.ca))
    settings = FetchSettings(fallback_digest=options.digest, connections=options.connections)
    seen: list[tuple[float, int]] = []

    def tell(progress: FetchProgress) -> None:
        seen.append((time.monotonic(), progress.done))

    def call() -> Mapping[str, Any]:
        try:
            receipt = fetch(wanted, [source], sink, settings, tell)
        finally:
            sink.close()
        return {**receipt.to_dict(), "late_rate": late_rate(seen, receipt.bytes)}

    return call


def late_rate(seen: list[tuple[float, int]], size: int) -> float:
    """Bytes a second over the second half: what it came to."""
    late = [moment for moment in seen if size / 2 <= moment[1] < size]
    if len(late) < 2 or late[-1][0] == late[0][0]:
        return 0.0
    return (late[-1][1] - late[0][1]) / (late[-1][0] - late[0][0])


def with_pycurl(options: argparse.Namespace) -> Callable[[], Mapping[str, Any]]:
    import pycurl

    def call() -> Mapping[str, Any]:
        came = 0

        def take(data: bytes) -> None:
            nonlocal came
            came += len(data)

        handle = pycurl.Curl()
        handle.setopt(pycurl.URL, options.url)
        handle.setopt(pycurl.WRITEFUNCTION, take)
        if options.ca:
            handle.setopt(pycurl.CAINFO, options.ca)
        handle.perform()
        handle.close()
        return {"bytes": came}

    return call


def with_requests(options: argparse.Namespace) -> Callable[[], Mapping[str, Any]]:
    import requests

    def call() -> Mapping[str, Any]:
        with requests.get(options.url, stream=True, timeout=60, verify=options.ca or True) as answer:
            return {"bytes": sum(len(piece) for piece in answer.iter_content(PIECE))}

    return call


CLIENTS = {"outlast": with_outlast, "pycurl": with_pycurl, "requests": with_requests}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("client", choices=CLIENTS)
    parser.add_argument("url")
    parser.add_argument("--ca", default="")
    parser.add_argument("--to", default="", help="into this file; else it is discarded")
    parser.add_argument("--unpack", default="", help="nested, into this directory")
    parser.add_argument("--sha256", default="", help="must be that")
    parser.add_argument("--digest", default="", help="compute one although nobody says what it must be")
    parser.add_argument("--connections", type=int, default=4)
    options = parser.parse_args()
    call = CLIENTS[options.client](options)
    wall, cpu = time.monotonic(), time.process_time()
    came = call()
    spent = {"wall": time.monotonic() - wall, "cpu": time.process_time() - cpu}
    print(json.dumps({**came, **spent}))


if __name__ == "__main__":
    main()
