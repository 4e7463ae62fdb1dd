"""Which servers of a federation are asked for an object, in which order; when the director is asked again."""

from __future__ import annotations

import threading
import time
from typing import Callable, Protocol

from outlast.node.staging.sources.pelican_responses import Directions

#: Caches that are tried before the origin, as many as Pelican's own client tries.
CACHES = 3
#: Seconds that an answer of the director's is good for.
FRESH = 300.0


class DirectorClient(Protocol):
    """Both raise Trouble."""

    def caches(self) -> Directions: ...

    def origins(self) -> Directions: ...


class Route:
    """Choice 0 … CACHES - 1 is a cache as long as there are so many, every later one an origin.

    A choice stays with its server while the director names it: what was held against the one is not held
    against the other. The director is asked again when its answer is old, or all that it named have failed.
    """

    def __init__(self, director: DirectorClient, clock: Callable[[], float] = time.monotonic) -> None:
        self._director = director
        self._clock = clock
        self._lock = threading.Lock()
        self._caches: _DirectorAnswer | None = None
        self._origins: _DirectorAnswer | None = None
        self._held: dict[int, str] = {}

    def server(self, choice: int) -> ObjectServer:
        """Raises Trouble."""
        with self._lock:
            if choice < CACHES:
                self._caches = self._fresh(self._caches) or _DirectorAnswer(
                    self._director.caches(), self._clock()
                )
                found = self._take(choice, self._caches)
                if found is not None:
                    return found
            self._origins = self._fresh(self._origins) or _DirectorAnswer(
                self._director.origins(), self._clock()
            )
            found = self._take(choice, self._origins)
            # More choices than origins: the best one has more than one of them.
            return found or ObjectServer(self._origins.said.servers[0], self._origins.said.needs_token)

    def failed(self, server: ObjectServer) -> None:
        with self._lock:
            for answer in (self._caches, self._origins):
                if answer is not None:
                    answer.failed.add(server.url)

    def _fresh(self, answer: _DirectorAnswer | None) -> _DirectorAnswer | None:
        if (
            answer is None
            or self._clock() - answer.when > FRESH
            or answer.failed.issuperset(answer.said.servers)
        ):
            return None
        return answer

    def _take(self, choice: int, answer: _DirectorAnswer) -> ObjectServer | None:
        servers = answer.said.servers
        if self._held.get(choice) not in servers:
            others = [url for holder, url in self._held.items() if holder != choice]
            free: list[str] = [url for url in servers if url not in others]
            if not free:
                return None
            self._held[choice] = free[0]
        return ObjectServer(self._held[choice], answer.said.needs_token)


class ObjectServer:
    def __init__(self, url: str, needs_token: bool) -> None:
        self.url = url
        self.needs_token = needs_token


class _DirectorAnswer:
    def __init__(self, said: Directions, when: float) -> None:
        self.said = said
        self.when = when
        self.failed: set[str] = set()
