"""Rodan's side of the queues: sends a job and waits for its reply, exactly as its runs do.

Each run has a connection of its own. It declares both queues with defaults, consumes the shared reply queue
without a prefetch limit, and puts every reply that is not its own back into the queue. Rodan waits for ever;
here every wait ends.
"""

from __future__ import annotations

import base64
import json
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pika

JOBS, RESULTS = "hpc-jobs", "hpc-results"

#: As Rodan's form has them.
SETTINGS: Mapping[str, str | int] = {
    "Maximum number of training epochs": 15,
    "Maximum number of samples per label": 10000,
    "Patch height": 256,
    "Patch width": 256,
    "Maximum time (D-HH:MM)": "0-06:00",
    "Maximum memory (MB)": 257000,
    "CPUs": 6,
    "Slurm Notification Email": "",
}


class RodanRunFailed(Exception):
    """The run fails visibly: the reply is an error, lacks a model, or did not come."""


@dataclass
class RodanRun:
    """One run. `models` are its outputs after `wait`; `put_back` counts the replies of others that it saw."""

    inputs: Mapping[str, str]
    settings: Mapping[str, str | int] = field(default_factory=lambda: dict(SETTINGS))
    correlation_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    models: dict[str, bytes] = field(default_factory=dict)
    put_back: int = 0
    #: Pause in seconds before a reply is put back. Rodan has none, and spins if nobody else takes it.
    pause: float = 0.0

    @property
    def outputs(self) -> list[str]:
        """The models that Rodan expects: one for each layer, and the background's."""
        layers = [name for name in self.inputs if name.startswith("rgba PNG - Layer ")]
        return ["Background Model", *("Model %d" % number for number in range(len(layers)))]

    def perform(self, parameters: pika.ConnectionParameters, timeout: float) -> None:
        """Send the job, wait for its reply and decode it. Raise RodanRunFailed, or pika's exceptions."""
        connection = pika.BlockingConnection(parameters)
        try:
            channel = connection.channel()
            channel.confirm_delivery()
            channel.queue_declare(JOBS)
            channel.queue_declare(RESULTS)
            channel.basic_publish(
                "",
                JOBS,
                json.dumps({"inputs": dict(self.inputs), "settings": dict(self.settings)}).encode(),
                pika.BasicProperties(reply_to=RESULTS, correlation_id=self.correlation_id),
            )
            reply = self._await_reply(connection, channel, timeout)
        finally:
            if connection.is_open:
                connection.close()
        self._decode(reply)

    def _await_reply(self, connection: Any, channel: Any, timeout: float) -> Mapping[str, str]:
        found: list[bytes] = []

        def on_reply(channel: Any, method: Any, properties: Any, body: bytes) -> None:
            if properties.correlation_id == self.correlation_id and not found:
                found.append(body)
                channel.basic_ack(method.delivery_tag)
                return
            self.put_back += 1
            if self.pause:
                connection.sleep(self.pause)
            channel.basic_nack(method.delivery_tag)

        channel.basic_consume(RESULTS, on_reply)
        deadline = time.monotonic() + timeout
        while not found:
            if time.monotonic() >= deadline:
                raise RodanRunFailed("no reply to %s within %g s" % (self.correlation_id, timeout))
            connection.process_data_events(min(1.0, timeout))
            if not channel.is_open:
                raise RodanRunFailed("the channel was closed")
        reply: Mapping[str, str] = json.loads(found[0])
        return reply

    def _decode(self, reply: Mapping[str, str]) -> None:
        if "error" in reply:
            raise RodanRunFailed("The request to Cedar failed with response: %s" % reply["error"])
        for name in self.outputs:
            if name not in reply:
                raise RodanRunFailed("the reply has no %s" % name)
            self.models[name] = base64.decodebytes(reply[name].encode("utf-8"))


def perform_together(
    runs: Sequence[RodanRun],
    parameters: Callable[[], pika.ConnectionParameters],
    timeout: float,
) -> list[Exception | None]:
    """Perform runs at once, each in a thread of its own; return how each failed, or None."""
    failures: list[Exception | None] = [TimeoutError("the thread of the run did not end")] * len(runs)

    def perform(number: int) -> None:
        try:
            runs[number].perform(parameters(), timeout)
        except Exception as error:
            failures[number] = error
        else:
            failures[number] = None

    threads = [threading.Thread(target=perform, args=(number,), daemon=True) for number in range(len(runs))]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + timeout + 30
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return failures
