"""The way in: how an entry of `data:` gets into a job, and why that way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outlast.spec.mistakes import one_of
from outlast.spec.urls import KINDS, kind_of

#: Schedulers whose jobs see the files of the machine that submits them.
SHARING = ("local", "slurm", "sge")
_NAMES = {"local": "the local cluster", "slurm": "Slurm", "sge": "Grid Engine", "htcondor": "HTCondor"}

_BY_URL = {
    "http": "the node program fetches it, as its URL says",
    "osdf": "the node program fetches it from the federation's caches, as its URL says",
}
_ASKED = "as `method:` says"
_CARRIED = (
    "HTCondor's own transfer carries the file to every job, whose nodes do not see this machine's files"
)
_PLUGIN = "HTCondor fetches it with Outlast's plugin before the job starts, which needs no network of its own"


@dataclass(frozen=True)
class DataMethod:
    """`method` is http, osdf, native or shared."""

    method: str
    why: str


class NoDataMethod(ValueError):
    """There is none: a sentence, and what to do."""

    def __init__(self, text: str, hint: str) -> None:
        super().__init__(text)
        self.text = text
        self.hint = hint


def choose(urls: Sequence[str], method: str, scheduler: str) -> DataMethod:
    """Raises NoWay."""
    kinds = list(dict.fromkeys(map(kind_of, urls)))
    shares, name = scheduler in SHARING, _NAMES[scheduler]
    if "file" in kinds and len(kinds) > 1 and not shares:
        raise NoDataMethod(
            f"a file of this machine is no mirror of a URL: {name}'s jobs do not see it",
            "keep one of the two",
        )
    remote = [kind for kind in kinds if kind != "file"]
    if method == "native":
        return _native(remote, shares, name)
    if method == "shared":
        if remote:
            raise NoDataMethod("method: shared is for files, and this is a URL", "write method: auto")
        return DataMethod("shared", f"it is read where it lies: {_seen(shares, name)}")
    if method in _BY_URL:
        if method not in remote or len(remote) > 1:
            raise NoDataMethod(
                f"method: {method} is for {one_of(KINDS[method])} URLs, and this is none",
                "write method: auto",
            )
        return DataMethod(method, _ASKED)
    if remote:
        return DataMethod(remote[0], _BY_URL[remote[0]])
    if shares:
        return DataMethod("shared", f"it is read where it lies: {_seen(shares, name)}")
    return DataMethod("native", _CARRIED)


def _native(remote: Sequence[str], shares: bool, name: str) -> DataMethod:
    if not shares:
        return DataMethod("native", _PLUGIN if remote else _CARRIED)
    if remote:
        raise NoDataMethod(
            f"method: native is for HTCondor: {name} has no transfer of its own that could fetch a URL",
            "write method: auto",
        )
    return DataMethod("shared", f"{name} has no transfer of its own, and needs none: {_seen(shares, name)}")


def _seen(shares: bool, name: str) -> str:
    return f"jobs of {name} see this machine's files" if shares else "you say that the nodes see it there"
