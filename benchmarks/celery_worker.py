"""A worker of Celery that trains as the gateway's jobs do, and sends its answer to a reply queue itself.

Started by `gateway_peers` as `celery -A celery_worker worker`. Places are in the environment.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

import pika
from celery import Celery
from pika import exceptions

#: Seconds between two tries to send an answer, and for all of them.
PAUSE, PATIENCE = 0.5, 120.0

app = Celery("celery_worker", broker=os.environ.get("BENCH_BROKER", ""))
app.conf.update(
    # Acknowledged after the task; a task whose worker process dies is given back.
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
    # A broker that is away is waited for without an end.
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
    broker_connection_timeout=5,
    broker_heartbeat=5,
    task_ignore_result=True,
    worker_hijack_root_logger=False,
)


@app.task(name="train", bind=True)
def train(self: Any, number: int, seconds: float) -> None:
    """Write a line, take some time, and send the result."""
    line = "%d %s %s\n" % (number, self.request.id, self.request.id)
    starts = os.open(os.environ["BENCH_STARTS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(starts, line.encode())
    os.close(starts)
    time.sleep(seconds)
    _send(self.request.id, {"number": number, "square": number * number})


def _send(id: str, result: dict[str, int]) -> None:
    """Send the answer, again and again until the broker has confirmed it."""
    properties = pika.BasicProperties(correlation_id=id, delivery_mode=2)
    until = time.monotonic() + PATIENCE
    while True:
        try:
            connection = pika.BlockingConnection(pika.URLParameters(os.environ["BENCH_BROKER"]))
            channel = connection.channel()
            channel.confirm_delivery()
            channel.basic_publish(
                "", os.environ["BENCH_REPLIES"], json.dumps(result).encode(), properties, mandatory=True
            )
            connection.close()
            return
        except (exceptions.AMQPError, OSError):
            if time.monotonic() > until:
                raise
            time.sleep(PAUSE)
