"""The example of docs/tiered-plugins.md passes the conformance tests."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from types import ModuleType

from kbroker.testing.remote_storage import RemoteStorageConformance
from kbroker.tiered.api import RemoteStorageManager
from kbroker.tiered.plugins import BUILT_IN, METADATA_GROUP, STORAGE_GROUP

PAGE = (Path(__file__).parents[2] / "docs" / "tiered-plugins.md").read_text()
EXAMPLE, TESTS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def example() -> ModuleType:
    module = ModuleType("acme_tier")
    exec(compile(EXAMPLE, "docs/tiered-plugins.md", "exec"), module.__dict__)
    return module


class TestExample(RemoteStorageConformance):
    def make_manager(self, directory: Path) -> RemoteStorageManager:
        manager: RemoteStorageManager = example().AcmeStorage()
        manager.configure({"root": str(directory)})
        return manager


def test_the_page_names_the_groups_and_built_in_managers() -> None:
    (toml,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    assert tomllib.loads(toml) == {"project": {"entry-points": {STORAGE_GROUP: {"acme": "acme_tier:AcmeStorage"}}}}
    assert METADATA_GROUP in PAGE
    assert all(f"`{name}`" in PAGE for group in BUILT_IN.values() for name in group)
    assert "RemoteStorageConformance" in TESTS
