"""Fixtures of the tests of the metadata log."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kbroker.runtime.disk import RealDisk
from tests.controller.metadata_node import Node


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., Node]:
    def begin(**options: object) -> Node:
        return Node(RealDisk(), str(tmp_path), **options)  # type: ignore[arg-type]

    return begin
