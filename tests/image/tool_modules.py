"""Imports modules of the image's tools, which are in no package."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

TOOLS = Path(__file__).parents[2] / "docker" / "kafka_tools"


@contextmanager
def tool_module(name: str) -> Iterator[Any]:
    """A module of the tools, for as long as the block takes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(TOOLS))
        before = set(sys.modules)
        yield import_module(name)
        for each in set(sys.modules) - before:
            if Path(getattr(sys.modules[each], "__file__", None) or "/").parent == TOOLS:
                del sys.modules[each]
