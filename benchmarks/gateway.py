"""The gateway: how fast it records, what it adds to a run, what waiting requests cost, what kills cost.

One command, one run: `python benchmarks/gateway.py [--only NAME]… [--rounds N] [--json]`. It starts a
RabbitMQ of its own, on loopback. Ratios are of what was measured in the same round, and medians over the
rounds. Galaxy's Pulsar is compared with if `pulsar-main` (package pulsar-app) is on the PATH.
"""

from __future__ import annotations

import argparse
import time

import gateway_overhead
import gateway_peers
import gateway_recording
import gateway_waiting
import pytest
from gateway_overhead import overhead
from gateway_peers import peers
from gateway_recording import recording
from gateway_scene import Scene
from gateway_waiting import waiting
from measuring import SMOKE_HELP, shrink
from verdicts import Row, as_json, show

from support.broker import private_broker
from support.clusters import stop_those_for_tests

BENCHMARKS = {
    "recording": ("requests taken from a full queue", recording),
    "overhead": ("no-op requests, from publication to answer", overhead),
    "waiting": ("requests that wait in the record", waiting),
    "peers": ("requests while worker and broker are killed", peers),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", choices=BENCHMARKS, help="may be given several times")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--smoke", action="store_true", help=SMOKE_HELP)
    options = parser.parse_args()
    if options.smoke:
        shrink(gateway_recording, gateway_overhead, gateway_waiting, gateway_peers)
        options.rounds = 1
    found: dict[str, list[Row]] = {}
    names = options.only or list(BENCHMARKS)
    try:
        with private_broker() as broker:
            for name in names:
                title, benchmark = BENCHMARKS[name]
                began = time.monotonic()
                found[name] = benchmark(Scene(broker, options.rounds))
                if not options.json:
                    show("%s (%s, %.0f s)" % (title, name, time.monotonic() - began), found[name])
                    print(flush=True)
    except pytest.skip.Exception as error:  # a broker that cannot be installed here
        found = {name: [Row(name, None, beside=str(error))] for name in names}
    finally:
        stop_those_for_tests()
    if options.json:
        print(as_json(found))


if __name__ == "__main__":
    main()
