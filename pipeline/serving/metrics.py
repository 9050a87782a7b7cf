"""Prometheus metrics of the front. Ray exports its own about replicas and nodes (docs/cluster.md)."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)


class Metrics:
    """The metrics of one server."""

    def __init__(self) -> None:
        self.registry = own = CollectorRegistry()
        self.requests = Counter(
            "gausscse_serve_requests", "Requests; status 499: the client left", ("path", "status"), registry=own
        )
        self.seconds = Histogram("gausscse_serve_seconds", "Seconds of a request", ("path",), buckets=_SECONDS, registry=own)
        self.in_progress = Gauge("gausscse_serve_in_progress", "Requests in progress", registry=own)
        self.sentences = Counter("gausscse_serve_sentences", "Sentences encoded", registry=own)
        self.resent = Counter("gausscse_serve_resent", "Batches and requests sent again after a failure", registry=own)
        self.version = Gauge("gausscse_serve_version", "Version that answers; 0 before the first", registry=own)
        self.refused = Gauge("gausscse_serve_refused_version", "Champion that was kept out; 0 if none", registry=own)
        self.swaps = Counter("gausscse_serve_swaps", "Champions that were tried", ("outcome",), registry=own)
        self.registry_errors = Counter("gausscse_serve_registry_errors", "Times the registry did not answer", registry=own)
        self.replicas = Gauge("gausscse_serve_replicas", "Replicas that run of the version that answers", registry=own)

    def text(self) -> bytes:
        """All metrics in Prometheus's text format."""
        return generate_latest(self.registry)
