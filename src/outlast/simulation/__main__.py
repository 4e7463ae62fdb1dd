"""`python -m outlast.simulation`: run schedules, or one of them with a trace."""

from __future__ import annotations

import argparse
import sys

from outlast.simulation.scenario import draw_scenario
from outlast.simulation.schedule import carry_out
from outlast.simulation.seed_runs import run_seeds


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m outlast.simulation",
        description="The real controller against a simulated cluster; everything follows from the seed.",
    )
    parser.add_argument("--seeds", type=_range, default=(0, 1000), metavar="FIRST:END", help="default 0:1000")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--seed", type=int, help="run only this seed")
    parser.add_argument("-v", "--verbose", action="store_true", help="with --seed: print what happens")
    arguments = parser.parse_args()
    if arguments.seed is not None:
        return _one(arguments.seed, arguments.verbose)
    first, end = arguments.seeds
    result = run_seeds(first, end, arguments.jobs, found=lambda failure: print(failure, flush=True))
    print(result)
    return 1 if result.failures else 0


def _range(text: str) -> tuple[int, int]:
    first, colon, end = text.partition(":")
    if not colon or not first.isdigit() or not end.isdigit() or int(first) >= int(end):
        raise argparse.ArgumentTypeError("%r is not FIRST:END, as in 0:10000" % text)
    return int(first), int(end)


def _one(seed: int, verbose: bool) -> int:
    scenario = draw_scenario(seed)
    trace: list[str] | None = [] if verbose else None
    history = carry_out(scenario, trace)
    if trace is not None:
        for name, truth in history.truths.items():
            print("%s: %s" % (name, truth.training))
        print("%s\n%s\n%s\n" % (scenario.spec.limits, scenario.patience, scenario.weather))
        print("\n".join(trace) + "\n")
    for run in history.runs.values():
        print("%s: %s, %s" % (run.name, run.state.value, run.reason))
    for violation in history.violations:
        print("BROKEN %s" % violation)
    return 1 if history.violations else 0


if __name__ == "__main__":
    sys.exit(main())
