"""Requests that the API's own OpenAPI document allows, and requests that it forbids."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given

from tests.e2e.fuzz.inputs import SOME
from tests.support.daemons import free_port, running

LACKS = "schemathesis is not installed: pip install '.[fuzz]' in this checkout"
checks: Any = pytest.importorskip("schemathesis.checks", reason=LACKS)
schemathesis: Any = pytest.importorskip("schemathesis", reason=LACKS)

#: OpenAPI cannot describe lists, nor which parameters fit together: a valid text may be refused.
#: 503 means that the machine is not known yet; another check finds other server errors.
LEFT_OUT = [checks.positive_data_acceptance, checks.not_a_server_error]


PATHS = (
    *("/", "/plan", "/topology", "/topology.svg", "/metrics"),
    *("/healthz", "/readyz", "/audit"),
)


@pytest.fixture(scope="module", params=["dgx-a100", None])
def api(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Run a daemon for a built-in machine or for this machine; yield the API's OpenAPI document."""
    address = f"127.0.0.1:{free_port()}"
    machine = ["--machine", request.param] if request.param else []
    with running(tmp_path_factory.mktemp("api"), *machine, listen=address) as daemon:
        schema = schemathesis.openapi.from_url(f"http://{address}/openapi.json")
        schema.config.update(base_url=f"http://{address}")
        yield schema
        assert "Traceback" not in daemon.log.read_text()
        assert daemon.complaints == []


@pytest.mark.parametrize(
    ("path", "mode"), [*((path, "POSITIVE") for path in PATHS), ("/plan", "NEGATIVE")]
)
def test_requests_that_the_document_allows_or_forbids_are_answered_as_it_says(
    api: Any,  # noqa: ANN401
    path: str,
    mode: str,
) -> None:
    @given(api[path]["GET"].as_strategy(generation_mode=schemathesis.GenerationMode[mode]))
    @SOME
    def ask(case: Any) -> None:  # noqa: ANN401
        case.call_and_validate(excluded_checks=LEFT_OUT)

    ask()
