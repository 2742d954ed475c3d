"""The smallest server of its kind: FastAPI with one route, on uvicorn as it comes.

python bench/minimal.py SOCKET
"""

from __future__ import annotations

import sys

import uvicorn
from fastapi import FastAPI

app = FastAPI()


@app.get("/healthz")
async def healthz() -> dict[str, bool]:
    return {"ok": True}


if __name__ == "__main__":
    uvicorn.run(app, uds=sys.argv[1], log_level="critical", access_log=False)
