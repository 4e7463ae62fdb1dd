"""Named hosts with cpus and gpus, and which of them a job gets."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Host:
    """What one host offers. Several may live on one machine, to rehearse a cluster of them."""

    cpus: int
    gpus: int = 0


_GONE = Host(cpus=0)


@dataclass(frozen=True)
class Need:
    """What decides where a job fits; jobs with equal needs wait in one line."""

    cpus: int
    gpus: int
    avoid: frozenset[str]


def this_machine() -> dict[str, Host]:
    gpus = sum(1 for _ in Path("/dev").glob("nvidia[0-9]*"))
    return {os.uname().nodename: Host(cpus=os.cpu_count() or 1, gpus=gpus)}


def hosts_to_json(hosts: Mapping[str, Host]) -> dict[str, Any]:
    return {name: {"cpus": host.cpus, "gpus": host.gpus} for name, host in hosts.items()}


def hosts_from_json(raw: Any) -> dict[str, Host]:
    if not isinstance(raw, dict) or not raw:
        raise ValueError("hosts must be a table of at least one host")
    hosts = {}
    for name, offer in raw.items():
        cpus, gpus = (offer.get("cpus"), offer.get("gpus", 0)) if isinstance(offer, dict) else (None, None)
        if type(cpus) is not int or type(gpus) is not int or cpus < 1 or gpus < 0:
            raise ValueError("host %r must have cpus (1 or more) and gpus (0 or more)" % name)
        hosts[name] = Host(cpus, gpus)
    return hosts


class Slots:
    """What is free where. Jobs go to the hosts in turn, so that each host sees some of them."""

    def __init__(self, hosts: Mapping[str, Host]) -> None:
        self.hosts = dict(hosts)
        self._cpus_taken: dict[str, int] = {}
        self._gpus_taken: dict[str, set[int]] = {}
        self._turn = list(self.hosts)

    def configure(self, hosts: Mapping[str, Host]) -> None:
        """Take the newest description. What runs keeps what it holds, even on a host that went."""
        self.hosts = dict(hosts)
        self._turn = list(self.hosts)

    def could_ever_hold(self, need: Need) -> list[str]:
        return [
            name
            for name, host in self.hosts.items()
            if name not in need.avoid and host.cpus >= need.cpus and host.gpus >= need.gpus
        ]

    def why_never(self, need: Need) -> str:
        """Why no host could ever hold this, as a sentence; empty if one could."""
        if self.could_ever_hold(need):
            return ""
        offers = ", ".join(
            "%s (%d cpus, %d gpus%s)"
            % (name, host.cpus, host.gpus, ", avoided" if name in need.avoid else "")
            for name, host in self.hosts.items()
        )
        return "no host can ever give %d cpus and %d gpus: %s" % (need.cpus, need.gpus, offers)

    def usage(self) -> dict[str, dict[str, int]]:
        """What each host offers and what of it is taken, also on a host that went while jobs run there."""
        names = [
            *self.hosts,
            *(name for name, cpus in self._cpus_taken.items() if cpus and name not in self.hosts),
        ]
        return {
            name: {
                "cpus": self.hosts.get(name, _GONE).cpus,
                "gpus": self.hosts.get(name, _GONE).gpus,
                "cpus_taken": self._cpus_taken.get(name, 0),
                "gpus_taken": len(self._gpus_taken.get(name, ())),
            }
            for name in names
        }

    @property
    def any_free(self) -> bool:
        return any(self._free_cpus(name) > 0 for name in self.hosts)

    def _free_cpus(self, name: str) -> int:
        return self.hosts[name].cpus - self._cpus_taken.get(name, 0)

    def find(self, need: Need, reserved: Iterable[str] = ()) -> str | None:
        """The next host in turn with room for this now, leaving out the reserved ones."""
        able = self.could_ever_hold(need)
        for name in self._turn:
            free_gpus = self.hosts[name].gpus - len(self._gpus_taken.get(name, ()))
            if (
                name in able
                and name not in reserved
                and self._free_cpus(name) >= need.cpus
                and free_gpus >= need.gpus
            ):
                return name
        return None

    def take(self, name: str, need: Need) -> tuple[int, ...]:
        """Take what is needed on a host; gives the numbers of the gpus."""
        taken = self._gpus_taken.setdefault(name, set())
        free = [number for number in range(self.hosts[name].gpus) if number not in taken]
        gpus = tuple(free[: need.gpus])
        self.hold(name, need.cpus, gpus)
        self._turn.remove(name)
        self._turn.append(name)
        return gpus

    def hold(self, name: str, cpus: int, gpus: Iterable[int]) -> None:
        """Book what a job already has."""
        self._cpus_taken[name] = self._cpus_taken.get(name, 0) + cpus
        self._gpus_taken.setdefault(name, set()).update(gpus)

    def give_back(self, name: str, cpus: int, gpus: Iterable[int]) -> None:
        self._cpus_taken[name] -= cpus
        self._gpus_taken[name].difference_update(gpus)
