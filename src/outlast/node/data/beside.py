"""A call that may take its time, in a thread, while the caller stays able to hear and be heard."""

from __future__ import annotations

import threading
from typing import Callable, Generic, TypeVar

T = TypeVar("T")


class Beside(Generic[T]):
    """Who loses interest simply leaves it: the call is bounded, and so is its thread."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._value: T | None = None
        self._error: BaseException | None = None
        self._ended = threading.Event()
        threading.Thread(target=self._run, name="beside", daemon=True).start()

    def wait(self, seconds: float) -> bool:
        """Whether it has ended."""
        return self._ended.wait(seconds)

    def result(self) -> T:
        """Once it has ended; raises what the call raised."""
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]  # None only where T is

    def _run(self) -> None:
        try:
            self._value = self._call()
        except BaseException as error:  # `result` raises it
            self._error = error
        finally:
            self._ended.set()
