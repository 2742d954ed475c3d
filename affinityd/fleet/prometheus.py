"""Queries to a Prometheus, or to a server with its API: /api/v1/query.

The client of the daemon (affinityd.client.http) knows numbers of hosts alone and no TLS. This is
urllib: it trusts the certificates that the system trusts, and uses the proxy of http_proxy,
https_proxy and no_proxy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import TimeoutError as LateError
from dataclasses import dataclass, field
from functools import partial
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import HTTPRedirectHandler, OpenerDirector, Request, build_opener

from affinityd.errors import PrometheusError
from affinityd.json_codec import loads
from affinityd.text import one_line, quote
from affinityd.threads import started

TIMEOUT = 150.0  #: seconds of a query, all of it: Prometheus ends its own after two minutes
MOST = 256 * 2**20  #: bytes of an answer
LARGEST = 1e15  #: of a value: GPU-hours, or seconds since the epoch
SHOWN = 200  #: characters of an error of the server's

#: Status → how it can be avoided.
ADVICE = {
    401: "; --header-file takes the Authorization",
    403: "; --header-file takes the Authorization",
    404: ": no Prometheus has its API there",
}


@dataclass(frozen=True)
class Sample:
    """One series of an instant query's answer."""

    metric: Mapping[str, str]  #: its labels
    value: tuple[float, str]  #: the time, seconds since the epoch; and the number as text

    @property
    def number(self) -> float:
        """The value. Raises ValueError."""
        return float(self.value[1])


@dataclass(frozen=True)
class QueryResult:
    """The part of an answer that is the result."""

    result: Sequence[Sample]


@dataclass(frozen=True)
class QueryAnswer:
    """The answer to a query: https://prometheus.io/docs/prometheus/latest/querying/api/."""

    status: str  #: success or error
    data: QueryResult | None
    error: str | None


class NoRedirects(HTTPRedirectHandler):
    """Follows no redirect: urllib would take the credentials to another server."""

    def redirect_request(self, *_: Any) -> None:  # noqa: ANN401 - as its base has it
        """Return that there is no second request; the status becomes an HTTPError."""


@dataclass(frozen=True)
class Prometheus:
    """A server, by the URL under which it has /api/v1."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    _opener: OpenerDirector = field(default_factory=lambda: build_opener(NoRedirects))

    def query(self, expr: str, at: float | None = None) -> Sequence[Sample]:
        """Return the series of an instant query.

        `at`: seconds since the epoch; None: now, by the server's clock. Raises PrometheusError.
        """
        parameters = {"query": expr, **({} if at is None else {"time": f"{at:.3f}"})}
        request = Request(  # noqa: S310 - a URL of http or https
            f"{self.url}/api/v1/query?{urlencode(parameters)}", headers=dict(self.headers)
        )
        try:
            return started(partial(self._asked, request)).result(TIMEOUT)
        except LateError:
            why = f"did not answer in full within {TIMEOUT:.0f} s; shorten --since"
            raise PrometheusError(f"{self.url} {why}") from None

    def _asked(self, request: Request) -> Sequence[Sample]:
        try:
            with self._opener.open(request, timeout=TIMEOUT) as response:
                text = response.read(MOST + 1)
        except HTTPError as error:
            with error:
                refusal = self._refusal(error)
            raise PrometheusError(f"{self.url} answered {refusal}") from None
        except URLError as error:
            reason = getattr(error.reason, "strerror", None) or error.reason
            raise PrometheusError(f"{self.url} cannot be asked: {reason}") from None
        except (OSError, HTTPException) as error:
            why = str(error) or type(error).__name__
            raise PrometheusError(f"{self.url} did not answer: {one_line(why)}") from None
        if len(text) > MOST:
            raise PrometheusError(f"{self.url} answered more than {MOST} bytes; shorten --since")
        return self._parsed(text)

    def _parsed(self, text: bytes) -> Sequence[Sample]:
        try:
            answer = loads(QueryAnswer, text.decode(), "its answer")
            if answer.data is not None:
                return _checked(answer.data.result)
        except ValueError as error:  # UnicodeDecodeError among them
            raise PrometheusError(f"{self.url} is no Prometheus: {one_line(str(error))}") from None
        raise PrometheusError(f"{self.url} refused a query: {quote(answer.error or '')}")

    def _refusal(self, error: HTTPError) -> str:
        """Return a status, with Prometheus's own error, the address of a redirect, or advice."""
        status = f"{error.code} {error.reason}".strip()
        if place := error.headers.get("Location"):
            return f"{status}: redirected to {quote(place)}; if that is a Prometheus, name it"
        try:
            said = loads(QueryAnswer, error.read(MOST), "its answer").error
        except (ValueError, OSError, HTTPException):
            said = None
        return one_line(
            f"{status}: {said[:SHOWN]}" if said else status + ADVICE.get(error.code, "")
        )


def _checked(samples: Sequence[Sample]) -> Sequence[Sample]:
    """Return the samples. Raises ValueError for a value that is no amount, such as NaN or +Inf."""
    for it in samples:
        if not 0 <= it.number <= LARGEST:
            value = quote(it.value[1])
            raise ValueError(f"a value is {value}, not a number from 0 to {LARGEST:g}")
    return samples
