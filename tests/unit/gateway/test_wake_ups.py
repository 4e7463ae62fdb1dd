"""The gateway's loop is woken by what does not come from the broker."""

from __future__ import annotations

import threading

from outlast.gateway.broker.link import BrokerLink
from outlast.gateway.settings import BrokerSettings, QueueSettings
from outlast.gateway.worker_threads import Worker

#: Seconds that only a failing test waits.
PATIENCE = 60.0


def test_a_wait_ends_when_the_link_is_woken_also_before_it_began() -> None:
    link = BrokerLink(BrokerSettings(), [QueueSettings("train")])
    link.wake()
    assert link.wait(PATIENCE)
    assert not link.wait(0.0), "it was woken once"
    waiter = threading.Thread(target=link.wait, args=(10 * PATIENCE,), daemon=True)
    waiter.start()
    link.wake()
    waiter.join(PATIENCE)
    assert not waiter.is_alive()


def test_a_worker_calls_when_there_is_a_result_to_fetch() -> None:
    ready = threading.Event()
    worker: Worker[str, int] = Worker("test", 1, ready.set)
    worker.start("one", lambda: 1)
    assert ready.wait(PATIENCE)
    assert worker.finished() == [("one", 1)]
    ready.clear()
    worker.start("two", lambda: 1 // 0)
    assert ready.wait(PATIENCE)
    ((key, error),) = worker.finished()
    assert key == "two" and isinstance(error, ZeroDivisionError)
