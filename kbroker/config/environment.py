"""Settings from `KAFKA_*` environment variables, as in the apache/kafka image.

`KAFKA_LOG_RETENTION_MS` is `log.retention.ms`: one underscore is a dot, two are an underscore, three are a dash. Only
the image's entry point reads them, so that a variable left in a shell cannot change a broker that is started there.
An unknown variable is a warning, not an error. Source: `KafkaDockerWrapper` of Apache Kafka 4.3.1.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from kbroker.config.catalogue import BROKER, broker_setting, unknown

PREFIX = "KAFKA_"
# Kafka's start scripts read these variables. They are not settings, so they cause no warning.
_SCRIPTS = (
    "KAFKA_HEAP_OPTS",
    "KAFKA_OPTS",
    "KAFKA_JMX_",
    "KAFKA_JVM_PERFORMANCE_OPTS",
    "KAFKA_GC_LOG_OPTS",
    "KAFKA_LOG4J_",
    "KAFKA_DEBUG",
    "KAFKA_HOME",
    "KAFKA_VERSION",
)
_LOGIN_CONFIG = re.compile(r"""-Djava\.security\.auth\.login\.config==?(?:"([^"]+)"|([^\s"']+))""")
_REPLACEMENTS = {1: ".", 2: "_", 3: "-"}


def setting_name(variable: str) -> str:
    """The key that a variable stands for: `KAFKA_A_B__C___D` is `a.b_c-d`."""
    return re.sub("_+", lambda run: _REPLACEMENTS.get(len(run[0]), run[0]), variable.removeprefix(PREFIX).lower())


def jaas_file(variables: Mapping[str, str]) -> dict[str, str]:
    """The setting for the file of login modules that KAFKA_OPTS names for Java, if it does."""
    match = _LOGIN_CONFIG.search(variables.get("KAFKA_OPTS", ""))
    return {} if match is None else {"kbroker.jaas.file": match[1] or match[2]}


def from_environment(variables: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """The settings in these environment variables, and warnings about unknown `KAFKA_*` variables."""
    found = jaas_file(variables)
    warnings: list[str] = []
    for variable, value in sorted(variables.items()):
        if not variable.startswith(PREFIX) or variable.startswith(_SCRIPTS):
            continue
        name = setting_name(variable)
        if broker_setting(name) is None:
            warnings.append(f"{variable} is ignored: {unknown(name, BROKER)}")
        else:
            found[name] = value
    return found, warnings
