"""Files as parts of a checkpoint: `outlast.File` in a state, and the paths given to `outlast.keep`."""

from __future__ import annotations

import errno
import io
import os
from typing import Any, BinaryIO, Callable, Dict

from outlast.training.checkpoints.kept_places import KeptPlace
from outlast.training.errors import Damaged
from outlast.untrusted_files import is_plain_name


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
        """Return a File with this name and content. Raises ValueError if it is not the name of a file."""
        if type(name) is not str or "/" in name or not _is_relative(name):
            raise ValueError("a file has an invalid name")
        made = File(name)
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


#: Files by their path, relative to the kept directory; '' if the kept path is itself a file.
Contents = Dict[str, File]
#: Linux allows no longer ones.
_LONGEST_NAME = 255
_LONGEST_PATH = 4095
#: More levels of directories than any log has, and fewer than `untrusted_files` can walk.
_DEEPEST = 100


def check_contents(value: Any) -> dict[str, Contents]:
    """Return the kept files of a checkpoint. Raises Damaged if they are not what `KeptFiles.collect` returns.

    No path may lead out of its place: a checkpoint may come from a machine of somebody else.
    """
    if type(value) is not dict:
        raise Damaged("its kept files are not a dict")
    for name, files in value.items():
        if type(name) is not str or type(files) is not dict:
            raise Damaged("its kept files are not files by their path")
        folders: set[str] = set()
        for path, file in files.items():
            if type(file) is not File or type(path) is not str or not (path == "" or _is_relative(path)):
                raise Damaged("it has a kept file with an invalid path, %.80r" % (path,))
            parts = path.split("/")
            folders.update("/".join(parts[:count]) for count in range(1, len(parts)))
        if not folders.isdisjoint(files) or ("" in files and len(files) > 1):
            raise Damaged("it has a kept path that is both a file and a directory")
    return value


def _is_relative(path: str) -> bool:
    """Return True if the path is one of plain names, and short enough to exist."""
    try:
        lengths = [len(os.fsencode(part)) for part in path.split("/")]
    except UnicodeEncodeError:
        return False
    return (
        is_plain_name(path)
        and max(lengths) <= _LONGEST_NAME
        and sum(lengths) + len(lengths) <= _LONGEST_PATH
        and len(lengths) <= _DEEPEST
    )


class KeptFiles:
    """The paths given to `outlast.keep`, whose files are saved with the state and restored with it.

    A killed attempt may have logged steps after its last save; the next attempt repeats these steps and would
    log them twice. `owns_base`: all files under `base` belong to this run, so extra ones may be removed.
    """

    def __init__(self, base: str, owns_base: bool, warn: Callable[[str], None]) -> None:
        self._base = base
        self._owns_base = owns_base
        self._warn = warn
        self._warned: set[str] = set()
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
        """Flush, read and return all kept files. Raises OSError."""
        contents: dict[str, Contents] = {}
        for name, flush in self._flushes.items():
            if flush is not None:
                flush()
            contents[name] = {}
            for path, content in self._place(name).read().items():
                if path and not _is_relative(path):
                    raise OSError(errno.ENAMETOOLONG, "cannot be kept in a checkpoint", path)
                last = os.path.basename(path or os.path.normpath(name))
                contents[name][path] = File.of(last, memoryview(content))
        return contents

    def restore(self, contents: dict[str, Contents]) -> None:
        """Restore the kept files of the loaded checkpoint; `contents` is empty if there was none."""
        self._loaded = contents
        for name in self._flushes:
            self._restore(name)

    def _restore(self, name: str) -> None:
        assert self._loaded is not None
        saved = self._loaded.get(name, {})
        if saved or self._owns_base:
            self._place(name).replace({path: file.content() for path, file in saved.items()})

    def _place(self, name: str) -> KeptPlace:
        relative = os.path.normpath(name)
        if self._owns_base and is_plain_name(relative):
            return KeptPlace(self._base, relative, True, self._warn_once)
        # A path of the script's choice, outside of what Outlast owns: links on the way to it are the user's.
        top, relative = os.path.split(os.path.realpath(os.path.join(self._base, name)))
        return KeptPlace(top, relative, self._owns_base, self._warn_once)

    def _warn_once(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            self._warn(text)
