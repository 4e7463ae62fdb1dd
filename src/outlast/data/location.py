"""Where a job's data is."""

from __future__ import annotations

import os

_DATA_DIR = "OUTLAST_DATA_DIR"


def path(name: str | os.PathLike[str]) -> str:
    """`name` where it is: as it stands, or else below the job's data directory. Raises FileNotFoundError."""
    given = os.fspath(name)
    if os.path.exists(given):
        return given
    directory = os.environ.get(_DATA_DIR)
    if not directory:
        raise FileNotFoundError(
            "there is no %s in %s, and %s, where a job has its data, is not set"
            % (given, os.getcwd(), _DATA_DIR)
        )
    below = os.path.join(directory, given)
    if os.path.exists(below):
        return below
    raise FileNotFoundError(
        "there is no %s in %s, nor in %s=%s. What a job finds there is listed under `data:` in params.yaml"
        % (given, os.getcwd(), _DATA_DIR, directory)
    )
