"""`data:` of a params.yaml: what has to be there before the training starts, and by which way it comes."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from outlast.node.staging.fetch.digests import normalise_digest
from outlast.node.staging.item import ALGORITHMS, DataItem
from outlast.node.staging.sources.file_source import path_of
from outlast.spec import code_files, data_methods, urls
from outlast.spec.data_methods import DataMethod, NoDataMethod
from outlast.spec.document import Document, Mapping, Path_, Scalar
from outlast.spec.mistakes import Mistake, did_you_mean, shorten
from outlast.spec.schema import DataKeys
from outlast.units import show_size

_EXAMPLE = "write {url: https://data.example.org/train.tar, unpack: yes, to: data}"
_PIN = "`outlast data pin` fills in a digest"
#: What else is in a job's directory.
_TAKEN = ("order.json", "travel", "committed", "arrived")
#: So many characters has a digest in hexadecimal.
_DIGITS = {"sha256": 64, "sha1": 40, "md5": 32, "crc32c": 8, "crc32": 8, "adler32": 8}


@dataclass
class DataFound:
    """`items` and `ways` go together. With a mistake they are not all there."""

    items: list[DataItem] = field(default_factory=list)
    ways: list[DataMethod] = field(default_factory=list)
    mistakes: list[Mistake] = field(default_factory=list)
    warnings: list[Mistake] = field(default_factory=list)


def read_data(
    document: Document, entries: Sequence[DataKeys], directory: Path, scheduler: str, disk: int
) -> DataFound:
    """`scheduler` is empty where a mistake keeps it from being known."""
    found = DataFound()
    reading = _DataReader(document, directory, scheduler, found)
    for index, keys in enumerate(entries):
        reading.entry(index, keys)
    reading.collisions()
    pinned = sum(item.size or 0 for item in found.items if way_takes_disk(item))
    if pinned > disk:
        text = f"{show_size(pinned)} do not fit into resources.disk, {show_size(disk)}"
        found.warnings.append(document.mistake(("data",), text, "ask for more disk"))
    return found


def way_takes_disk(item: DataItem) -> bool:
    return not (item.method == "shared" and item.unpack == "no")


class _DataReader:
    def __init__(self, document: Document, directory: Path, scheduler: str, found: DataFound) -> None:
        self._document = document
        self._directory = directory
        self._scheduler = scheduler
        self._found = found
        #: Where each item was written.
        self._places: list[tuple[int, DataItem]] = []
        #: By the name under which HTCondor puts them into a job's directory: where they were written.
        self._carried: dict[str, int] = {}

    def entry(self, index: int, keys: DataKeys) -> None:
        at: Path_ = ("data", index)
        before = len(self._found.mistakes)
        node = self._document.find(at)
        if isinstance(node, Mapping) and "url" not in node.entries:
            self._mistake(at, "says no url", _EXAMPLE)
        if "url" not in keys.model_fields_set or not all(keys.url):
            return  # it was wrong, and that has been said
        if not keys.url:
            self._mistake((*at, "url"), "is an empty list", _EXAMPLE)
        for number, url in enumerate(keys.url):
            text, hint = urls.mistake_in(url)
            if text:
                self._mistake(self._place(index, number), text, hint)
        digests = dict(self._digests(at, keys))
        to = self._to(at, keys)
        if len(self._found.mistakes) > before:
            return
        wanted = DataItem(
            tuple(urls.located(url, self._directory) for url in keys.url),
            digests,
            keys.size if "size" in keys.model_fields_set else None,
            keys.unpack,
            to,
            keys.method,
        )
        self._warnings(index, wanted)
        if self._scheduler:
            self._way(index, wanted)
        self._places.append((index, wanted))

    def _place(self, index: int, number: int) -> Path_:
        """As it was written: an entry may be a URL by itself, and `url:` one or a list."""
        at: Path_ = ("data", index)
        if isinstance(self._document.find(at), Scalar):
            return at
        url = (*at, "url")
        return url if isinstance(self._document.find(url), Scalar) else (*url, number)

    def _digests(self, at: Path_, keys: DataKeys) -> Iterator[tuple[str, str]]:
        for name in ALGORITHMS:
            if name not in keys.model_fields_set:
                continue
            written = self._document.text((*at, name))
            if not written:
                # "Has no value" is said of keys that have a type; these are read here.
                self._mistake((*at, name), "has no value", "write one, or remove the line")
                continue
            try:
                yield name, normalise_digest(name, written)
            except ValueError:
                text = f'"{shorten(written, 70)}" is no {name} digest ({len(written)} characters)'
                hint = f"it has {_DIGITS[name]} hexadecimal digits, or is base64 of as many bits"
                self._mistake((*at, name), text, hint)

    def _to(self, at: Path_, keys: DataKeys) -> str:
        to = posixpath.normpath(keys.to) if keys.to else ""
        if to in ("", "."):
            return ""
        wrong = code_files.relative_path_mistake(keys.to)
        if wrong:
            wrong = wrong.replace("the experiment directory", "the data directory")
            self._mistake((*at, "to"), f'"{shorten(keys.to)}" {wrong}', "it begins in $OUTLAST_DATA_DIR")
        return to

    def _way(self, index: int, wanted: DataItem) -> None:
        try:
            way = data_methods.choose(wanted.urls, wanted.method, self._scheduler)
        except NoDataMethod as none:
            written = self._document.find(("data", index, "method")) is not None
            path: Path_ = ("data", index, "method") if written else self._place(index, 0)
            # The path that leads the sentence says `method` already.
            self._mistake(path, none.text.removeprefix("method: ") if written else none.text, none.hint)
            return
        if self._scheduler in data_methods.SHARING or way.method == "native":
            self._missing_files(index, wanted, way.method)
        if way.method == "native" and len(wanted.urls) > 1:
            text = "HTCondor's own transfer takes one URL: the other mirrors are not used"
            self._warn(self._place(index, 1), text, "write method: auto to have them used")
        if way.method == "native":
            self._carry(index, wanted.name)
        item = DataItem(wanted.urls, wanted.digests, wanted.size, wanted.unpack, wanted.to, way.method)
        self._found.items.append(item)
        self._found.ways.append(way)

    def _carry(self, index: int, name: str) -> None:
        """All that HTCondor brings lies side by side, whatever `to` says."""
        if name in self._carried:
            first = self._document.line(("data", self._carried[name]))
            text = f"HTCondor brings {name} to the same place as that of line {first}"
            self._mistake(("data", index), text, "give one of them another name")
        elif name in _TAKEN:
            text = f"HTCondor brings it under its own name, and a job has another {name}"
            self._mistake(("data", index), text, "give it another name")
        self._carried.setdefault(name, index)

    def _missing_files(self, index: int, wanted: DataItem, method: str) -> None:
        for number, url in enumerate(wanted.urls):
            if urls.kind_of(url) != "file":
                continue
            path, place = Path(path_of(url)), self._place(index, number)
            text, hint = _file_mistake(path, wanted, method)
            if text:
                self._mistake(place, text, hint)
            elif path.is_dir():
                continue  # a folder on a shared file system is used as it is
            elif wanted.size is not None and path.stat().st_size != wanted.size:
                text = f"has {path.stat().st_size:,} bytes, and size says {wanted.size:,}"
                self._mistake(place, text, "remove what is pinned, and `outlast data pin` writes it anew")

    def _warnings(self, index: int, wanted: DataItem) -> None:
        if wanted.digests:
            return
        place = self._place(index, 0)
        if any(urls.scheme_of(url) == "http" for url in wanted.urls):
            self._warn(
                place, "plain http and no digest: anybody on the way could put other bytes there", _PIN
            )
            return
        but = "" if urls.kind_of(wanted.urls[0]) == "file" else ", unless the source tells a digest itself"
        if wanted.size is not None:
            but = f", and a size proves little{but}"
        self._warn(place, f"nothing proves that these bytes are the right ones{but}", _PIN)

    def collisions(self) -> None:
        """Two entries that would lie at the same place."""
        taken: dict[str, int] = {}
        for index, wanted in self._places:
            path = posixpath.join(wanted.to, wanted.name)
            if wanted.unpack != "no":
                # Several archives may be unpacked into one folder; the same one twice is a slip.
                path = "\0".join((wanted.to, *wanted.urls))
            if path in taken:
                first = self._document.line(("data", taken[path]))
                what = (
                    f"brings {path}"
                    if wanted.unpack == "no"
                    else "unpacks the same archive to the same place"
                )
                text = f"{what}, as the entry of line {first} does"
                self._mistake(("data", index), text, "give one of them another to:")
            taken.setdefault(path, index)

    def _mistake(self, path: Path_, text: str, hint: str = "") -> None:
        self._found.mistakes.append(self._document.mistake(path, text, hint))

    def _warn(self, path: Path_, text: str, hint: str = "") -> None:
        self._found.warnings.append(self._document.mistake(path, text, hint))


def _file_mistake(path: Path, wanted: DataItem, method: str) -> tuple[str, str]:
    try:
        if not path.exists():
            near = did_you_mean(path.name, _names(path.parent))
            variable = "variables such as $SCRATCH are not put in here" if "$" in str(path) else ""
            return f"{path} is not there", variable or near or "a relative path begins beside params.yaml"
        if path.is_dir():
            return _folder_mistake(path, wanted, method)
        if not path.is_file():
            return f"{path} is not a file", ""
    except (OSError, ValueError) as error:
        return f"{path} cannot be looked at: {getattr(error, 'strerror', None) or error}", ""
    return ("", "") if os.access(path, os.R_OK) else (f"{path} cannot be read", f"chmod u+r {path}")


def _folder_mistake(path: Path, wanted: DataItem, method: str) -> tuple[str, str]:
    """A folder that the node sees is used as it is."""
    if method != "shared":
        return f"{path} is a folder", "pack it into a tar and write unpack: yes"
    if wanted.unpack != "no":
        return f"{path} is a folder, there is nothing to unpack", "remove unpack:"
    if wanted.digests or wanted.size is not None:
        return f"{path} is a folder, which has neither digest nor size", "remove them, or pack it into a tar"
    return "", ""


def _names(folder: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in folder.iterdir())
    except OSError:
        # Only a suggestion is lost.
        return []
