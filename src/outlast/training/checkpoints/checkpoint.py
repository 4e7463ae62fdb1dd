"""One checkpoint: a directory with a file for each process that saved it, valid only if all are."""

from __future__ import annotations

import os
from typing import Any, Iterator

from outlast.training.checkpoints import file_format
from outlast.training.checkpoints.file_format import PartManifest, part_name
from outlast.training.errors import Damaged

_SUFFIX = ".outlast"


def looks_like_checkpoint(directory: str) -> bool:
    """Return True if a directory with a name of the user's choice may hold a checkpoint."""
    try:
        return any(name.endswith(_SUFFIX) for name in os.listdir(directory))
    except OSError:
        return False


def part_paths(directory: str) -> Iterator[str]:
    """Yield the paths of a checkpoint's files. The first file states how many there are. Raises Damaged."""
    manifest = read_manifest(directory)
    for rank in range(manifest.world):
        yield os.path.join(directory, part_name(rank, manifest.world))


def read_manifest(directory: str) -> PartManifest:
    """Return the manifest of the first process's file. Raises Damaged, CheckpointError, OSError."""
    return file_format.read_manifest(os.path.join(directory, _first(directory)))


def _first(directory: str) -> str:
    try:
        names = sorted(name for name in os.listdir(directory) if name.endswith(_SUFFIX))
    except (FileNotFoundError, NotADirectoryError):
        raise Damaged("it does not exist or is not a directory") from None
    return names[0] if names else part_name()


def verify(directory: str) -> PartManifest:
    """Verify all files without building the state; return the first's manifest.

    Raises Damaged, CheckpointError, OSError.
    """
    first = file_format.verify(os.path.join(directory, _first(directory)))
    for rank in range(first.world):
        other = file_format.verify(os.path.join(directory, part_name(rank, first.world))) if rank else first
        _check_part(other, first, rank)
    return first


def read_part(directory: str, first: PartManifest, rank: int) -> tuple[Any, PartManifest]:
    """Return the state, the kept files and the manifest of one process's part, with every bit verified.

    `first` is the manifest of the checkpoint. Raises Damaged, CheckpointError, OSError.
    """
    loaded = file_format.read_state(os.path.join(directory, part_name(rank, first.world)))
    _check_part(loaded[1], first, rank)
    return loaded


def _check_part(part: PartManifest, first: PartManifest, rank: int) -> None:
    if _age(part) != _age(first) or (part.rank, part.world) != (rank, first.world):
        raise Damaged("its parts belong to different checkpoints")


def _age(manifest: PartManifest) -> tuple[int, int, int]:
    return manifest.generation, manifest.sequence, manifest.step
