""".ci/audit, with a database of vulnerabilities on this machine."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

ROOT = Path(__file__).parents[2]


@contextmanager
def database(vulnerable: tuple[str, str]) -> Iterator[str]:
    """A server that knows one vulnerable version."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            queries = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["queries"]
            asked = [(one["package"]["name"], one["version"]) for one in queries]
            results = [{"vulns": [{"id": "PYSEC-1"}]} if pair == vulnerable else {} for pair in asked]
            body = json.dumps({"results": results}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


def audit(source: str, *files: Path) -> tuple[int, str]:
    command = [sys.executable, str(ROOT / ".ci" / "audit"), *map(str, files), "--source", source]
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


def test_a_silent_database_skips_the_check_aloud() -> None:
    code, said = audit("http://127.0.0.1:1/")
    assert code == 0
    assert said.startswith("audit: SKIPPED, the database of vulnerabilities does not answer")
