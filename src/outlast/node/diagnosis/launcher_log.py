"""What launchers (torchrun, accelerate, DeepSpeed, mpirun, srun, Lightning) log about the ranks that failed.

A launcher ends with an exit code, and often a traceback, of its own. What ended the training is the failure
of the first rank; the others then fail because they lost it, or are ended by the launcher.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass

from outlast.node.diagnosis.log_tracebacks import Traceback, strip_prefix

#: Signals by which launchers end the other ranks.
CLOSING_SIGNALS = (signal.SIGTERM, signal.SIGINT)

_LAUNCHER_ERRORS = ("ChildFailedError", "ProcessExitedException", "SignalException")
_SIGNAL_EXCEPTION = re.compile(r"got signal: (\d{1,9})")
_LOST_PEER_ERRORS = ("DistBackendError", "DistNetworkError", "DistStoreError", "SignalException")
_LOST_PEER = re.compile(
    r"Connection (?:closed|reset) by peer|connectFullMesh failed|remote process exited|ncclRemoteError"
    r"|ncclSystemError|NCCL communicator was aborted|collective operation timeout|Application timeout caused"
    r"|Timed out waiting \d{1,9} ?ms|Broken pipe|failed to recv|unexpected(?:ly)? (?:closed|EOF)",
    re.IGNORECASE,
)

_ROOT = "Root Cause (first observed failure)"
_RANK = re.compile(r"^\s*rank\s*: (\d{1,9}) \(local_rank: (\d{1,9})\)")
_EXIT = re.compile(r"^\s*exitcode\s*: (-?\d{1,9}) \(pid: (\d{1,9})\)")
_RECORDED = re.compile(r"^(\s*)traceback : Traceback \(most recent call last\):")
_FORCED = re.compile(r"Unable to shutdown process (\d{1,9}) via")
#: Lightning, which then kills the first process, too.
_LIGHTNING = re.compile(
    r"(?:\[rank: (?P<rank>\d{1,9})\] )?"
    r"Child process with PID \d{1,9} terminated with code (?P<code>-?\d{1,9})\. Forcefully terminating"
)
_OTHERS = (
    # DeepSpeed
    re.compile(r"exits with return code = (?P<code>-?\d{1,9})"),
    # torch.multiprocessing.spawn
    re.compile(
        r"ProcessExitedException: process (?P<rank>\d{1,9}) terminated with exit code (?P<code>\d{1,9})"
    ),
    re.compile(r"ProcessExitedException: process (?P<rank>\d{1,9}) terminated with signal (?P<name>SIG\w+)"),
    # accelerate
    re.compile(r"CalledProcessError: .* returned non-zero exit status (?P<code>\d{1,9})\.$"),
    re.compile(r"CalledProcessError: .* died with <Signals\.(?P<name>SIG\w+): \d{1,9}>\.$"),
    # Open MPI
    re.compile(
        r"process rank (?P<rank>\d{1,9}) with PID \d{1,9} on node \S+ exited on signal (?P<signal>\d{1,9})"
    ),
    # MPICH
    re.compile(r"TERMINATED WITH THE EXIT STRING: .*\(signal (?P<signal>\d{1,9})\)"),
    # srun
    re.compile(
        r"^srun: error: \S+: tasks? (?P<rank>\d{1,9})[\d,-]*: Exited with exit code (?P<code>\d{1,9})"
    ),
    re.compile(
        r"^srun: error: \S+: tasks? (?P<rank>\d{1,9})[\d,-]*: (?P<words>[A-Z][A-Za-z ]{1,80}?)"
        r"(?: \(core dumped\))?$"
    ),
)
#: A launcher ends soon after it has logged the end of a rank: within this many lines.
_MAX_LINES = 200
_LOG_LINE = re.compile(r"\[?[DIWEF]\d{4} \d\d:\d\d:\d\d")
_MPI_RANK = re.compile(r"^\s*Process name: \[.+,(\d{1,9})\]")
_MPI_CODE = re.compile(r"^\s*Exit code:\s+(\d{1,9})")
#: The words of srun for the end of a task.
_WORDS = {
    **{signal.strsignal(number): number for number in range(1, 32)},
    "Out Of Memory": int(signal.SIGKILL),
}
_OUT_OF_MEMORY = re.compile(r"^(?:slurmstepd|srun): error: .*(?:oom[_-]kill|Out Of Memory)", re.IGNORECASE)


@dataclass(frozen=True)
class RankExit:
    """The end of a rank, as its launcher logged it; exactly one of code and signal is set."""

    code: int | None
    signal: int | None
    rank: int | None = None
    local_rank: int | None = None
    #: True if the launcher takes it for the cause: no other rank had failed before.
    is_root: bool = True
    #: True if the launcher itself killed it.
    forced: bool = False

    def __str__(self) -> str:
        return "the training" if self.rank is None else f"rank {self.rank} of the training"

    def is_of(self, traceback: Traceback) -> bool:
        """Return True if the traceback is in the stream of this rank."""
        return traceback.rank is not None and traceback.rank in (self.rank, self.local_rank)


def is_of_launcher(traceback: Traceback) -> bool:
    """Return True if a launcher raised this because a process of its had failed."""
    name = traceback.exception.rpartition(".")[2]
    if name == "CalledProcessError":
        return any("/accelerate/commands/" in frame.file for frame in traceback.frames)
    return name in _LAUNCHER_ERRORS


def is_lost_peer(traceback: Traceback) -> bool:
    """Return True if the error is likely to follow from the end of another rank."""
    if traceback.exception.rpartition(".")[2] in _LOST_PEER_ERRORS:
        return True
    return _LOST_PEER.search(f"{traceback.exception}: {traceback.message}") is not None


def has_memory_kill(lines: list[str]) -> bool:
    """Return True if Slurm logged that a process was killed for its memory."""
    return any(_OUT_OF_MEMORY.match(strip_prefix(line)) for line in lines)


def has_killed_itself(lines: list[str]) -> bool:
    """Return True if the launcher logged that it kills all processes, its own too."""
    return any(_LIGHTNING.search(line) for line in lines)


def is_log_line(line: str) -> bool:
    """Return True if torchrun logged this about its processes."""
    return _LOG_LINE.match(strip_prefix(line)) is not None


def parse_exits(lines: list[str], launchers: list[Traceback]) -> list[RankExit]:
    """Return the ends of ranks, those that the launcher takes for the cause first.

    `launchers` are the tracebacks of launchers in these lines.
    """
    texts = [strip_prefix(line) for line in lines]
    exits = [*_parse_report(texts), *_parse_lightning(lines), *_parse_other_launchers(texts, launchers)]
    return sorted(exits, key=lambda one: not one.is_root)


def recorded_tracebacks(lines: list[str]) -> list[str]:
    """Return the lines of the tracebacks in torchrun's report, as the ranks would have written them.

    With --redirects and `@record` they are in no other place of the log.
    """
    found: list[str] = []
    indent: int | None = None
    rank = ""
    for line in map(strip_prefix, lines):
        named = _RANK.match(line)
        begins = _RECORDED.match(line)
        if named:
            rank, indent = f"[rank{named.group(1)}]: ", None
        elif begins:
            indent = len(begins.group(1))
            found.append(rank + "Traceback (most recent call last):")
        elif line.startswith(("====", "----")):
            indent = None
        elif indent is not None:
            found.append(rank + line[indent:])
    return found


def _parse_report(texts: list[str]) -> list[RankExit]:
    """Return the ranks in torchrun's report; it names the cause last."""
    found: list[RankExit] = []
    forced = {one.group(1) for one in map(_FORCED.search, texts) if one}
    rank: int | None = None
    local_rank: int | None = None
    is_root = False
    for text in texts:
        named, ended = _RANK.match(text), _EXIT.match(text)
        if named:
            rank, local_rank = int(named.group(1)), int(named.group(2))
        elif ended:
            code, pid = int(ended.group(1)), ended.group(2)
            found.append(_rank_exit(code, rank, local_rank, is_root, pid in forced))
        elif text.startswith(_ROOT):
            is_root = True
        elif text.startswith("===="):
            is_root = False
    return found


def _parse_lightning(lines: list[str]) -> list[RankExit]:
    return [
        _rank_exit(int(one.group("code")), int(one.group("rank")) if one.group("rank") else None)
        for one in map(_LIGHTNING.search, lines)
        if one
    ]


def _parse_other_launchers(texts: list[str], launchers: list[Traceback]) -> list[RankExit]:
    found: list[RankExit] = []
    raised = {one.last for one in launchers}
    mpi_rank: int | None = None
    # An end that the training survived is further above.
    last = max(0, len(texts) - _MAX_LINES)
    for number, text in enumerate(texts[last:], last):
        if "CalledProcessError: " in text and number not in raised:
            continue  # raised by the training itself
        got = _SIGNAL_EXCEPTION.search(text) if number in raised else None
        if got:
            found.append(_rank_exit(-int(got.group(1))))
        named, coded = _MPI_RANK.match(text), _MPI_CODE.match(text)
        if named:
            mpi_rank = int(named.group(1))
        elif coded and mpi_rank is not None:
            found.append(_rank_exit(int(coded.group(1)), mpi_rank))
        for pattern in _OTHERS:
            match = pattern.search(text)
            code = _code_in(match.groupdict()) if match else None
            if match and code is not None:
                rank = match.groupdict().get("rank")
                found.append(_rank_exit(code, int(rank) if rank else None))
                break
    return found


def _code_in(groups: dict[str, str | None]) -> int | None:
    """Return the exit code, negative for a signal, or None if the words are unknown."""
    if groups.get("code"):
        return int(groups["code"] or 0) or None
    if groups.get("signal"):
        return -int(groups["signal"] or 0)
    if groups.get("name"):
        return -int(getattr(signal, groups["name"] or "", 0)) or None
    return -_WORDS.get(groups.get("words") or "", 0) or None


def _rank_exit(
    code: int,
    rank: int | None = None,
    local_rank: int | None = None,
    is_root: bool = True,
    forced: bool = False,
) -> RankExit:
    number = -code if code < 0 else None
    return RankExit(None if number else code, number, rank, local_rank, is_root, forced)
