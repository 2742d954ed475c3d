"""Our gRPC client asks a server of grpcio, which Google's own library makes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from affinityd.linux.protobuf import LARGEST, call

Handler = Callable[[bytes, Any], bytes]
LONG = 30.0  #: seconds


def _late(_request: bytes, _context: object) -> bytes:
    time.sleep(2)
    return b""


ANSWERS: dict[str, Handler] = {
    "Echo": lambda request, _context: request,
    "Long": lambda _request, _context: bytes(range(256)) * 25_000,
    "TooLong": lambda _request, _context: bytes(LARGEST + 1),
    "Fails": lambda _request, context: context.abort(grpc.StatusCode.UNAVAILABLE, "no list\n"),
    "Slow": _late,
    "Raises": lambda request, _context: request[1:2] + bytes([request[9]]),
}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    path = tmp_path_factory.mktemp("grpcio") / "s.sock"
    handlers = {
        name: grpc.unary_unary_rpc_method_handler(answer) for name, answer in ANSWERS.items()
    }
    sizes = [("grpc.max_send_message_length", -1)]
    server = grpc.server(ThreadPoolExecutor(4), options=sizes)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("v1.Test", handlers),))
    server.add_insecure_port(f"unix:{path}")
    server.start()
    yield f"{path}"
    server.stop(None)


@pytest.mark.parametrize(
    ("method", "request_", "expected"),
    [
        ("Echo", b"", b""),
        ("Echo", b"asked", b"asked"),
        ("Long", b"", bytes(range(256)) * 25_000),  # hundreds of frames
    ],
)
def test_an_answer_arrives_whole(path: str, method: str, request_: bytes, expected: bytes) -> None:
    assert call(path, f"/v1.Test/{method}", request_, LONG) == expected


@pytest.mark.parametrize(
    ("method", "said"),
    [
        ("Fails", "with an error"),
        ("Raises", "with an error"),
        ("None", "with an error"),
        ("TooLong", "with over"),
    ],
)
def test_an_error_is_one_line(path: str, method: str, said: str) -> None:
    with pytest.raises(ValueError, match=said) as found:
        call(path, f"/v1.Test/{method}", b"", LONG)
    assert "\n" not in str(found.value)


def test_a_slow_server_is_left(path: str) -> None:
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        call(path, "/v1.Test/Slow", b"", 0.5)
    assert time.monotonic() - began < LONG / 2


def test_a_server_that_has_ended_does_not_answer(tmp_path: Path) -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    server.add_insecure_port(f"unix:{tmp_path}/s.sock")
    server.start()
    server.stop(None).wait()
    with pytest.raises(OSError, match=r"refused|No such file"):
        call(f"{tmp_path}/s.sock", "/v1.Test/Echo", b"", LONG)
