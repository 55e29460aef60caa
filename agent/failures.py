"""Failures of what this tool depends on: an engine, an endpoint, a benchmark client. They exit with code 3."""

from predictor.errors import InferaSimError


class DependencyFailed(InferaSimError):
    """Something outside failed; the message says what, and what to do."""


class EngineFailed(DependencyFailed):
    """An engine did not start, died, or its port was taken."""


class EndpointFailed(DependencyFailed):
    """A running endpoint answered with an error, cut a stream, or does not speak the API."""
