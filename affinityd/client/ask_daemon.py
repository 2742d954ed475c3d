"""Asking a daemon for a plan: HTTP/1.1, one request a connection, a deadline for all of it.

An address is the path of a unix socket, or http://HOST:PORT, whose host is a number: `affinityd
init`, the only command that asks over TCP, looks names up. A socket is trusted for its path: only
root can make files in /run/affinityd, and only the user in the user's runtime folder.

Every rank would wait for `http.client`, which takes longer to import than Python to start.
"""

from __future__ import annotations

import errno
import marshal
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from affinityd.errors import (
    REFUSAL_ERRORS,
    ApplyError,
    DaemonError,
    InvalidRequestError,
    NoDaemonError,
    UnknownParameterError,
)
from affinityd.linux.files import in_time
from affinityd.request.environment import Pairs
from affinityd.request.process_plan import ProcessPlan, read_plan
from affinityd.text import one_line, quote

T = TypeVar("T")

TIMEOUT = 1.0  #: seconds that asking a daemon may take by default
READING = 5  #: reading the machine without a daemon may take this many times as long
MAX_ANSWER = 1024 * 1024  #: bytes; a plan for 256 ranks takes 60,000
#: Errors which mean that no process listens there. None: the path is too long for a socket, or the
#: host is a name.
ABSENT = {
    errno.ENOENT,
    errno.ENOTDIR,
    errno.ECONNREFUSED,
    errno.EACCES,
    errno.EHOSTUNREACH,
    errno.ENETUNREACH,
    None,
}
HTTP = "http://"


def find_plan(
    query: Pairs, sockets: Sequence[str], start: float, timeout: float, *, forks: bool
) -> ProcessPlan:
    """Return the plan of the process of a query; `start` and `timeout` are as for `within`.

    With `forks`, for a process of one thread, a child reads the machine's files: execve(2) would
    wait for a thread that is blocked in the kernel. Otherwise call this in `within`. Raises
    AffinityError.
    """
    trouble = None  # keep the error of the first daemon: the second had no time left
    for path in sockets:
        try:
            return read_plan(ask_plan(path, query, start + timeout))
        except NoDaemonError:
            continue
        except DaemonError as error:
            problem = str(error)
        except UnknownParameterError as error:
            problem = f"the daemon at {path} runs another release: {error}"
        except ValueError as error:
            problem = f"the daemon at {path} answered {error}"
        trouble = trouble or problem
    # Imported here: the planner takes as long to import as Python to start.
    from affinityd.client import local_plan  # noqa: PLC0415

    def plan() -> ProcessPlan:
        return local_plan.plan_process(query, sockets, trouble)

    if not forks:
        return plan()
    from affinityd.linux import children  # noqa: PLC0415 - not needed where a daemon answers

    try:
        encoded = children.run(lambda: marshal.dumps(vars(plan())), _end(start, timeout))
    except TimeoutError:
        raise _late(timeout, trouble) from None
    return ProcessPlan(**marshal.loads(encoded))  # noqa: S302 - of a child of this process


def within(start: float, timeout: float, find: Callable[[], T]) -> T:
    """Return the result of `find`; raise ApplyError if a file that it reads hangs.

    `start` is of time.monotonic. Asking a daemon may take `timeout` seconds, and reading the
    machine READING times as long.
    """
    try:
        return in_time(find, _end(start, timeout) - time.monotonic())
    except TimeoutError:
        raise _late(timeout) from None


def seconds(text: str | None) -> float:
    """Read a timeout. Raises InvalidRequestError."""
    try:
        number = TIMEOUT if text is None else float(text)
    except ValueError:
        number = 0.0
    if not 0.001 <= number <= 3600:  # noqa: PLR2004
        raise InvalidRequestError(
            f"timeout: {quote(text or '')} is not a number of seconds from 0.001 to 3600"
        )
    return number


def _end(start: float, timeout: float) -> float:
    return start + (1 + READING) * timeout


def _late(timeout: float, trouble: str | None = None) -> ApplyError:
    line = f"no plan within {_end(0, timeout):g} s of the start; a larger timeout allows more time"
    if trouble is not None:
        line += f"; {trouble}"
    return ApplyError(line)


def ask_plan(
    address: str, query: Iterable[tuple[str, str]], deadline: float, form: str = "shell"
) -> str:
    """Return a plan, in one of the request's formats. Raises the errors of `fetch`.

    A variable that a daemon of another release does not know is an UnknownParameterError, too.
    """
    encoded = "&".join(f"{name}={_percent_encoded(text)}" for name, text in query)
    try:
        return fetch(address, f"/plan?{encoded}&format={form}", deadline)
    except InvalidRequestError as error:
        what, is_unread, _ = str(error).partition(" is not read; known are ")
        if is_unread:
            raise UnknownParameterError(f"{what} is not read") from None
        raise


def fetch(address: str, target: str, deadline: float, most: int = MAX_ANSWER) -> str:
    """Return a daemon's answer to GET; `deadline`: of time.monotonic; `most`: bytes of an answer.

    Raises NoDaemonError if no process listens; DaemonError if the server is too slow, fails, or is
    no affinityd; and the error of REFUSAL_ERRORS with which the daemon refuses.
    """
    try:
        with connect(address, deadline) as connection:
            answer = get(connection, target, deadline, most)
        status, body = parse(answer)
        text = body.decode()
    except TimeoutError:
        raise DaemonError(f"the daemon at {address} did not answer in time") from None
    except OSError as error:
        if error.errno in ABSENT:
            raise NoDaemonError(f"no daemon at {address}: {error.strerror or error}") from None
        raise DaemonError(
            f"the daemon at {address} closed the connection: {error.strerror}"
        ) from None
    except ValueError as error:
        raise DaemonError(f"the server at {address} is not affinityd: {error}") from None
    title, _, detail = text.strip().partition(": ")
    for refusal in REFUSAL_ERRORS:
        if (status, title) == (refusal.status, refusal.title):
            raise refusal(one_line(detail[:1000]))
    if status != 200:  # noqa: PLR2004
        raise DaemonError(f"the daemon at {address} answered {status}: {quote(text.strip())}")
    return text


def connect(address: str, deadline: float) -> socket.socket:
    """Wait for room in the server's queue; return a connection. Raises OSError or TimeoutError."""
    while True:
        timeout = _left(deadline)
        try:
            return _connect_once(address, timeout)
        except BlockingIOError:  # unix(7): the queue is full
            time.sleep(0.005)


def _connect_once(address: str, timeout: float) -> socket.socket:
    if address.startswith(HTTP):
        host, _, port = address[len(HTTP) :].rpartition(":")
        host = host.strip("[]")
        try:
            number = int(port)
            socket.inet_pton(socket.AF_INET6 if ":" in host else socket.AF_INET, host)
        except (OSError, ValueError):
            line = "give host and port by their numbers, like http://127.0.0.1:9465"
            raise OSError(line) from None
        return socket.create_connection((host, number), timeout)
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(timeout)
        connection.connect(address)
    except BaseException:
        connection.close()
        raise
    return connection


def get(connection: socket.socket, target: str, deadline: float, most: int = MAX_ANSWER) -> bytes:
    """Return what the server sends; stop soon after `most` bytes. Raises what `connect` raises."""
    connection.settimeout(_left(deadline))
    # Refusals come as a line of text.
    fields = "Host: localhost\r\nAccept: text/plain\r\nConnection: close\r\n"
    connection.sendall(f"GET {target} HTTP/1.1\r\n{fields}\r\n".encode(), socket.MSG_NOSIGNAL)
    answer = bytearray()
    while len(answer) <= most:
        connection.settimeout(_left(deadline))
        part = connection.recv(65536)
        if not part:
            break
        answer += part
    return bytes(answer)


def parse(answer: bytes) -> tuple[int, bytes]:
    """Return the status and the body. Raises ValueError for anything but a whole HTTP answer."""
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *fields = head.split(b"\r\n")
    version, _, rest = first.partition(b" ")
    status, _, _ = rest.partition(b" ")
    is_whole = False
    for field in fields:
        name, _, value = field.partition(b":")
        if name.lower() == b"content-length":
            is_whole = value.strip() == b"%d" % len(body)
    if not (is_whole and version.startswith(b"HTTP/1.") and status.isdigit() and len(status) == 3):  # noqa: PLR2004
        raise ValueError(quote(repr(answer[:60])))
    return int(status), body


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _percent_encoded(text: str) -> str:
    data = text.encode(errors="surrogatepass")  # the daemon refuses what is not text
    plain = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.~,:"
    encoded = ""
    for byte in data:
        encoded += chr(byte) if byte in plain else f"%{byte:02X}"
    return encoded
