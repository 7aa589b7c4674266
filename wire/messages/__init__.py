"""The requests and responses, one file an API, named by Kafka: `ls` shows what is declared.

A module enters its classes into the registry (wire.schema.apis) when it is imported, so a program that serves few APIs
loads few. Whether and in which versions an API is served is not decided here.
"""

from __future__ import annotations

import importlib
import pkgutil


def load_all() -> None:
    """Import every module of this package, so that wire.schema.apis() names every API."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
