"""The broker as its handlers see it: metadata, partitions, and waiting on partitions. It does not use sockets."""

from kbroker.broker.appending import Appended
from kbroker.broker.broker import Broker

__all__ = ["Appended", "Broker"]
