"""The `data:` section of params.yaml: the data items, the method for each, and all mistakes."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from outlast.node.sandbox.layout import COMMITTED, TRAVEL
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
_PIN = "`outlast data pin` adds a digest"
#: Names that Outlast uses in a job's directory.
_RESERVED = ("order.json", TRAVEL, COMMITTED, "arrived")
#: The number of hexadecimal digits of a digest.
_DIGITS = {"sha256": 64, "sha1": 40, "md5": 32, "crc32c": 8, "crc32": 8, "adler32": 8}


@dataclass
class DataFound:
    """The result of reading `data:`. `items` and `methods` have equal length; invalid entries are missing."""

    items: list[DataItem] = field(default_factory=list)
    methods: list[DataMethod] = field(default_factory=list)
    mistakes: list[Mistake] = field(default_factory=list)
    warnings: list[Mistake] = field(default_factory=list)


def read_data(
    document: Document, entries: Sequence[DataKeys], directory: Path, scheduler: str, disk: int
) -> DataFound:
    """Read all entries. `scheduler` is empty if another mistake hides it; `disk` is in bytes."""
    found = DataFound()
    reader = _DataReader(document, directory, scheduler, found)
    for index, keys in enumerate(entries):
        reader.read_entry(index, keys)
    reader.check_collisions()
    pinned = sum((item.size or 0) * copies_on_disk(item) for item in found.items)
    if pinned > disk:
        text = f"{show_size(pinned)} do not fit into resources.disk, {show_size(disk)}"
        found.warnings.append(document.mistake(("data",), text, "request more disk"))
    return found


def needs_disk(item: DataItem) -> bool:
    """Return True if the item takes space on the node; data that is read in place does not."""
    return copies_on_disk(item) > 0


def copies_on_disk(item: DataItem) -> int:
    """Return how often the item is on the node's disk: in the cache, and as a copy that may be changed."""
    return (not (item.method == "shared" and item.unpack == "no")) + item.writable


class _DataReader:
    def __init__(self, document: Document, directory: Path, scheduler: str, found: DataFound) -> None:
        self._document = document
        self._directory = directory
        self._scheduler = scheduler
        self._found = found
        #: Valid items with the index of their entry.
        self._valid: list[tuple[int, DataItem]] = []
        #: The entry's index by the file name that HTCondor gives it in a job's directory.
        self._native_names: dict[str, int] = {}

    def read_entry(self, index: int, keys: DataKeys) -> None:
        at: Path_ = ("data", index)
        before = len(self._found.mistakes)
        node = self._document.find(at)
        if isinstance(node, Mapping) and "url" not in node.entries:
            self._mistake(at, "url is missing", _EXAMPLE)
        if "url" not in keys.model_fields_set or not all(keys.url):
            return  # invalid, and already reported
        if not keys.url:
            self._mistake((*at, "url"), "is an empty list", _EXAMPLE)
        for number, url in enumerate(keys.url):
            text, hint = urls.mistake_in(url)
            if text:
                self._mistake(self._url_path(index, number), text, hint)
        digests = dict(self._digests(at, keys))
        to = self._target(at, keys)
        if len(self._found.mistakes) > before:
            return
        item = DataItem(
            tuple(urls.absolute_url(url, self._directory) for url in keys.url),
            digests,
            keys.size if "size" in keys.model_fields_set else None,
            keys.unpack,
            to,
            keys.method,
            keys.writable == "yes",
        )
        self._warnings(index, item)
        if self._scheduler:
            self._choose_method(index, item)
        self._valid.append((index, item))

    def _url_path(self, index: int, number: int) -> Path_:
        """Return the path of a URL as written: the entry itself, its `url:`, or an item of that list."""
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
                # Pydantic reports this only for keys that have a type.
                self._mistake((*at, name), "has no value", "write one, or remove the line")
                continue
            try:
                yield name, normalise_digest(name, written)
            except ValueError:
                text = f'"{shorten(written, 70)}" is not a {name} digest ({len(written)} characters)'
                hint = f"write {_DIGITS[name]} hexadecimal digits, or the same bits as base64"
                self._mistake((*at, name), text, hint)

    def _target(self, at: Path_, keys: DataKeys) -> str:
        to = posixpath.normpath(keys.to) if keys.to else ""
        if to in ("", "."):
            return ""
        wrong = code_files.relative_path_mistake(keys.to)
        if wrong:
            wrong = wrong.replace("the experiment directory", "the data directory")
            self._mistake((*at, "to"), f'"{shorten(keys.to)}" {wrong}', "it starts from $OUTLAST_DATA_DIR")
        return to

    def _choose_method(self, index: int, item: DataItem) -> None:
        try:
            chosen = data_methods.choose(item.urls, item.method, self._scheduler)
        except NoDataMethod as error:
            written = self._document.find(("data", index, "method")) is not None
            path: Path_ = ("data", index, "method") if written else self._url_path(index, 0)
            # The message begins with the path, which names `method` already.
            self._mistake(path, error.text.removeprefix("method: ") if written else error.text, error.hint)
            return
        if self._scheduler in data_methods.SHARING or chosen.method == "native":
            self._missing_files(index, item, chosen.method)
        if chosen.method == "native" and len(item.urls) > 1:
            text = "HTCondor's file transfer takes one URL: the other mirrors are not used"
            self._warn(self._url_path(index, 1), text, "write method: auto to use them")
        if chosen.method == "native":
            self._check_native_name(index, item.name)
        self._found.items.append(replace(item, method=chosen.method))
        self._found.methods.append(chosen)

    def _check_native_name(self, index: int, name: str) -> None:
        """Check that the name is free: HTCondor puts all files into one directory, whatever `to` is."""
        if name in self._native_names:
            first = self._document.line(("data", self._native_names[name]))
            text = f"HTCondor would put {name} in the same place as the entry in line {first}"
            self._mistake(("data", index), text, "give one of them another name")
        elif name in _RESERVED:
            text = f"HTCondor would transfer it as {name}, a name that Outlast uses in every job"
            self._mistake(("data", index), text, "give it another name")
        self._native_names.setdefault(name, index)

    def _missing_files(self, index: int, item: DataItem, method: str) -> None:
        for number, url in enumerate(item.urls):
            if urls.kind_of(url) != "file":
                continue
            path, at = Path(path_of(url)), self._url_path(index, number)
            text, hint = _file_mistake(path, item, method)
            if text:
                self._mistake(at, text, hint)
            elif path.is_dir():
                continue  # a folder on a shared file system is used in place
            elif item.size is not None and path.stat().st_size != item.size:
                text = f"has {path.stat().st_size:,} bytes, but size is {item.size:,}"
                self._mistake(at, text, "remove the digests and the size, then run `outlast data pin`")

    def _warnings(self, index: int, item: DataItem) -> None:
        if item.digests:
            return
        at = self._url_path(index, 0)
        if any(urls.scheme_of(url) == "http" for url in item.urls):
            self._warn(at, "http without a digest: anybody on the network path can replace the data", _PIN)
            return
        checked = "the file is not verified" if item.size is None else "only the size is verified"
        unless = "" if urls.kind_of(item.urls[0]) == "file" else ", unless the server sends a checksum"
        self._warn(at, f"no digest: {checked}{unless}", _PIN)

    def check_collisions(self) -> None:
        """Report entries with the same target."""
        taken: dict[str, int] = {}
        for index, item in self._valid:
            path = posixpath.join(item.to, item.name)
            if item.unpack != "no":
                # Several archives may be unpacked into one folder, but the same one twice is a mistake.
                path = "\0".join((item.to, *item.urls))
            if path in taken:
                first = self._document.line(("data", taken[path]))
                what = f"is stored as {path}" if item.unpack == "no" else "unpacks the same archive"
                text = f"{what}, like the entry in line {first}"
                self._mistake(("data", index), text, "give one of them another to:")
            taken.setdefault(path, index)

    def _mistake(self, path: Path_, text: str, hint: str = "") -> None:
        self._found.mistakes.append(self._document.mistake(path, text, hint))

    def _warn(self, path: Path_, text: str, hint: str = "") -> None:
        self._found.warnings.append(self._document.mistake(path, text, hint))


def _file_mistake(path: Path, item: DataItem, method: str) -> tuple[str, str]:
    try:
        if not path.exists():
            near = did_you_mean(path.name, _names(path.parent))
            variable = "variables such as $SCRATCH are not expanded here" if "$" in str(path) else ""
            return f"{path} does not exist", variable or near or "a relative path starts from params.yaml"
        if path.is_dir():
            return _folder_mistake(path, item, method)
        if not path.is_file():
            return f"{path} is not a file", ""
    except (OSError, ValueError) as error:
        return f"{path} cannot be accessed: {getattr(error, 'strerror', None) or error}", ""
    return ("", "") if os.access(path, os.R_OK) else (f"{path} cannot be read", f"chmod u+r {path}")


def _folder_mistake(path: Path, item: DataItem, method: str) -> tuple[str, str]:
    """Return the mistake and a hint for a folder, which is valid only if it is used in place."""
    if method != "shared":
        return f"{path} is a folder", "pack it into a tar and write unpack: yes"
    if item.unpack != "no":
        return f"{path} is a folder: there is nothing to unpack", "remove unpack:"
    if item.digests or item.size is not None:
        return f"{path} is a folder, which has neither digest nor size", "remove them, or pack it into a tar"
    return "", ""


def _names(folder: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in folder.iterdir())
    except OSError:
        # Then there is no suggestion.
        return []
