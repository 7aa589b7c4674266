"""Metrics of client quotas, by user and client id; "" stands for all. Only clients that have a quota are measured."""

from __future__ import annotations

from collections.abc import Callable

from kbroker.broker import Broker
from kbroker.broker.client_quotas import ClientQuotas
from kbroker.controller.embedded import EmbeddedController
from kbroker.quotas.limits import Tag
from kbroker.quotas.rates import Bucket, SampledRate
from kbroker.quotas.tracking import ClientUsage, Used
from kbroker.web.metrics import GAUGE, Samples, of_broker

_LABELS = ("user", "client_id")


def _usage(type_name: str, attribute: str, help: str, find: Callable[[ClientQuotas], ClientUsage[SampledRate]]) -> None:
    def rates(broker: Broker) -> Samples:
        now_ms = broker.env.now_ms()
        return ((tag, used.measure.rate(now_ms)) for tag, used in find(broker.quotas).items())

    def times(broker: Broker) -> Samples:
        now_ms = broker.env.now_ms()
        return ((tag, used.throttle_time_ms(now_ms)) for tag, used in find(broker.quotas).items())

    of_broker(GAUGE, f"kafka_server_{type_name}_{attribute}", *_LABELS, help=help)(rates)
    help = "Milliseconds: the average of the throttle times of the last windows."
    of_broker(GAUGE, f"kafka_server_{type_name}_throttle_time", *_LABELS, help=help)(times)


_usage("produce", "byte_rate", "Bytes per second of Produce requests.", lambda quotas: quotas.producers)
_usage("fetch", "byte_rate", "Bytes per second of responses to Fetch.", lambda quotas: quotas.consumers)
_usage(
    "request", "request_time", "Percent of the event loop's time that requests take.", lambda quotas: quotas.requests
)


def _mutations(broker: Broker) -> list[tuple[Tag, Used[Bucket]]]:
    controller = broker.controller
    return controller.mutation_quota.usage.items() if isinstance(controller, EmbeddedController) else []


@of_broker(GAUGE, "kafka_server_controllermutation_tokens", *_LABELS)
def _tokens(broker: Broker) -> Samples:
    """Partitions that a client may still create or delete at once; below zero if it is throttled."""
    now_ms = broker.env.now_ms()
    for tag, used in _mutations(broker):
        yield tag, used.measure.tokens(used.limit, now_ms)


@of_broker(GAUGE, "kafka_server_controllermutation_throttle_time", *_LABELS)
def _mutation_throttle_time(broker: Broker) -> Samples:
    """Milliseconds: the average of the throttle times of the last windows."""
    now_ms = broker.env.now_ms()
    for tag, used in _mutations(broker):
        yield tag, used.throttle_time_ms(now_ms)


@of_broker(GAUGE, "kbroker_connection_tokens", "ip")
def _connection_tokens(broker: Broker) -> Samples:
    """Connections that an address with a quota may still open at once; below zero if some wait."""
    now_ms = broker.env.now_ms()
    for address, used in broker.quotas.addresses.items():
        yield (address,), used.measure.tokens(used.limit, now_ms)
