"""The requests and responses, one file per API, with Kafka's names.

A module adds its classes to the registry (wire.schema.apis) when it is imported, so a program that serves few APIs
loads few. Other modules decide whether and in which versions an API is served.
"""

from __future__ import annotations

import importlib
import pkgutil


def load_all() -> None:
    """Import every module of this package, so that wire.schema.apis() names every API."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
