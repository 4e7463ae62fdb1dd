"""One checkpoint: a directory with a file for each process that took part in it, whole only together."""

from __future__ import annotations

import os

from outlast.training.checkpoints import file_format
from outlast.training.checkpoints.file_format import PartManifest, part_name
from outlast.training.errors import Damaged

_SUFFIX = ".outlast"


def looks_like_one(directory: str) -> bool:
    """Whether a directory under a name of its owner's choice may hold a checkpoint."""
    try:
        return any(name.endswith(_SUFFIX) for name in os.listdir(directory))
    except OSError:
        return False


def parts(directory: str) -> list[str]:
    """The paths of its files, as the trailer of the first tells how many there are. Raises Damaged."""
    manifest = read_manifest(directory)
    return [os.path.join(directory, part_name(rank, manifest.world)) for rank in range(manifest.world)]


def read_manifest(directory: str) -> PartManifest:
    """That of the first process's file. Raises Damaged, CheckpointError, OSError."""
    return file_format.read_manifest(os.path.join(directory, _first(directory)))


def _first(directory: str) -> str:
    try:
        names = sorted(name for name in os.listdir(directory) if name.endswith(_SUFFIX))
    except (FileNotFoundError, NotADirectoryError):
        raise Damaged("it is not there, or is no directory") from None
    return names[0] if names else part_name()


def verify(directory: str) -> PartManifest:
    """Read all of it back without building its state. Raises Damaged, CheckpointError, OSError."""
    first = file_format.verify(os.path.join(directory, _first(directory)))
    for rank in range(first.world):
        other = file_format.verify(os.path.join(directory, part_name(rank, first.world))) if rank else first
        if age_of(other) != age_of(first) or (other.rank, other.world) != (rank, first.world):
            raise Damaged("its parts are not of one checkpoint")
    return first


def age_of(manifest: PartManifest) -> tuple[int, int, int]:
    return manifest.generation, manifest.sequence, manifest.step
