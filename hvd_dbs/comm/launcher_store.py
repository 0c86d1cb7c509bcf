"""The key-value store of horovodrun's launcher (Gloo). Every request has a limit."""

from __future__ import annotations

import http.client
import os
import socket
import time

ANSWER_SECONDS = 5.0
"""How long one answer may take; the launcher serves many ranks and may be busy."""

_SECONDS_BETWEEN_TRIES = 0.25

_KEEPALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 5, "TCP_USER_TIMEOUT": 25_000}
"""A connection fails 25 s (the last one is in milliseconds) after its host is out of reach: about
Gloo's timeout, and more than networks are usually interrupted for."""


def is_there() -> bool:
    """Whether the job's launcher has one."""
    return "HOROVOD_GLOO_RENDEZVOUS_ADDR" in os.environ


def get(scope: str, key: str, limit: float, wait: float = ANSWER_SECONDS) -> str | None:
    """The value of a key; None if it has none.

    Args:
        scope: A folder of keys.
        key: The key.
        limit: Seconds after which a launcher that cannot be reached is taken to be gone.
        wait: Seconds that the launcher may take for the answer once it has the request; such a
            request is not made twice if it is longer than `ANSWER_SECONDS`.

    Raises:
        RuntimeError: If the launcher does not answer within these limits.
    """
    return _request("GET", scope, key, None, limit, wait)


def put(scope: str, key: str, value: str, limit: float) -> None:
    """Sets the value of a key; arguments and errors as those of `get`.

    Bytes that are not valid UTF-8, as file names in errors may have, become escape sequences.
    """
    data = value.encode(errors="backslashreplace")
    _request("PUT", scope, key, data, limit, ANSWER_SECONDS)


def _request(
    method: str, scope: str, key: str, data: bytes | None, limit: float, wait: float
) -> str | None:
    end = time.monotonic() + limit
    while True:
        connection = _connection()
        was_sent = False
        try:
            connection.connect()
            _keep_alive(connection.sock, wait)
            connection.request(method, f"/{scope}/{key}", data)
            was_sent = True
            response = connection.getresponse()
            body = response.read()
            if response.status == http.client.NOT_FOUND:
                return None
            if response.status != http.client.OK:
                raise http.client.HTTPException(f"status {response.status} {response.reason}")
            return body.decode()
        except (OSError, http.client.HTTPException) as error:
            # A launcher that takes long counts requests: asked twice, it counts this rank twice.
            is_final = was_sent and wait > ANSWER_SECONDS
            if is_final or time.monotonic() > end:
                raise _gone(connection, error) from error
        finally:
            connection.close()
        time.sleep(_SECONDS_BETWEEN_TRIES)


def _connection() -> http.client.HTTPConnection:
    address = os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"]
    port = int(os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"])
    return http.client.HTTPConnection(address, port, timeout=ANSWER_SECONDS)


def _keep_alive(connection: socket.socket, wait: float) -> None:
    """Lets a connection wait so long, but end where the other host is out of reach."""
    connection.settimeout(wait)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _gone(connection: http.client.HTTPConnection, error: Exception) -> RuntimeError:
    return RuntimeError(
        f"the launcher at {connection.host}:{connection.port} does not answer any more: {error}. "
        f"If horovodrun still runs, the network between it and host {socket.gethostname()} is down."
    )
