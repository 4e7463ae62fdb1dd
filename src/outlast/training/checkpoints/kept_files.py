"""Files as parts of a checkpoint: `outlast.File` in a state, and the paths given to `outlast.keep`."""

from __future__ import annotations

import io
import os
import secrets
from typing import Any, BinaryIO, Callable, Dict

from outlast.training.checkpoints import durable_files


class File:
    """The content of a file, as a value in a state.

        torch.save(model.state_dict(), "model.pt")
        outlast.save({"model": outlast.File("model.pt")}, step=step)

        file = outlast.load()["model"]
        model.load_state_dict(torch.load(file.open()))

    The file is read when the state is saved. `outlast.load()` returns a File with that content: `open()`
    reads it, `copy_to()` writes it to a path, and `name` is the last part of the original path.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)
        #: The last part of the path.
        self.name = os.path.basename(self._path)
        self._content: memoryview | None = None

    @staticmethod
    def of(name: str, content: memoryview) -> File:
        """Return a File with this name and content. Raises ValueError if the name is not a string."""
        if type(name) is not str:
            raise ValueError("a file has no name")
        made = File(os.path.basename(name))
        made._content = content
        return made

    def content(self) -> memoryview:
        """Return the content: as loaded from the checkpoint, or else of the file now. Raises OSError."""
        if self._content is not None:
            return self._content
        with open(self._path, "rb") as file:
            return memoryview(file.read())

    def open(self) -> BinaryIO:
        """Return a binary file object for reading the content from its beginning."""
        return io.BytesIO(self.content()) if self._content is not None else open(self._path, "rb")

    def copy_to(self, path: str | os.PathLike[str]) -> None:
        """Write the content to `path`; an existing file is overwritten."""
        with open(path, "wb") as file:
            file.write(self.content())

    def __repr__(self) -> str:
        return "outlast.File(%r)" % self._path


#: Files by their path, relative to the kept directory.
Contents = Dict[str, File]


class KeptFiles:
    """The paths given to `outlast.keep`, whose files are saved with the state and restored with it.

    A killed attempt may have logged steps after its last save; the next attempt repeats these steps and would
    log them twice. `owns_base`: all files under `base` belong to this run, so extra ones may be removed.
    """

    def __init__(self, base: str, owns_base: bool, warn: Callable[[str], None]) -> None:
        self._base = base
        self._owns_base = owns_base
        self._warn = warn
        self._flushes: dict[str, Callable[[], Any] | None] = {}
        #: Files of the loaded checkpoint; None before anything was loaded.
        self._loaded: dict[str, Contents] | None = None

    def add(self, path: str | os.PathLike[str], flush: Callable[[], Any] | None) -> None:
        """Keep the files under `path`; restore them if a checkpoint was loaded already."""
        name = os.fspath(path)
        is_new = name not in self._flushes
        self._flushes[name] = flush or self._flushes.get(name)
        if is_new and self._loaded is not None:
            self._restore(name)

    def collect(self) -> dict[str, Contents]:
        """Flush and return all kept files. Raises OSError."""
        contents = {}
        for name, flush in self._flushes.items():
            if flush is not None:
                flush()
            place = os.path.join(self._base, name)
            contents[name] = {path: File(os.path.join(place, path)) for path in _list_files(place)}
        return contents

    def restore(self, contents: dict[str, Contents]) -> None:
        """Restore the kept files of the loaded checkpoint; `contents` is empty if there was none."""
        self._loaded = contents
        for name in self._flushes:
            self._restore(name)

    def _restore(self, name: str) -> None:
        assert self._loaded is not None
        place = os.path.join(self._base, name)
        saved = self._loaded.get(name, {})
        extra = [path for path in _list_files(place) if path not in saved]
        if extra and (saved or self._owns_base):
            self._discard_extra(place, extra)
        for path, content in saved.items():
            target = os.path.join(place, path)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            content.copy_to(target)

    def _discard_extra(self, place: str, extra: list[str]) -> None:
        """Remove files written after the save; outside a job move them, as they may be somebody else's."""
        if self._owns_base:
            for path in extra:
                durable_files.remove(os.path.join(place, path))
            return
        aside = "%s.aside-%s" % (place.rstrip("/"), secrets.token_hex(4))
        for path in extra:
            target = os.path.join(aside, path)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            os.rename(os.path.join(place, path), target)
        self._warn("files written to %s after the last save were moved to %s" % (place, aside))


def _list_files(place: str) -> list[str]:
    """Return the regular files under a directory, as sorted relative paths; [''] if `place` is a file."""
    if os.path.isfile(place):
        return [""]
    found = []
    for folder, _, names in os.walk(place):
        for name in names:
            path = os.path.join(folder, name)
            if os.path.isfile(path) and not os.path.islink(path):
                found.append(os.path.relpath(path, place))
    return sorted(found)
