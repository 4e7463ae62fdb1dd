"""A few threads for work that may take long; its results are fetched by the thread that started it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Result = TypeVar("Result")


class Worker(Generic[Key, Result]):
    """Runs functions in daemon threads: a process that ends does not wait for them."""

    def __init__(self, name: str, threads: int, on_finished: Callable[[], None] = lambda: None) -> None:
        """`on_finished` is called in a thread of the worker when there is a result to fetch."""
        self._on_finished = on_finished
        self._waiting: queue.SimpleQueue[tuple[Key, Callable[[], Result]]] = queue.SimpleQueue()
        self._finished: queue.SimpleQueue[tuple[Key, Result | BaseException]] = queue.SimpleQueue()
        self._under_way: set[Key] = set()
        for number in range(threads):
            threading.Thread(target=self._run, name="%s-%d" % (name, number), daemon=True).start()

    @property
    def busy(self) -> bool:
        """True while something was started and its result not fetched."""
        return bool(self._under_way)

    @property
    def waiting(self) -> int:
        """How many were started and their results not fetched."""
        return len(self._under_way)

    def has(self, key: Key) -> bool:
        """Return True if the work for this key was started and its result not fetched."""
        return key in self._under_way

    def start(self, key: Key, work: Callable[[], Result]) -> None:
        """Start the work for a key, unless it is under way."""
        if key not in self._under_way:
            self._under_way.add(key)
            self._waiting.put((key, work))

    def finished(self) -> list[tuple[Key, Result | BaseException]]:
        """Return the results since the last call: what each function returned, or raised."""
        found = []
        while not self._finished.empty():
            key, result = self._finished.get()
            self._under_way.discard(key)
            found.append((key, result))
        return found

    def _run(self) -> None:
        while True:
            key, work = self._waiting.get()
            try:
                result: Result | BaseException = work()
            except BaseException as error:  # handed to the thread that fetches it
                result = error
            self._finished.put((key, result))
            self._on_finished()
