"""The OpenAPI document: plans go on while it is made."""

from __future__ import annotations

import asyncio
import json

from fastapi import FastAPI
from fastapi.routing import APIRoute

from affinityd.daemon.api.description import PATH, add_description


def test_the_event_loop_goes_on_while_the_description_is_made_once() -> None:
    app = FastAPI(openapi_url=None)
    app.add_api_route("/plan", lambda: None)
    add_description(app)
    (route,) = (it for it in app.routes if isinstance(it, APIRoute) and it.path == PATH)

    async def turns() -> int:
        """Return how often the loop turns until the document is there."""
        asked, number = asyncio.ensure_future(route.endpoint()), 0
        while not asked.done():
            await asyncio.sleep(0)
            number += 1
        assert json.loads(asked.result().body)["paths"].keys() == {"/plan"}
        return number

    assert asyncio.run(turns()) > 20
