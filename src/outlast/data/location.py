"""Lookup of files in the job's data directory."""

from __future__ import annotations

import os

_DATA_DIR = "OUTLAST_DATA_DIR"


def path(name: str | os.PathLike[str]) -> str:
    """Return `name` if it exists, else its path in the job's data directory, OUTLAST_DATA_DIR.

    Raises FileNotFoundError if it is in neither place.
    """
    given = os.fspath(name)
    if os.path.exists(given):
        return given
    directory = os.environ.get(_DATA_DIR)
    if not directory:
        raise FileNotFoundError(
            "there is no %s in %s, and %s, the job's data directory, is not set"
            % (given, os.getcwd(), _DATA_DIR)
        )
    below = os.path.join(directory, given)
    if os.path.exists(below):
        return below
    raise FileNotFoundError(
        "there is no %s in %s, nor in %s=%s. List the files that a job needs under `data:` in params.yaml"
        % (given, os.getcwd(), _DATA_DIR, directory)
    )
