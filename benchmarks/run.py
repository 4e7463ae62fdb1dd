"""All benchmarks, one after the other: `make bench`. Ratios matter; absolute numbers are this machine's."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import scale
import throughput


def main() -> None:
    print("%s, Python %s, %d cores\n" % (platform.platform(), platform.python_version(), os.cpu_count() or 0))
    throughput.main()
    print()
    scale.main()


if __name__ == "__main__":
    main()
