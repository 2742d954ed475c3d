"""The servers that the daemon is compared with, each uvicorn's as it comes, over a unix socket.

python -m bench.peers raw SOCKET BYTES     a raw ASGI app that returns so many bytes
python -m bench.peers route SOCKET BYTES   FastAPI, with the parameters of /plan; plans nothing
python -m bench.peers minimal SOCKET BYTES the smallest FastAPI app
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import DEVNULL, Popen
from typing import Annotated, Any

import uvicorn
import uvloop
from fastapi import FastAPI, Query
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from affinityd.daemon.servers import BACKLOG, listen_unix
from affinityd.request.parameters import PARAMETERS
from tests.support.daemons import eventually

JSON = "application/json"


def raw(size: int) -> Callable[[Scope, Receive, Send], Any]:
    """Return an app that answers so many bytes to anything."""
    headers = [(b"content-type", JSON.encode()), (b"content-length", b"%d" % size)]
    body = b"x" * size

    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return app


def route(size: int) -> FastAPI:
    """Return an app that reads and checks the parameters of /plan, and answers so many bytes."""
    app, body = FastAPI(), b"x" * size
    kinds = {"integer": int, "boolean": bool}
    names = {
        name: Annotated[kinds.get(parameter.schema.get("type", ""), str) | None, Query()]
        for name, parameter in PARAMETERS.items()
    }

    async def plan(**_given: object) -> Response:
        return Response(body, media_type=JSON)

    async def healthz() -> Response:
        return Response(body, media_type=JSON)

    # FastAPI reads a route's parameters from its signature.
    signature = ", ".join(f"{name}: names[{name!r}] = None" for name in names)
    made: dict[str, Any] = {"names": names, "plan": plan}
    exec(f"async def read({signature}): return await plan()", made)  # noqa: S102 - of our table
    app.get("/plan")(made["read"])
    app.get("/healthz")(healthz)
    return app


APPS: dict[str, Callable[[int], Any]] = {"raw": raw, "route": route}


@contextmanager
def peer(name: str, path: Path, size: int) -> Iterator[Popen[bytes]]:
    """Run one of them until its socket is there, and end it afterwards."""
    command = [sys.executable, "-m", "bench.peers", name, str(path), str(size)]
    with Popen(command, stdout=DEVNULL, stderr=DEVNULL) as process:
        try:
            eventually(path.exists, f"{name} listens")
            yield process
        finally:
            process.terminate()


def main() -> None:
    """Serve."""
    name, path, size = sys.argv[1:]
    config = uvicorn.Config(
        APPS[name](int(size)),
        http="httptools",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        backlog=BACKLOG,
    )
    uvloop.run(uvicorn.Server(config).serve([listen_unix(Path(path)).socket]))


if __name__ == "__main__":
    main()
