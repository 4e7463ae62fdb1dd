"""Checks finished models before they are accepted: all weights, the right shapes, finite numbers."""

import os
import sys
from pathlib import Path

from model import BadModel, read_model

if __name__ == "__main__":
    output = Path(os.environ.get("OUTLAST_OUTPUT_DIR", "."))
    for name in sys.argv[1:]:
        try:
            read_model(output / name)
        except BadModel as error:
            sys.exit("%s %s" % (name, error))
