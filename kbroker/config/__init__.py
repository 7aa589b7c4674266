"""The settings of a broker: declared once, read from every place that Kafka's users know."""

from kbroker.config.load import Layers, Settings
from kbroker.config.values import ConfigError

__all__ = ["ConfigError", "Layers", "Settings"]
