"""The application's side of the broker: sends requests until they are confirmed, and takes all answers."""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Sequence

from outlast.errors import OutlastError
from outlast.gateway.broker.broker_credentials import BrokerCredentials
from outlast.gateway.broker.client_link import BrokerClientLink
from outlast.gateway.requester.client_answer import Answer, BadAnswer, read_answer
from outlast.gateway.requester.client_request import ClientRequest
from outlast.gateway.requester.requester import LinkLost, LinkRefused
from outlast.gateway.requests import OutgoingMessage, PublishResult
from outlast.gateway.settings import BrokerSettings

#: Seconds for a connection and for a confirm, between two connections, and for which it listens at a time.
_PATIENCE, _PAUSE, _LISTENING = 10.0, 0.5, 0.2
_STOPPING = 30.0


class RequestSender:
    """Sends and takes messages in a thread, from `with` to its end; it connects again when it must."""

    def __init__(self, port: int, user: str, password: str, requests: str, answers: str) -> None:
        self._settings = BrokerSettings(host="127.0.0.1", port=port, heartbeat=5, connect_timeout=5.0)
        self._credentials = BrokerCredentials(user, password)
        self._queue = requests
        self._answers_queue = answers
        self._outgoing: deque[OutgoingMessage] = deque()
        self._found: dict[str, list[Answer]] = defaultdict(list)
        self._stop = threading.Event()
        self._trouble = ""
        self._thread = threading.Thread(target=self._run, name="sender", daemon=True)

    def __enter__(self) -> RequestSender:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(_STOPPING)

    def send(self, id: str, body: bytes, *, wants_answer: bool = True) -> None:
        """Send a message under this id, at once or as soon as there is a broker."""
        self._outgoing.append(
            OutgoingMessage(
                number=1,
                exchange="",
                routing_key=self._queue,
                body=body,
                correlation_id=id.encode(),
                message_id=id,
                reply_to=self._answers_queue if wants_answer else "",
                user_id=self._credentials.user,
            )
        )

    @property
    def all_sent(self) -> bool:
        """True if the broker has confirmed every message. Raise OutlastError if it refuses them."""
        if self._trouble:
            raise OutlastError(self._trouble)
        return not self._outgoing

    def answers(self, id: str) -> Sequence[Answer]:
        """Return the answers to this request, in the order in which they came."""
        return tuple(self._found.get(id, ()))

    def _run(self) -> None:
        wanted = ClientRequest(b"demo", b"", self._queue, self._answers_queue, own_reply_queue=False)
        while not self._stop.is_set() and not self._trouble:
            link = BrokerClientLink(self._settings, self._credentials)
            try:
                link.open(wanted, _PATIENCE)
                while not self._stop.is_set():
                    self._exchange(link)
            except LinkLost:
                self._stop.wait(_PAUSE)  # the broker is down, and comes back
            except (LinkRefused, BadAnswer) as error:
                self._trouble = str(error)
            finally:
                link.close()

    def _exchange(self, link: BrokerClientLink) -> None:
        if self._outgoing:
            # Sent again until it is confirmed: the gateway takes it for the same request.
            outcome = link.publish(self._outgoing[0], _PATIENCE)
            if outcome.result is PublishResult.CONFIRMED:
                self._outgoing.popleft()
            else:
                raise LinkLost(outcome.reason)
        received = link.receive(_LISTENING)
        if received is not None:
            id = (received.correlation_id or b"").decode("utf-8", "replace")
            self._found[id].append(read_answer(received.body))
            link.acknowledge()
