"""The number of processes that the kernel has killed in this job's control group for lack of memory."""

from __future__ import annotations


def oom_kills(root: str = "/sys/fs/cgroup", own: str = "/proc/self/cgroup") -> int | None:
    """Return the kernel's counter, or None if unknown. Only an increase during the training is meaningful."""
    for path in _counters(root, own):
        try:
            with open(path, encoding="ascii", errors="replace") as file:
                for line in file:
                    name, _, value = line.partition(" ")
                    if name == "oom_kill":
                        return int(value)
        except (OSError, ValueError):
            continue  # another version of control groups, or not visible in a container
    return None


def _counters(root: str, own: str) -> list[str]:
    """Return the paths at which the counter may be, for both versions of control groups."""
    try:
        with open(own, encoding="utf-8", errors="replace") as file:
            lines = file.read().splitlines()
    except OSError:
        return []
    paths = []
    for line in lines:
        _, controllers, group = [*line.split(":", 2), "", ""][:3]
        group = group.strip("/")
        if controllers == "":
            paths += [f"{root}/{group}/memory.events", f"{root}/memory.events"]
        elif "memory" in controllers.split(","):
            paths += [f"{root}/memory/{group}/memory.oom_control", f"{root}/memory/memory.oom_control"]
    return paths
