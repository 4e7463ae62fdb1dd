"""Data that arrives: fetching and unpacking next to other programs, and through trouble.

One command, one run: `python benchmarks/transfers.py [--only NAME]… [--rounds N] [--json]`.
Ratios are of what was measured in the same round, and medians over the rounds.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import pytest
import transfer_closing
import transfer_mirrors
import transfer_rates
import transfer_unpacking
from measuring import SMOKE_HELP, shrink
from transfer_closing import closing
from transfer_mirrors import capped, stall
from transfer_rates import digest, rates
from transfer_scene import Scene
from transfer_unpacking import unpacking
from verdicts import Row, as_json, show

from servers.certificates import Authority

BENCHMARKS = {
    "rates": ("1 GiB from nginx, discarded", rates),
    "digest": ("1 GiB from nginx, discarded, with a digest", digest),
    "closing": ("100 MiB from a server that closes every 20 MiB", closing),
    "unpacking": ("50,000 files in a nested tar, from nginx at 100 MiB/s, on a private ext4", unpacking),
    "stall": ("two mirrors, of which the first one stalls", stall),
    "capped": ("2 GiB from nginx at 90 MB/s for each connection", capped),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", choices=BENCHMARKS, help="may be given several times")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--smoke", action="store_true", help=SMOKE_HELP)
    options = parser.parse_args()
    if options.smoke:
        shrink(transfer_closing, transfer_mirrors, transfer_rates, transfer_unpacking)
        options.rounds = 1
    found: dict[str, list[Row]] = {}
    with tempfile.TemporaryDirectory(prefix="outlast-bench-") as folder:
        authority = Authority(Path(folder) / "authority")
        for name in options.only or BENCHMARKS:
            title, benchmark = BENCHMARKS[name]
            place = Path(folder) / name
            place.mkdir()
            began = time.monotonic()
            try:
                found[name] = benchmark(Scene(place, authority, options.rounds))
            except pytest.skip.Exception as error:  # a server that cannot be installed here
                found[name] = [Row(name, None, beside=str(error))]
            if not options.json:
                show("%s (%s, %.0f s)" % (title, name, time.monotonic() - began), found[name])
                print(flush=True)
    if options.json:
        print(as_json(found))


if __name__ == "__main__":
    main()
