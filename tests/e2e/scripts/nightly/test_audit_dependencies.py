"""scripts/audit-dependencies tells what is vulnerable from what could not be asked."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.support.paths import REPOSITORY

SCRIPT = REPOSITORY / "scripts/audit-dependencies"

#: As https://google.github.io/osv.dev/post-v1-query/ has it.
RANGE = {"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "999"}]}
PACKAGE = {"ecosystem": "PyPI", "name": "uvicorn"}
ADVISORY = {
    "id": "PYSEC-2099-1",
    "modified": "2099-01-01T00:00:00Z",
    "summary": "Made up.",
    "affected": [{"package": PACKAGE, "ranges": [RANGE]}],
}


@contextmanager
def osv(advisories: dict[str, list[Any]], asked: list[str]) -> Iterator[str]:
    """Answer as OSV does, with what is known of each package. Give the address."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            query = json.loads(self.rfile.read(int(self.headers["content-length"])))
            name = query["package"]["name"]
            asked.append(name)
            body = json.dumps({"vulns": advisories[name]} if name in advisories else {}).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1/query"
        server.shutdown()


def audit(url: str) -> tuple[int, str]:
    env = {**os.environ, "OSV_URL": url, "NO_PROXY": "127.0.0.1"}
    done = subprocess.run([SCRIPT], env=env, capture_output=True, text=True, check=False)
    assert done.stdout == ""
    return done.returncode, done.stderr


def test_every_package_is_asked_about_and_what_is_vulnerable_is_named() -> None:
    asked: list[str] = []
    with osv({}, asked) as url:
        status, printed = audit(url)
    last = "No known vulnerability in deploy/image/*.txt."
    assert (status, printed.splitlines()[-1]) == (0, last)
    assert {"uvicorn", "fastapi", "hatchling"} <= set(asked)
    with osv({"uvicorn": [ADVISORY]}, asked) as url:
        status, printed = audit(url)
    assert (status, "PYSEC-2099-1" in printed, "uvicorn" in printed) == (1, True, True)


def test_what_could_not_be_asked_is_not_called_clean() -> None:
    with osv({}, []) as url:
        pass
    status, printed = audit(url)
    assert status == 3
    assert printed.splitlines()[-1].startswith("deploy/image/*.txt was NOT AUDITED: ")
