"""Requests to a daemon: HTTP/1.1, one request a connection, a deadline for all of it.

An address is the path of a unix socket, or http://HOST:PORT, whose host is a number: names are
looked up by `affinityd init`, the only one that asks over TCP. Over a unix socket only a trusted
daemon is asked for a plan; over TCP the server is not identified.

Neither `socket` nor `http.client` nor `urllib` is imported: each costs as much as Python's start.
"""

from __future__ import annotations

import _socket
import errno
import time
from collections.abc import Iterator, Mapping, Sequence

from affinityd.client import trust
from affinityd.errors import REFUSALS, AffinityError, DaemonError, NoDaemonError
from affinityd.text import one_line, quote

MAX_ANSWER = 1024 * 1024  #: bytes; a plan for 256 ranks has 60,000
MAX_REFUSAL = 1000  #: characters of one that are passed on
CHUNK = 65536
DIGITS = 3  #: of a status
LENGTH = b"content-length"
PAUSE = 0.005  #: seconds between two tries while the daemon's queue is full

#: No process can listen there; None: a path that is too long for a socket, a host that is a name.
ABSENT = (
    errno.ENOENT,
    errno.ENOTDIR,
    errno.ECONNREFUSED,
    errno.EACCES,
    errno.EHOSTUNREACH,
    errno.ENETUNREACH,
    None,
)
HTTP = "http://"
#: Of every request; refusals come as a line of text.
FIELDS = "Host: localhost\r\nAccept: text/plain\r\nConnection: close\r\n"
PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.~,:")


def ask_plan(
    address: str, parameters: Mapping[str, str], deadline: float, form: str = "shell"
) -> str:
    """Return a plan, in a format of the request's.

    `deadline` is of time.monotonic. Raises the exceptions of `fetch`.
    """
    query = "&".join(f"{name}={_percent_encoded(text)}" for name, text in parameters.items())
    return fetch(address, f"/plan?{query}&format={form}", deadline)


def fetch(
    address: str,
    target: str,
    deadline: float,
    *,
    refusals: Sequence[type[AffinityError]] = REFUSALS,
    most: int = MAX_ANSWER,
) -> str:
    """Return a trusted daemon's answer at a path, `most` bytes of it.

    Raises NoDaemonError where no process listens, UntrustedError where another user's does,
    DaemonError if the server is too slow, fails or is no affinityd, and that of `refusals`
    with which the daemon refuses the request.
    """
    try:
        answer = _ask_trusted(address, target, deadline, most)
    except TimeoutError:
        raise DaemonError(f"the daemon at {address} did not answer in time") from None
    except OSError as error:
        if error.errno in ABSENT:
            raise NoDaemonError(f"no daemon at {address}: {error.strerror or error}") from None
        raise DaemonError(
            f"the daemon at {address} closed the connection: {error.strerror}"
        ) from None
    status, text = _parsed(answer, address)
    title, _, detail = text.strip().partition(": ")
    for refusal in refusals:
        if (status, title) == (refusal.status, refusal.title):
            raise refusal(one_line(detail[:MAX_REFUSAL]))
    if status != 200:  # noqa: PLR2004
        raise DaemonError(f"the daemon at {address} answered {status}: {quote(text.strip())}")
    return text


def _ask_trusted(address: str, target: str, deadline: float, most: int) -> bytes:
    connection = connect(address, deadline)
    try:
        if connection.family == _socket.AF_UNIX:
            trust.check_daemon(address, connection)
        return get(connection, target, deadline, most)
    finally:
        connection.close()


def parse(answer: bytes) -> tuple[int, bytes | None]:
    """Return a status, and the body; None if its length differs from the head's.

    Raises ValueError if it is not HTTP.
    """
    head, separator, body = answer.partition(b"\r\n\r\n")
    first, *fields = head.lower().split(b"\r\n")
    version, _, rest = first.partition(b" ")
    status, _, _ = rest.partition(b" ")
    is_status = status.isdigit() and len(status) == DIGITS
    if not (separator and version.startswith(b"http/1.") and is_status):
        raise ValueError("it does not speak HTTP")
    lengths = [
        text.strip() for name, _, text in (it.partition(b":") for it in fields) if name == LENGTH
    ]
    return int(status), body if lengths == [b"%d" % len(body)] else None


def _parsed(answer: bytes, address: str) -> tuple[int, str]:
    """Return an answer's status and body, all of it. Raises DaemonError."""
    try:
        status, body = parse(answer)
        if body is not None:
            return status, body.decode()
    except UnicodeDecodeError:
        raise DaemonError(
            f"the daemon at {address} answered with something other than text"
        ) from None
    except ValueError:
        pass
    raise DaemonError(f"the server at {address} is not affinityd: {quote(repr(answer[:60]))}")


def connect(address: str, deadline: float) -> _socket.socket:
    """Return a connection, once the server's queue has room; the server may not be trusted.

    Raises OSError, TimeoutError among them.
    """
    family, target = _target(address)
    while True:
        connection = _socket.socket(family, _socket.SOCK_STREAM)
        try:
            connection.settimeout(_left(deadline))
            connection.connect(target)
        except BlockingIOError:  # unix(7): the queue is full
            connection.close()
            time.sleep(PAUSE)
        except BaseException:
            connection.close()
            raise
        else:
            return connection


def _target(address: str) -> tuple[int, str | tuple[str, int]]:
    """Return an address as socket(2) and connect(2) have it. Raises OSError for a host's name."""
    if not address.startswith(HTTP):
        return _socket.AF_UNIX, address
    host, _, port = address[len(HTTP) :].rpartition(":")
    host = host.strip("[]")
    family = _socket.AF_INET6 if ":" in host else _socket.AF_INET
    try:
        _socket.inet_pton(family, host)
        return family, (host, int(port))
    except (OSError, ValueError):
        raise OSError("give host and port by their numbers, like http://127.0.0.1:9465") from None


def get(connection: _socket.socket, target: str, deadline: float, most: int = MAX_ANSWER) -> bytes:
    """Return the data of a path until the other side closes. Raises OSError, as connect."""
    connection.settimeout(_left(deadline))
    connection.sendall(f"GET {target} HTTP/1.1\r\n{FIELDS}\r\n".encode(), _socket.MSG_NOSIGNAL)
    return b"".join(received(connection, deadline, most))


def received(
    connection: _socket.socket, deadline: float, most: int = MAX_ANSWER
) -> Iterator[bytes]:
    """Yield the data until the other side closes, little more than `most` bytes of it."""
    size = 0
    while size <= most:
        connection.settimeout(_left(deadline))
        chunk = connection.recv(CHUNK)
        if not chunk:
            return
        size += len(chunk)
        yield chunk


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _percent_encoded(text: str) -> str:
    """Return a value as a query has it, RFC 3986."""
    try:
        data = text.encode(errors="surrogateescape")
    except UnicodeEncodeError:  # it is not text, as the daemon will say
        data = text.encode(errors="surrogatepass")
    return "".join(chr(byte) if byte in PLAIN else f"%{byte:02X}" for byte in data)
