"""The broker's settings. Each is declared once; values come from files, flags, the environment and dynamic configs."""

from kbroker.config.load import Layers, Settings
from kbroker.config.values import ConfigError

__all__ = ["ConfigError", "Layers", "Settings"]
