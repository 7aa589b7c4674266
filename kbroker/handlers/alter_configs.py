"""AlterConfigs: replace all settings of topics and brokers. Deprecated in Kafka, but librdkafka still sends it."""

from __future__ import annotations

from kbroker.handlers import forwards
from wire.messages.alter_configs import AlterConfigsRequest

alter_configs = forwards(AlterConfigsRequest, versions="0-2")
