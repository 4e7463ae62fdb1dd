"""Files that others write, as leaves of a state: what `torch.save` or a framework made is kept as it is."""

from __future__ import annotations

import io
import os
from typing import BinaryIO


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
