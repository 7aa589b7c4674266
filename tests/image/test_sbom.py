"""The image's bill of materials."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
STATUS = """\
Package: libc6
Status: install ok installed
Architecture: amd64
Version: 2.36-9+deb12u10
Description: GNU C Library
 with a second line

Package: removed
Status: deinstall ok config-files
Architecture: amd64
Version: 1:1.0
"""


def sbom(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "status").write_text(STATUS)
    command = [sys.executable, ROOT / "docker/sbom", tmp_path / "status"]
    found: dict[str, Any] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return found


def test_the_bill_lists_every_locked_requirement_and_every_debian_package(tmp_path: Path) -> None:
    found = sbom(tmp_path)
    assert (found["bomFormat"], found["specVersion"]) == ("CycloneDX", "1.6")
    assert found["metadata"]["component"]["name"] == "kbroker"
    urls = [one["purl"] for one in found["components"] if "purl" in one]
    locked = re.findall(r"^([a-z][\w.-]*)==", (ROOT / "requirements/run.txt").read_text(), re.MULTILINE)
    assert len(locked) > 10
    for name in locked:
        assert f"pkg:pypi/{re.sub('[-_.]+', '-', name)}@{version(name)}" in urls
    assert "pkg:deb/debian/libc6@2.36-9%2Bdeb12u10?arch=amd64" in urls
    assert not any("removed" in url for url in urls)
    assert len(set(urls)) == len(urls)


def test_the_bill_of_the_same_packages_is_the_same(tmp_path: Path) -> None:
    assert sbom(tmp_path) == sbom(tmp_path)
