"""One gRPC call over a unix socket, to a server that answers with frames that a test writes."""

import socket
import threading
import time
from pathlib import Path

import pytest

from affinityd.linux import protobuf as grpc
from affinityd.linux.protobuf import (
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS_FRAME,
    RST_STREAM,
    SETTINGS_FRAME,
    WINDOW_UPDATE,
)
from tests.support.servers import Behaviour, hanging, serving

METHOD, TIMEOUT = "/v1.Test/Ask", 0.5
CONTINUATION, UNKNOWN = 9, 0x2A
SAID = bytes(range(256)) * 60  #: a message that fits into a frame
STATUS_OK = b"\x88"  #: of HPACK's static table


def frame(kind: int, payload: bytes = b"", flags: int = 0, stream: int = 1) -> bytes:
    head = len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big")
    return head + payload


def message(data: bytes = SAID, *, flag: int = 0, more: int = 0) -> bytes:
    return bytes([flag]) + (len(data) + more).to_bytes(4, "big") + data


def in_parts(data: bytes, flags: int = 0, size: int = 16000) -> bytes:
    parts = (data[at : at + size] for at in range(0, len(data), size))
    return b"".join(frame(DATA, part, flags) for part in parts)


BEGIN = frame(SETTINGS_FRAME, stream=0) + frame(HEADERS_FRAME, STATUS_OK, END_HEADERS)
END = frame(HEADERS_FRAME, STATUS_OK, END_HEADERS | END_STREAM)
LEAVING = (1).to_bytes(4, "big") + bytes(4)  #: the server's last stream; NO_ERROR


def sends(data: bytes) -> Behaviour:
    def answer(connection: socket.socket, _over: threading.Event) -> None:
        connection.recv(2**16)
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(2**16):
            pass

    return answer


UNHEARD = frame(UNKNOWN, b"x") + frame(WINDOW_UPDATE, bytes(4), 0, 0)
CONTINUED = frame(HEADERS_FRAME, STATUS_OK) + frame(CONTINUATION, b"", END_HEADERS)


@pytest.mark.parametrize(
    "data",
    [
        BEGIN + in_parts(message(), size=1000) + END,
        BEGIN + frame(DATA, message()[:9000]) + frame(DATA, message()[9000:], END_STREAM),
        BEGIN + UNHEARD + in_parts(message()) + END,
        BEGIN + frame(DATA, b"of another", 0, 3) + in_parts(message()) + END,
        frame(SETTINGS_FRAME, stream=0) + CONTINUED + in_parts(message()) + END,
        BEGIN + frame(GOAWAY, LEAVING, 0, 0) + in_parts(message()) + END,
    ],
)
def test_a_message_is_read_from_any_sequence_of_frames(tmp_path: Path, data: bytes) -> None:
    with serving(tmp_path / "s", sends(data)):
        assert grpc.call(f"{tmp_path}/s", METHOD, b"", TIMEOUT) == SAID


@pytest.mark.parametrize(
    ("data", "error", "said"),
    [
        (BEGIN + END, ValueError, "with an error"),  # the trailers have the status
        (BEGIN + frame(RST_STREAM, bytes(4)), ValueError, "refused"),
        (frame(GOAWAY, bytes(8), 0, 0), ValueError, "refused"),
        (BEGIN + in_parts(message(flag=1)) + END, ValueError, "no whole message"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", ValueError, "no HTTP/2"),
        (b"", ConnectionResetError, "closed"),
        (BEGIN + frame(DATA, message()[:100])[:50], ConnectionResetError, "closed"),
    ],
)
def test_a_wrong_answer_is_an_error_of_one_line(
    tmp_path: Path, data: bytes, error: type[Exception], said: str
) -> None:
    with serving(tmp_path / "s", sends(data)), pytest.raises(error, match=said) as found:
        grpc.call(f"{tmp_path}/s", METHOD, b"", TIMEOUT)
    assert "\n" not in str(found.value)


def drips(connection: socket.socket, _over: threading.Event) -> None:
    for byte in BEGIN + in_parts(message()):
        connection.sendall(bytes([byte]))
        time.sleep(TIMEOUT / 20)


@pytest.mark.parametrize("answer", [hanging, drips])
def test_a_slow_server_is_abandoned_at_the_end_of_the_timeout(
    tmp_path: Path, answer: Behaviour
) -> None:
    began = time.monotonic()
    with serving(tmp_path / "s", answer), pytest.raises(TimeoutError):
        grpc.call(f"{tmp_path}/s", METHOD, b"", TIMEOUT)
    assert time.monotonic() - began < 4 * TIMEOUT


def test_an_endless_answer_is_refused(tmp_path: Path) -> None:
    def answer(connection: socket.socket, _over: threading.Event) -> None:
        connection.sendall(BEGIN)
        while True:
            connection.sendall(frame(DATA, bytes(16000)))

    with serving(tmp_path / "s", answer), pytest.raises(ValueError, match="with over"):
        grpc.call(f"{tmp_path}/s", METHOD, b"", 20 * TIMEOUT)


def test_an_answer_may_be_as_large_as_the_limit_but_no_larger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(tmp_path / "s", sends(BEGIN + in_parts(message()) + END)):
        monkeypatch.setattr(grpc, "LARGEST_ANSWER", len(SAID))
        assert grpc.call(f"{tmp_path}/s", METHOD, b"", TIMEOUT) == SAID
        monkeypatch.setattr(grpc, "LARGEST_ANSWER", len(SAID) - 1)
        with pytest.raises(ValueError, match="with over"):
            grpc.call(f"{tmp_path}/s", METHOD, b"", TIMEOUT)


def test_the_last_value_of_a_repeated_field_counts() -> None:
    """As protobuf.dev says: "Last One Wins"."""
    long = "b" * 200  # its length is written in two bytes
    twice = grpc.field(1, 7) + grpc.field(1, 300) + grpc.field(2, "a") + grpc.field(2, long)
    outer = grpc.read(grpc.field(3, b"") + grpc.field(3, twice))
    inner = grpc.embedded(outer, 3)
    assert (grpc.number(inner, 1), grpc.text(inner, 2)) == (300, long)
