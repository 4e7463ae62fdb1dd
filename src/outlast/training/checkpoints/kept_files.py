"""Files that others write, as leaves of a state: what `torch.save` or a framework made is kept as it is."""

from __future__ import annotations

import io
import os
import secrets
from typing import Any, BinaryIO, Callable, Dict

from outlast.training.checkpoints import durable_files


class File:
    """The content of a file: `outlast.save({"model": outlast.File("model.pt")}, step=…)`.

    It is read when the state is saved. `outlast.load()` gives a File back that holds the content of then:
    `open()` reads it, `copy_to()` writes it out.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)
        #: The last part of its path.
        self.name = os.path.basename(self._path)
        self._content: memoryview | None = None

    @staticmethod
    def of(name: str, content: memoryview) -> File:
        if type(name) is not str:
            raise ValueError("a file in it has no name")
        made = File(os.path.basename(name))
        made._content = content
        return made

    def content(self) -> memoryview:
        if self._content is not None:
            return self._content
        with open(self._path, "rb") as file:
            return memoryview(file.read())

    def open(self) -> BinaryIO:
        """For reading, from the beginning."""
        return io.BytesIO(self.content()) if self._content is not None else open(self._path, "rb")

    def copy_to(self, path: str | os.PathLike[str]) -> None:
        with open(path, "wb") as file:
            file.write(self.content())

    def __repr__(self) -> str:
        return "outlast.File(%r)" % self._path


# Files that belong to a checkpoint though others write them: logs that grow with the training.
#
# What a killed attempt wrote after its last save would be there twice once the next attempt has done those
# steps again. So the files are kept with the state, and put back as they were when it was saved.
#: Content by path, relative to the directory that is kept.
Contents = Dict[str, File]


class KeptFiles:
    """The paths that `outlast.keep` was given. `is_ours`: what lies below `base` is this run's alone."""

    def __init__(self, base: str, is_ours: bool, warn: Callable[[str], None]) -> None:
        self._base = base
        self._is_ours = is_ours
        self._warn = warn
        self._flushes: dict[str, Callable[[], Any] | None] = {}
        #: What the checkpoint had that was loaded; None before there was one to ask for.
        self._loaded: dict[str, Contents] | None = None

    def add(self, path: str | os.PathLike[str], flush: Callable[[], Any] | None) -> None:
        name = os.fspath(path)
        is_new = name not in self._flushes
        self._flushes[name] = flush or self._flushes.get(name)
        if is_new and self._loaded is not None:
            self._put_back(name)

    def take(self) -> dict[str, Contents]:
        """All that is there now. Raises OSError."""
        taken = {}
        for name, flush in self._flushes.items():
            if flush is not None:
                flush()
            place = os.path.join(self._base, name)
            taken[name] = {path: File(os.path.join(place, path)) for path in _below(place)}
        return taken

    def loaded(self, contents: dict[str, Contents]) -> None:
        """A checkpoint was loaded, or there was none."""
        self._loaded = contents
        for name in self._flushes:
            self._put_back(name)

    def _put_back(self, name: str) -> None:
        assert self._loaded is not None
        place = os.path.join(self._base, name)
        wanted = self._loaded.get(name, {})
        extra = [path for path in _below(place) if path not in wanted]
        if extra and (wanted or self._is_ours):
            self._clear(place, extra)
        for path, content in wanted.items():
            target = os.path.join(place, path)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            content.copy_to(target)

    def _clear(self, place: str, extra: list[str]) -> None:
        """What was written after the save: it is written again. Outside a job it may be somebody else's."""
        if self._is_ours:
            for path in extra:
                durable_files.remove(os.path.join(place, path))
            return
        aside = "%s.aside-%s" % (place.rstrip("/"), secrets.token_hex(4))
        for path in extra:
            target = os.path.join(aside, path)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            os.rename(os.path.join(place, path), target)
        self._warn("what was written to %s after the last save is in %s now" % (place, aside))


def _below(place: str) -> list[str]:
    """Regular files, relative to the place; a file is below itself under the name ''."""
    if os.path.isfile(place):
        return [""]
    found = []
    for folder, _, names in os.walk(place):
        for name in names:
            path = os.path.join(folder, name)
            if os.path.isfile(path) and not os.path.islink(path):
                found.append(os.path.relpath(path, place))
    return sorted(found)
