"""Hosts with cpus and gpus, and their allocation to jobs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Host:
    """The cpus and gpus of one host. One machine may have several virtual hosts, to rehearse a cluster."""

    cpus: int
    gpus: int = 0


_REMOVED = Host(cpus=0)


@dataclass(frozen=True)
class Need:
    """The resources that a job needs and the hosts it avoids. Jobs with equal needs share a queue."""

    cpus: int
    gpus: int
    avoid: frozenset[str]


def this_machine() -> dict[str, Host]:
    """Return this machine as the only host, under its own name."""
    gpus = sum(1 for _ in Path("/dev").glob("nvidia[0-9]*"))
    return {os.uname().nodename: Host(cpus=os.cpu_count() or 1, gpus=gpus)}


def hosts_to_json(hosts: Mapping[str, Host]) -> dict[str, Any]:
    return {name: {"cpus": host.cpus, "gpus": host.gpus} for name, host in hosts.items()}


def hosts_from_json(raw: Any) -> dict[str, Host]:
    """Return the hosts that `hosts_to_json` wrote. Raises ValueError."""
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
    """The free and used cpus and gpus of all hosts. Jobs are allocated round-robin."""

    def __init__(self, hosts: Mapping[str, Host]) -> None:
        self.hosts = dict(hosts)
        self._cpus_taken: dict[str, int] = {}
        self._gpus_taken: dict[str, set[int]] = {}
        self._rotation = list(self.hosts)

    def configure(self, hosts: Mapping[str, Host]) -> None:
        """Set the hosts. Running jobs keep their cpus and gpus, even on a host that was removed."""
        self.hosts = dict(hosts)
        self._rotation = list(self.hosts)

    def hosts_that_fit(self, need: Need) -> list[str]:
        """Return the hosts that could run such a job if they were empty."""
        return [
            name
            for name, host in self.hosts.items()
            if name not in need.avoid and host.cpus >= need.cpus and host.gpus >= need.gpus
        ]

    def why_impossible(self, need: Need) -> str:
        """Return why no host could ever run such a job; an empty text if one could."""
        if self.hosts_that_fit(need):
            return ""
        offers = ", ".join(
            "%s (%d cpus, %d gpus%s)"
            % (name, host.cpus, host.gpus, ", avoided" if name in need.avoid else "")
            for name, host in self.hosts.items()
        )
        return "no host has %d cpus and %d gpus for this job: %s" % (need.cpus, need.gpus, offers)

    def usage(self) -> dict[str, dict[str, int]]:
        """Return the total and used resources of each host, including removed hosts that still run jobs."""
        names = [
            *self.hosts,
            *(name for name, cpus in self._cpus_taken.items() if cpus and name not in self.hosts),
        ]
        return {
            name: {
                "cpus": self.hosts.get(name, _REMOVED).cpus,
                "gpus": self.hosts.get(name, _REMOVED).gpus,
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
        """Return the next host that has room now and is not reserved; None if there is none."""
        fitting = self.hosts_that_fit(need)
        for name in self._rotation:
            free_gpus = self.hosts[name].gpus - len(self._gpus_taken.get(name, ()))
            if (
                name in fitting
                and name not in reserved
                and self._free_cpus(name) >= need.cpus
                and free_gpus >= need.gpus
            ):
                return name
        return None

    def allocate(self, name: str, need: Need) -> tuple[int, ...]:
        """Allocate resources on a host and return the numbers of the gpus."""
        taken = self._gpus_taken.setdefault(name, set())
        free = [number for number in range(self.hosts[name].gpus) if number not in taken]
        gpus = tuple(free[: need.gpus])
        self.mark_used(name, need.cpus, gpus)
        self._rotation.remove(name)
        self._rotation.append(name)
        return gpus

    def mark_used(self, name: str, cpus: int, gpus: Iterable[int]) -> None:
        """Mark the resources that a running job has as used."""
        self._cpus_taken[name] = self._cpus_taken.get(name, 0) + cpus
        self._gpus_taken.setdefault(name, set()).update(gpus)

    def release(self, name: str, cpus: int, gpus: Iterable[int]) -> None:
        self._cpus_taken[name] -= cpus
        self._gpus_taken[name].difference_update(gpus)
