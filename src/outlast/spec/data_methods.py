"""The choice of the method that brings an entry of `data:` into a job, and the reason for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outlast.spec.mistakes import one_of
from outlast.spec.urls import KINDS, kind_of

#: Schedulers whose jobs share a file system with the machine that submits them.
SHARING = ("local", "slurm", "sge")
_NAMES = {"local": "the local cluster", "slurm": "Slurm", "sge": "Grid Engine", "htcondor": "HTCondor"}

_BY_URL = {
    "http": "the node program fetches it over HTTP",
    "osdf": "the node program fetches it from the caches of the data federation",
}
_REQUESTED = "set by `method:`"
_TRANSFERRED = "HTCondor transfers the file to every job: its nodes do not see this machine's files"
_PLUGIN = "HTCondor fetches it with Outlast's plugin before the job starts; the job needs no network"


@dataclass(frozen=True)
class DataMethod:
    """The chosen method (http, osdf, native or shared) and the reason, for people."""

    method: str
    why: str


class NoDataMethod(ValueError):
    """No method can bring the data: the message and a hint."""

    def __init__(self, text: str, hint: str) -> None:
        super().__init__(text)
        self.text = text
        self.hint = hint


def choose(urls: Sequence[str], method: str, scheduler: str) -> DataMethod:
    """Return the method for an entry with these URLs and this `method:`. Raises NoDataMethod."""
    kinds = list(dict.fromkeys(map(kind_of, urls)))
    shares, name = scheduler in SHARING, _NAMES[scheduler]
    if "file" in kinds and len(kinds) > 1 and not shares:
        raise NoDataMethod(
            f"a file on this machine cannot be a mirror of a URL: {name}'s jobs do not see it",
            "keep one of the two",
        )
    remote = [kind for kind in kinds if kind != "file"]
    if method == "native":
        return _native(remote, shares, name)
    if method == "shared":
        if remote:
            raise NoDataMethod("method: shared is for files, and this is a URL", "write method: auto")
        return DataMethod("shared", f"it is read in place: {_why_visible(shares, name)}")
    if method in _BY_URL:
        if method not in remote or len(remote) > 1:
            raise NoDataMethod(
                f"method: {method} is for {one_of(KINDS[method])} URLs, and this is not one",
                "write method: auto",
            )
        return DataMethod(method, _REQUESTED)
    if remote:
        return DataMethod(remote[0], _BY_URL[remote[0]])
    if shares:
        return DataMethod("shared", f"it is read in place: {_why_visible(shares, name)}")
    return DataMethod("native", _TRANSFERRED)


def _native(remote: Sequence[str], shares: bool, name: str) -> DataMethod:
    if not shares:
        return DataMethod("native", _PLUGIN if remote else _TRANSFERRED)
    if remote:
        raise NoDataMethod(
            f"method: native is for HTCondor: {name} has no file transfer that could fetch a URL",
            "write method: auto",
        )
    return DataMethod("shared", f"{name} needs no file transfer: {_why_visible(shares, name)}")


def _why_visible(shares: bool, name: str) -> str:
    return (
        f"jobs of {name} see this machine's files"
        if shares
        else "`method: shared` states that the nodes see it"
    )
