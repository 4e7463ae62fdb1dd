"""The order in which the servers of a federation are used, and when the director is queried again."""

from __future__ import annotations

import threading
import time
from typing import Callable, Protocol

from outlast.node.staging.sources.pelican_responses import Directions

#: Caches that are tried before the origin, as many as Pelican's own client tries.
CACHES = 3
#: Seconds after which a response of the director expires.
MAX_AGE = 300.0


class DirectorClient(Protocol):
    """Queries for the servers of one object. Both methods raise SourceError."""

    def caches(self) -> Directions: ...

    def origins(self) -> Directions: ...


class Route:
    """The servers of one object, by choice. Safe to use from several threads.

    Choices 0 … CACHES - 1 are caches as far as there are enough, all others are origins. A choice keeps its
    server while the director names it, so that errors of one server are not attributed to another. The
    director is queried again when its response has expired or all servers that it named have failed.
    """

    def __init__(self, director: DirectorClient, clock: Callable[[], float] = time.monotonic) -> None:
        self._director = director
        self._clock = clock
        self._lock = threading.Lock()
        self._caches: _ServerList | None = None
        self._origins: _ServerList | None = None
        self._assigned: dict[int, str] = {}

    def server(self, choice: int) -> ObjectServer:
        """Return the server of this choice; queries the director if necessary. Raises SourceError."""
        with self._lock:
            if choice < CACHES:
                self._caches = self._valid(self._caches) or _ServerList(
                    self._director.caches(), self._clock()
                )
                found = self._assign(choice, self._caches)
                if found is not None:
                    return found
            self._origins = self._valid(self._origins) or _ServerList(self._director.origins(), self._clock())
            found = self._assign(choice, self._origins)
            # With more choices than origins, several choices share the best origin.
            directions = self._origins.directions
            return found or ObjectServer(directions.servers[0], directions.needs_token)

    def mark_failed(self, server: ObjectServer) -> None:
        """Record an error of a server. It stays in use until all servers of the same response have failed."""
        with self._lock:
            for servers in (self._caches, self._origins):
                if servers is not None:
                    servers.failed.add(server.url)

    def _valid(self, servers: _ServerList | None) -> _ServerList | None:
        """Return the list, or None if the director must be queried again."""
        if (
            servers is None
            or self._clock() - servers.received_at > MAX_AGE
            or servers.failed.issuperset(servers.directions.servers)
        ):
            return None
        return servers

    def _assign(self, choice: int, servers: _ServerList) -> ObjectServer | None:
        """Return the server of this choice, newly assigned if necessary; None if all servers are assigned."""
        urls = servers.directions.servers
        if self._assigned.get(choice) not in urls:
            others = [url for other, url in self._assigned.items() if other != choice]
            free: list[str] = [url for url in urls if url not in others]
            if not free:
                return None
            self._assigned[choice] = free[0]
        return ObjectServer(self._assigned[choice], servers.directions.needs_token)


class ObjectServer:
    """A server that has the object."""

    def __init__(self, url: str, needs_token: bool) -> None:
        self.url = url
        self.needs_token = needs_token


class _ServerList:
    """A response of the director, and which of its servers have failed."""

    def __init__(self, directions: Directions, received_at: float) -> None:
        self.directions = directions
        self.received_at = received_at
        self.failed: set[str] = set()
