"""All benchmarks, one after the other: `make bench`. Ratios matter; absolute numbers are this machine's."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import growth
import scale
import throughput
from measuring import SMOKE_HELP, shrink


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", choices=["throughput", "scale", "growth"])
    parser.add_argument("--smoke", action="store_true", help=SMOKE_HELP)
    options = parser.parse_args()
    if options.smoke:
        shrink(throughput, scale, growth)
    print("%s, Python %s, %d cores\n" % (platform.platform(), platform.python_version(), os.cpu_count() or 0))
    for module in (throughput, scale, growth):
        if options.only in (None, module.__name__):
            module.main()
            print()


if __name__ == "__main__":
    main()
