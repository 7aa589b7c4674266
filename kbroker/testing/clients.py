"""Clients of the library that a test uses, with the settings that they need for a broker of a test.

kbroker depends on none of these libraries, and imports one when a test asks for its first client.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

from kbroker.runtime.clocks import RealClocks
from kbroker.testing.control import nearest

_CONFLUENT: Final = "confluent-kafka"
_LIBRARIES: Final = {
    "kafka-python": ("kafka", "Kafka"),
    _CONFLUENT: ("confluent_kafka", ""),
    "aiokafka": ("aiokafka", "AIOKafka"),
}
"""The module of each library, by its name on PyPI, and what the names of its classes begin with."""
_CLOSE_S: Final = 10


class OwnClient:
    """A client that a test has asked for. Shape: kind is Producer, Consumer or AdminClient."""

    def __init__(
        self,
        kind: str,
        chosen: Mapping[str, Any],
        settings: Mapping[str, Any],
        *,
        library: str | None,
        topics: tuple[str, ...] = (),
    ) -> None:
        """`chosen` replaces the library's defaults; settings are spelled as the library spells them, and replace both.

        Errors  ModuleNotFoundError if the library, or any, is not installed; ValueError if it has to be named
        """
        self.kind = kind
        self.library = _library(library)
        module, prefix = _LIBRARIES[self.library]
        make = getattr(import_module(f"{module}.admin" if kind == "AdminClient" else module), prefix + kind)
        if self.library != _CONFLUENT:
            self.client = make(*topics, **{**chosen, **settings})
            return
        if chosen.get("group_id", "") is None and "group.id" not in settings:  # it needs a group, but need not commit
            chosen = {**chosen, "group_id": f"kbroker-{RealClocks().new_uuid()}", "enable_auto_commit": False}
        self.client = make({**{name.replace("_", "."): value for name, value in chosen.items()}, **settings})
        if topics:
            self.client.subscribe(list(topics))

    def close(self, *, has_broker: bool) -> None:
        """Close it, after a producer has sent what it still has, for which a broker is needed.

        Those of aiokafka belong to the event loop of the test.
        """
        wait_s = _CLOSE_S if has_broker else 0
        if self.library == "kafka-python" and self.kind == "Producer":
            with suppress(import_module("kafka.errors").KafkaTimeoutError):
                self.client.close(timeout=wait_s)
        elif self.library == "kafka-python":
            self.client.close()
        elif self.library == _CONFLUENT and self.kind == "Producer":
            self.client.flush(wait_s)
        elif self.library == _CONFLUENT and self.kind == "Consumer" and has_broker:
            self.client.close()


def _library(name: str | None) -> str:
    if name is not None and name not in _LIBRARIES:
        raise ValueError(f"{name!r} is not one of {', '.join(_LIBRARIES)}{nearest(name, list(_LIBRARIES))}")
    # A folder of the project that happens to have the name of a library has no origin.
    specs = {library: find_spec(module) for library, (module, _) in _LIBRARIES.items()}
    installed = [library for library, spec in specs.items() if spec is not None and spec.origin is not None]
    if name is None and len(installed) > 1:
        raise ValueError(f"{' and '.join(installed)} are installed: name one of them with library=...")
    if name is None and not installed:
        wanted = "kafka-python (or kbroker[kafka-python]), confluent-kafka or aiokafka"
        raise ModuleNotFoundError(f"no Kafka client is installed: pip install {wanted}")
    if name is not None and name not in installed:
        raise ModuleNotFoundError(f"{name} is not installed: pip install {name}")
    return name or installed[0]
