"""The forms in which a scraper may ask for metrics, and parts that are written apart."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

END = b"# EOF\n"  #: of OpenMetrics
OPEN_METRICS = "application/openmetrics-text"


def encoder(accept: str) -> tuple[Callable[[Collector], bytes], str]:
    """Return the writer of a form that an Accept header takes, and that form's media type."""
    try:
        return choose_encoder(accept)
    except TypeError:  # its own, over a version that is no number
        return choose_encoder("")


def joined(*parts: bytes) -> bytes:
    """Return expositions of one form as one; each metric is in one of them."""
    end = END if parts[-1].endswith(END) else b""
    return b"".join(part.removesuffix(END) for part in parts) + end


def expositions(collector: Collector) -> tuple[bytes, bytes]:
    """Return the metrics of a collector in Prometheus' text form, and as OpenMetrics."""
    (text, _), (open_metrics, _) = encoder(""), encoder(f"{OPEN_METRICS}; version=1.0.0")
    return text(collector), open_metrics(collector)
