"""What the environment of a container says beside single settings, as the apache/kafka image takes it.

`KAFKA_*` variables are settings (see environment.py). Here is what its start scripts make of them first: listeners
that follow from the advertised ones, the cluster's id, the level of the log. Where Kafka's image drops all of its
defaults as soon as one setting is given, kbroker's defaults stay below them.

Source: docker/resources/common-scripts of Apache Kafka, `KafkaDockerWrapper`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from kbroker.config.values import ConfigError

DEFAULT_CLUSTER_ID = "5L6g3nShT-eMCtK--X86sw"
MAX_CLUSTER_ID = 100

_LEVELS = {
    "ALL": "debug",
    "TRACE": "debug",
    "DEBUG": "debug",
    "INFO": "info",
    "WARN": "warning",
    "WARNING": "warning",
    "ERROR": "error",
    "FATAL": "error",
    "OFF": "error",
}
_HOST = re.compile(r"://(\[[^\]]*\]|[^:,]*):")
_LISTENERS, _ADVERTISED = "KAFKA_LISTENERS", "KAFKA_ADVERTISED_LISTENERS"
_ROOT_LEVEL, _LOGGER_LEVELS = "KAFKA_LOG4J_ROOT_LOGLEVEL", "KAFKA_LOG4J_LOGGERS"


@dataclass(frozen=True, slots=True)
class Container:
    """A container's environment, understood.

    Shape  variables are those to take settings from; cluster_id is that of a new data directory; log_level is one of
           debug, info, warning, error; warnings are lines for the log
    """

    variables: Mapping[str, str]
    cluster_id: str
    log_level: str
    warnings: tuple[str, ...]


def read_container(environment: Mapping[str, str]) -> Container:
    """Understand a container's environment.

    Errors  ConfigError for a CLUSTER_ID that is none
    """
    # An empty variable is what `-e KAFKA_LISTENERS=` leaves, and Kafka's scripts take it for none.
    variables = {name: value for name, value in environment.items() if value or name not in (_LISTENERS, _ADVERTISED)}
    if _LISTENERS not in variables and _ADVERTISED in variables:
        variables[_LISTENERS] = _HOST.sub("://0.0.0.0:", variables[_ADVERTISED])
    warnings = []
    level = environment.get(_ROOT_LEVEL, "").strip().upper() or "INFO"
    if level not in _LEVELS:
        warnings.append(f"{_ROOT_LEVEL}={level} is none of {', '.join(_LEVELS)}; INFO is used")
    if environment.get(_LOGGER_LEVELS):
        warnings.append(f"{_LOGGER_LEVELS} is ignored: the loggers of Kafka's classes do not exist here")
    return Container(variables, _cluster_id(environment), _LEVELS.get(level, "info"), tuple(warnings))


def _cluster_id(environment: Mapping[str, str]) -> str:
    given = environment.get("CLUSTER_ID", "").strip() or DEFAULT_CLUSTER_ID
    if not re.fullmatch(rf"[!-~]{{1,{MAX_CLUSTER_ID}}}", given):
        raise ConfigError(f"CLUSTER_ID={given!r} is not 1 to {MAX_CLUSTER_ID} visible characters of ASCII")
    return given
