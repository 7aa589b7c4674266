"""Apache Kafka 4.3.1 as an oracle and a rival: its jars, one node of it, and the main classes of its tools."""

from compat.kafka.libraries import Unavailable, libraries
from compat.kafka.node import KafkaNode
from compat.kafka.tools import run_tool, start_tool

__all__ = ["KafkaNode", "Unavailable", "libraries", "run_tool", "start_tool"]
