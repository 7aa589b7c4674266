""".ci/audit, with a database of vulnerabilities on this machine."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


KNOWN = {
    "id": "PYSEC-1",
    "aliases": ["CVE-1"],
    "affected": [
        {
            "package": {"name": "Some_Package", "ecosystem": "PyPI"},
            "ranges": [
                {"type": "GIT", "events": [{"introduced": "0"}]},
                {"type": "ECOSYSTEM", "events": [{"introduced": "1.2"}, {"fixed": "1.10"}, {"introduced": "2.0"}]},
            ],
            "versions": ["1.2"],
        }
    ],
}


@contextmanager
def database(vulnerable: tuple[str, str]) -> Iterator[str]:
    """A server that knows one vulnerable version."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            body = json.dumps(self.several(asked) if self.path == "/querybatch" else self.one(asked)).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def several(self, asked: dict[str, Any]) -> dict[str, Any]:
            pairs = [(one["package"]["name"], one["version"]) for one in asked["queries"]]
            return {"results": [{"vulns": [{"id": "PYSEC-1"}]} if pair == vulnerable else {} for pair in pairs]}

        def one(self, asked: dict[str, Any]) -> dict[str, Any]:
            """The second page has what is known."""
            if asked["package"]["name"] != vulnerable[0]:
                return {}
            withdrawn = KNOWN | {"id": "PYSEC-2", "withdrawn": "2024-01-01T00:00:00Z"}
            return {"vulns": [KNOWN]} if "page_token" in asked else {"vulns": [withdrawn], "next_page_token": "x"}

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


SILENT = "http://127.0.0.1:1"
"""A database that does not answer."""


def audit(source: str, *arguments: Path | str) -> tuple[int, str]:
    command = [sys.executable, str(ROOT / ".ci" / "audit"), *map(str, arguments), "--source", source]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout


def test_a_vulnerable_pin_fails_and_is_named(tmp_path: Path) -> None:
    lock = tmp_path / "run.txt"
    lock.write_text("Some_Package[extra]==1.2 ; python_version < '3.14' \\\n    --hash=sha256:00\nother==3\n")
    with database(("some-package", "1.2")) as source:
        code, said = audit(source, lock)
    assert code == 1
    assert "some-package 1.2 (run.txt): PYSEC-1" in said


def test_our_pins_are_all_looked_up() -> None:
    with database(("none", "0")) as source:
        code, said = audit(source)
    assert code == 0, said
    assert int(said.split()[3]) > 50


def test_the_snapshot_in_the_repository_replaces_a_silent_database_aloud() -> None:
    code, said = audit(SILENT)
    assert code == 0, said
    assert re.match(
        r"audit: the database of vulnerabilities does not answer \(.*\)\n"
        r"audit: its substitute is the snapshot of \d{4}-\d\d-\d\d, which is \d+ days old\n",
        said,
    )
    assert re.search(r"audit: 0 of \d{3} pinned versions have known vulnerabilities", said)


def snapshot(path: Path, lock: Path, *, days: int = 0) -> Path:
    """A snapshot that was made so many days ago."""
    with database(("some-package", "1.2")) as source:
        code, said = audit(source, lock, "--refresh", "--snapshot", path)
    assert code == 0, said
    written = json.loads(path.read_text())
    made = datetime.now(UTC).date() - timedelta(days=days)
    path.write_text(json.dumps(written | {"date": made.isoformat()}))
    return path


@pytest.mark.parametrize(
    ("version", "affected"),
    [("1.1", False), ("1.2", True), ("1.9.1", True), ("1.10", False), ("2.0rc1", False), ("2.0", True), ("3", True)],
)
def test_the_snapshot_finds_versions_by_ranges(tmp_path: Path, version: str, affected: bool) -> None:
    lock = tmp_path / "run.txt"
    lock.write_text(f"some-package=={version}\n")
    code, said = audit(SILENT, lock, "--snapshot", snapshot(tmp_path / "advisories.json", lock))
    assert code == affected
    assert (f"some-package {version} (run.txt): PYSEC-1" in said) == affected


def test_a_snapshot_that_is_old_or_lacks_a_package_fails_when_strict(tmp_path: Path) -> None:
    lock, more = tmp_path / "run.txt", tmp_path / "more.txt"
    lock.write_text("some-package==1.1\n")
    more.write_text("new-package==1\n")
    now, old = (snapshot(tmp_path / f"{days}.json", lock, days=days) for days in (30, 31))
    assert audit(SILENT, lock, "--snapshot", now, "--strict")[0] == 0
    for arguments, why in (((lock, "--snapshot", old), "OUTDATED"), ((lock, more, "--snapshot", now), "new-package")):
        code, said = audit(SILENT, *arguments)
        assert code == 0
        assert why in said
        assert audit(SILENT, *arguments, "--strict")[0] == 1
