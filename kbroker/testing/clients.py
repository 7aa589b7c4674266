"""Clients of the library that a test uses, with the settings that they need for a broker of a test.

kbroker depends on none of these libraries, and imports one when a test asks for its first client.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

from kbroker.runtime.clocks import RealClocks
from kbroker.testing.control import nearest

PRODUCER: Final = "producer"
CONSUMER: Final = "consumer"
ADMIN: Final = "admin"
_CLOSE_S: Final = 10

_CONFLUENT: Final = "confluent-kafka"
_CLASSES: Final[Mapping[str, Mapping[str, str]]] = {
    "kafka-python": {
        PRODUCER: "kafka:KafkaProducer",
        CONSUMER: "kafka:KafkaConsumer",
        ADMIN: "kafka:KafkaAdminClient",
    },
    _CONFLUENT: {
        PRODUCER: "confluent_kafka:Producer",
        CONSUMER: "confluent_kafka:Consumer",
        ADMIN: "confluent_kafka.admin:AdminClient",
    },
    "aiokafka": {
        PRODUCER: "aiokafka:AIOKafkaProducer",
        CONSUMER: "aiokafka:AIOKafkaConsumer",
        ADMIN: "aiokafka.admin:AIOKafkaAdminClient",
    },
}
"""The module and the class of each kind of client, by the name of its package on PyPI."""


def new_client(
    kind: str,
    bootstrap_servers: str,
    settings: Mapping[str, Any],
    *,
    library: str | None,
    topics: tuple[str, ...] = (),
    group: str | None = None,
) -> tuple[Any, Callable[[], object]]:
    """A client, and the function that closes it.

    Shape   settings are spelled as the library spells them, and replace those that are chosen here
    Errors  ModuleNotFoundError if the library, or any, is not installed; ValueError if it has to be named
    """
    library = _library(library)
    module, _, name = _CLASSES[library][kind].partition(":")
    make = getattr(import_module(module), name)
    if library == _CONFLUENT:
        return _confluent(
            make, {"bootstrap.servers": bootstrap_servers}, settings, topics=topics, group=group, kind=kind
        )
    chosen = {"auto_offset_reset": "earliest", "group_id": group} if kind == CONSUMER else {}
    client = make(*topics, **{"bootstrap_servers": bootstrap_servers, **chosen, **settings})
    if library == "aiokafka":  # the test starts and stops it in its event loop
        return client, _nothing
    return client, partial(client.close, timeout=_CLOSE_S) if kind == PRODUCER else client.close


def _confluent(
    make: Callable[[dict[str, Any]], Any],
    chosen: dict[str, Any],
    settings: Mapping[str, Any],
    *,
    kind: str,
    topics: tuple[str, ...],
    group: str | None,
) -> tuple[Any, Callable[[], object]]:
    if kind == CONSUMER:  # it cannot be without a group, but it need not commit
        chosen |= {"auto.offset.reset": "earliest", "group.id": group or f"kbroker-{RealClocks().new_uuid()}"}
        chosen |= {} if group else {"enable.auto.commit": False}
    client = make({**chosen, **settings})
    if topics:
        client.subscribe(list(topics))
    if kind == PRODUCER:
        return client, partial(client.flush, _CLOSE_S)
    return client, client.close if kind == CONSUMER else _nothing


def _library(name: str | None) -> str:
    if name is not None and name not in _CLASSES:
        raise ValueError(f"{name!r} is not one of {', '.join(_CLASSES)}{nearest(name, list(_CLASSES))}")
    installed = [each for each, classes in _CLASSES.items() if _is_installed(classes[PRODUCER].partition(":")[0])]
    if name is None and len(installed) > 1:
        raise ValueError(f"{' and '.join(installed)} are installed: name one of them with library=...")
    found = installed[0] if name is None and installed else name
    if found not in installed:
        wanted = name or "kafka-python (or kbroker[kafka-python]), confluent-kafka or aiokafka"
        raise ModuleNotFoundError(
            f"{name or 'no Kafka client'} is{' not' if name else ''} installed: pip install {wanted}"
        )
    return found


def _is_installed(module: str) -> bool:
    """Whether it is a package. A folder of the project that happens to have its name does not count."""
    found = find_spec(module)
    return found is not None and found.origin is not None


def _nothing() -> None:
    pass
