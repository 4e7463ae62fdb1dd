"""One socket, with or without TLS. One thread reads from it; any thread may close it."""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading
import time

from outlast.node.staging.errors import ErrorKind, SourceError
from outlast.node.staging.http.tls import BadCertificates, context_for


class Connection:
    """A connection to `peer`, the host as it is named in errors.

    `close` wakes a thread that is reading, which then closes the descriptor itself.
    """

    def __init__(self, plain: socket.socket, peer: str, via_proxy: bool = False) -> None:
        self._socket = plain
        self._lock = threading.Lock()
        self._is_reading = False
        self._closed = False
        self._is_tls = False
        self._timeout = -1.0
        #: An error that followed bytes which were returned; raised by the next read.
        self._deferred_error: OSError | None = None
        self._poller = select.poll()
        self.peer = peer
        self.via_proxy = via_proxy

    @property
    def address(self) -> str:
        """The IP address at the other end; empty if the connection is broken."""
        try:
            return str(self._socket.getpeername()[0])
        except OSError:
            return ""

    def receive_into(self, buffer: memoryview, seconds: float) -> int:
        """Read at least one byte and return the count; 0 at the end of the connection.

        Raises OSError; socket.timeout after `seconds` without a byte.
        """
        with self._lock:
            if self._closed:
                raise ConnectionAbortedError("closed on this side")
            self._is_reading = True
        count = 0
        try:
            if self._is_tls:
                self._set_timeout(0.0)
                count = self._read_tls(buffer, seconds)
            else:
                self._set_timeout(seconds)
                count = self._socket.recv_into(buffer)
        except OSError:
            if not self._closed:
                raise
        finally:
            with self._lock:
                self._is_reading = False
                if self._closed:
                    self._socket.close()
        if self._closed:
            raise ConnectionAbortedError("closed on this side")
        return count

    def _read_tls(self, buffer: memoryview, seconds: float) -> int:
        """Read all TLS records that have arrived (16 KiB at most each): far cheaper than one per call.

        An error after the first record is raised by the next call, because these bytes are good.
        """
        if self._deferred_error is not None:
            error, self._deferred_error = self._deferred_error, None
            raise error
        filled, deadline = 0, 0.0
        while filled < len(buffer):
            try:
                count = self._socket.recv_into(buffer[filled:])
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as want:
                if filled:
                    break
                # Parts of a record can trickle in for ever; only a complete one resets the timeout.
                deadline = deadline or time.monotonic() + seconds
                self._wait_until_ready(isinstance(want, ssl.SSLWantReadError), deadline - time.monotonic())
                continue
            except OSError as broken:
                if not filled:
                    raise
                self._deferred_error = broken
                break
            if count == 0:
                break
            filled += count
        return filled

    def _wait_until_ready(self, for_reading: bool, seconds: float) -> None:
        self._poller.register(self._socket, select.POLLIN if for_reading else select.POLLOUT)
        if seconds <= 0 or not self._poller.poll(seconds * 1000):
            raise socket.timeout("timed out")

    def send(self, data: bytes, seconds: float) -> None:
        """Send all of `data`. Raises OSError."""
        self._set_timeout(seconds)
        self._socket.sendall(data)

    def _set_timeout(self, seconds: float) -> None:
        if seconds != self._timeout:  # it costs a system call
            self._socket.settimeout(seconds)
            self._timeout = seconds

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if not self._is_reading:
                self._socket.close()
                return
            # SSLSocket.shutdown would remove the TLS layer under the reader, which would then return
            # ciphertext as file content. If the connection has already ended, no reader needs waking.
            with contextlib.suppress(OSError):
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def start_tls(self, host: str, ca_file: str, deadline: float) -> None:
        """Perform the TLS handshake; everything after it is encrypted. Raises SourceError."""
        try:
            context = context_for(ca_file)
        except BadCertificates as error:
            raise SourceError(ErrorKind.UNTRUSTED, str(error)) from None
        self._set_timeout(max(0.01, deadline - time.monotonic()))
        try:
            # An end without close_notify is an error: the data may have been cut off.
            self._socket = context.wrap_socket(self._socket, server_hostname=host, suppress_ragged_eofs=False)
            self._is_tls = True
        except ssl.SSLCertVerificationError as error:
            raise SourceError(
                ErrorKind.UNTRUSTED,
                "the certificate of %s is not trusted: %s. If it is signed by an authority of your site, set "
                "SSL_CERT_FILE to that authority's certificate file"
                % (self.peer, error.verify_message.rstrip(".")),
            ) from None
        except socket.timeout:
            raise SourceError(
                ErrorKind.NO_ANSWER, "%s accepted the connection, but the TLS handshake timed out" % self.peer
            ) from None
        except ssl.SSLError as error:
            if error.reason in (
                "WRONG_VERSION_NUMBER",
                "HTTP_REQUEST",
                "UNKNOWN_PROTOCOL",
                "RECORD_LAYER_FAILURE",
            ):
                raise SourceError(
                    ErrorKind.NONSENSE, "%s does not speak TLS on this port" % self.peer
                ) from None
            reason = (error.reason or "the connection broke").replace("_", " ").lower()
            raise SourceError(
                ErrorKind.NO_ANSWER, "the TLS handshake with %s failed: %s" % (self.peer, reason)
            ) from None
        except OSError as error:
            reason = (error.strerror or "the connection broke").lower()
            raise SourceError(
                ErrorKind.NO_ANSWER, "the TLS handshake with %s failed: %s" % (self.peer, reason)
            ) from None
