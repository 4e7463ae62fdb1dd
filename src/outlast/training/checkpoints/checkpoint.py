"""One checkpoint: a directory with a file for each process that saved it, valid only if all are."""

from __future__ import annotations

import os

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


def part_paths(directory: str) -> list[str]:
    """Return the paths of a checkpoint's files. The first file states how many there are. Raises Damaged."""
    manifest = read_manifest(directory)
    return [os.path.join(directory, part_name(rank, manifest.world)) for rank in range(manifest.world)]


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
        if age_of(other) != age_of(first) or (other.rank, other.world) != (rank, first.world):
            raise Damaged("its parts belong to different checkpoints")
    return first


def age_of(manifest: PartManifest) -> tuple[int, int, int]:
    return manifest.generation, manifest.sequence, manifest.step
