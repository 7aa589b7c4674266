"""The broker as its handlers see it: metadata, partitions, and what may wait on them. It knows no socket."""

from kbroker.broker.appending import Appended
from kbroker.broker.broker import AdvertisedNode, Broker

__all__ = ["AdvertisedNode", "Appended", "Broker"]
