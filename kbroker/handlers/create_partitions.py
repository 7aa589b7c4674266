"""CreatePartitions: add partitions to topics."""

from __future__ import annotations

from kbroker.handlers import forwards
from wire.messages.create_partitions import CreatePartitionsRequest

create_partitions = forwards(CreatePartitionsRequest, versions="0-3")
