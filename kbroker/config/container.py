"""Interprets a container's environment as the start scripts of the apache/kafka image do.

Most `KAFKA_*` variables are settings (see environment.py). This module does what the scripts do before that: it derives
the listeners from the advertised listeners, and reads the cluster id and the log level. One difference: Kafka's image
drops all of its defaults as soon as one setting is given; kbroker keeps its defaults for all other settings.

Source: docker/resources/common-scripts of Apache Kafka, `KafkaDockerWrapper`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

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


class Container(NamedTuple):
    """The result of `read_container`.

    Shape  variables are the ones to read settings from; cluster_id is for a new data directory; log_level is one of
           debug, info, warning, error; warnings are lines for the log
    """

    variables: Mapping[str, str]
    cluster_id: str
    log_level: str
    warnings: tuple[str, ...]

    def __repr__(self) -> str:
        """Without the variables, which may be secrets."""
        return f"Container({self.cluster_id}, {self.log_level})"


def read_container(environment: Mapping[str, str]) -> Container:
    """Interpret a container's environment.

    Errors  ConfigError for an invalid CLUSTER_ID
    """
    # `-e KAFKA_LISTENERS=` sets an empty variable. Like Kafka's scripts, treat it as unset.
    variables = {name: value for name, value in environment.items() if value or name not in (_LISTENERS, _ADVERTISED)}
    if _LISTENERS not in variables and _ADVERTISED in variables:
        variables[_LISTENERS] = _HOST.sub("://0.0.0.0:", variables[_ADVERTISED])
    warnings = []
    level = environment.get(_ROOT_LEVEL, "").strip().upper() or "INFO"
    if level not in _LEVELS:
        warnings.append(f"{_ROOT_LEVEL}={level} is not one of {', '.join(_LEVELS)}; using INFO")
    if environment.get(_LOGGER_LEVELS):
        warnings.append(f"{_LOGGER_LEVELS} is ignored: kbroker does not have the loggers of Kafka's classes")
    return Container(variables, _cluster_id(environment), _LEVELS.get(level, "info"), tuple(warnings))


def _cluster_id(environment: Mapping[str, str]) -> str:
    given = environment.get("CLUSTER_ID", "").strip() or DEFAULT_CLUSTER_ID
    if not re.fullmatch(rf"[!-~]{{1,{MAX_CLUSTER_ID}}}", given):
        raise ConfigError(f"CLUSTER_ID={given!r} is not 1 to {MAX_CLUSTER_ID} visible ASCII characters")
    return given
