"""Figures for Prometheus, in a registry of the service's own."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """Counters of one service process; those of the queue are of all processes that share the ledger."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "inferasim_http_requests", "HTTP requests.", ("method", "route", "status"), registry=self.registry
        )
        self.seconds = Histogram(
            "inferasim_http_request_seconds",
            "Time to the end of an answer; streams are left out.",
            ("route",),
            buckets=BUCKETS_S,
            registry=self.registry,
        )
        self.submitted = Counter("inferasim_jobs_submitted", "Jobs taken on.", ("kind",), registry=self.registry)
        self.jobs = Gauge(
            "inferasim_jobs", "Jobs in the queue's database, by status.", ("status",), registry=self.registry
        )
        self.streams = Gauge("inferasim_event_streams", "Open event streams.", registry=self.registry)
        self.workers = Gauge("inferasim_workers_alive", "Search processes that run.", registry=self.registry)
        self.restarts = Gauge("inferasim_worker_restarts", "Search processes that died.", registry=self.registry)
        self.up = Gauge("inferasim_ledger_up", "1 where the ledger answers.", registry=self.registry)

    def text(self) -> bytes:
        """The exposition format."""
        return generate_latest(self.registry)
