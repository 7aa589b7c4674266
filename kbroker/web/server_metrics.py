"""Metrics of requests, connections and this process."""

from __future__ import annotations

import platform

from kbroker import __version__, build
from kbroker.web.metrics import COUNTER, GAUGE, HISTOGRAM, Samples, of_node
from kbroker.web.ports import Observed

_REQUESTS, _TIMES = "requests.", ".us"


def _counter(node: Observed, name: str) -> float:
    return node.metrics.counter(name).value


@of_node(COUNTER, "kafka_network_requestmetrics_requests_total", "request")
def _requests(node: Observed) -> Samples:
    """Requests, by API."""
    for name, counter in tuple(node.metrics.counters.items()):
        api = name.removeprefix(_REQUESTS)
        if api not in (name, "faults"):
            yield (api,), counter.value


@of_node(COUNTER, "kafka_network_requestmetrics_errors_total", "request", "error")
def _errors(node: Observed) -> Samples:
    """Error codes in responses, by API: one for each topic or partition that has one. NONE does not count."""
    return tuple(node.metrics.tally("requests.errors_by_code").counts.items())


@of_node(HISTOGRAM, "kafka_network_requestmetrics_totaltimems", "request")
def _total_times(node: Observed) -> Samples:
    """Milliseconds from a complete request to its response, including waits. An API appears after its first request."""
    for name, histogram in tuple(node.metrics.histograms.items()):
        if name.startswith(_REQUESTS) and name.endswith(_TIMES) and any(histogram.counts):
            yield (name.removeprefix(_REQUESTS).removesuffix(_TIMES),), histogram


@of_node(COUNTER, "kbroker_request_faults_total")
def _faults(node: Observed) -> float:
    """Requests that failed because of a bug in the broker; see its log."""
    return _counter(node, "requests.faults")


# Connections


@of_node(GAUGE, "kafka_server_socket_server_metrics_connection_count", "listener")
def _open(node: Observed) -> Samples:
    """Open connections, by listener."""
    if node.server is not None:
        for listener, count in node.server.connections_by_listener().items():
            yield (listener,), count


@of_node(COUNTER, "kafka_server_socket_server_metrics_connection_creation_total")
def _accepted(node: Observed) -> float:
    """Connections that were accepted."""
    return _counter(node, "connections.accepted")


@of_node(COUNTER, "kbroker_connections_refused_total")
def _refused(node: Observed) -> float:
    """Connections closed at once, because their address had too many."""
    return _counter(node, "connections.refused")


@of_node(COUNTER, "kbroker_connection_accept_errors_total")
def _accept_errors(node: Observed) -> float:
    """Times that the system could not accept a connection."""
    return _counter(node, "connections.accept_errors")


@of_node(COUNTER, "kbroker_connections_closed_total", "reason")
def _closed(node: Observed) -> Samples:
    """Connections that the broker closed: for malformed requests (fault), because they were idle or stuck (delay),
    because too many were not authenticated yet (room), or because memory ran out and their last progress was longest
    ago (memory).
    """
    for reason in ("fault", "delay", "room"):
        yield (reason,), node.metrics.counter(f"connections.closed_for_{reason}").value
    if node.server is not None:
        yield ("memory",), node.server.memory.evicted


# Memory


@of_node(GAUGE, "kbroker_memory_used_bytes", "for")
def _memory(node: Observed) -> Samples:
    """Bytes in use of each memory budget: requests being received or handled, replies that clients have not read, and
    compressed batches being checked.
    """
    if node.server is not None:
        yield ("requests",), node.server.memory.request_bytes
        yield ("answers",), node.server.memory.answers.used_bytes
    if node.broker is not None:
        yield ("unpacking",), node.broker.appender.unpacking.used_bytes


@of_node(GAUGE, "kbroker_memory_waiting", "for")
def _memory_waiting(node: Observed) -> Samples:
    """Requests that wait for memory, by budget."""
    if node.server is not None:
        yield ("requests",), len(node.server.memory.requests)
    if node.broker is not None:
        yield ("unpacking",), len(node.broker.appender.unpacking)


# The pages and the process


@of_node(COUNTER, "kbroker_http_requests_total", "page", "status")
def _pages(node: Observed) -> Samples:
    """Requests for these pages, by page and status."""
    return tuple(node.metrics.tally("http.requests").counts.items())


@of_node(COUNTER, "kbroker_http_connections_refused_total")
def _pages_refused(node: Observed) -> float:
    """Connections to the pages that were closed because there were too many."""
    return _counter(node, "http.connections.refused")


@of_node(GAUGE, "kbroker_build_info", "version", "python", "build")
def _build(node: Observed) -> Samples:
    """Always 1."""
    del node
    yield (__version__, platform.python_version(), build()), 1
