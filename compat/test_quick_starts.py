"""The quick starts in docs/: a reader who copies every command gets what the page promises.

Each page runs in a network namespace of its own, so that its ports are free and its commands are the real ones. A block
of one command that runs a server is "in another terminal": it runs to the end of the page, or until a block that checks
the files of a stopped broker.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from compat.brokers import CHECKOUT, in_ci

PAGES = ("ci", "operator", "data-engineer", "protocol")
START_S, STOP_S, BLOCK_S = 60.0, 20.0, 120.0
SERVER = re.compile(r"kbroker (serve|cluster --brokers)\b")
NEW_NAMESPACE = ["unshare", *([] if os.geteuid() == 0 else ["--map-root-user"]), "--net", "sh", "-c"]


def blocks(page: str) -> list[str]:
    """The shell blocks of a page."""
    text = (CHECKOUT / "docs" / f"quickstart-{page}.md").read_text()
    return re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


@contextmanager
def terminal(directory: Path) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """A function that starts a script in a new network namespace, in a directory, with this checkout's commands."""
    up = "ip link set lo up && echo up && exec sleep infinity"
    holder = subprocess.Popen([*NEW_NAMESPACE, up], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert holder.stdout is not None
    try:
        if holder.stdout.readline() != "up\n":
            assert not in_ci(), "network namespaces are not allowed here"
            pytest.skip("network namespaces are not allowed here")
        user = [] if os.geteuid() == 0 else ["--user", "--preserve-credentials"]
        enter = ["nsenter", "--target", str(holder.pid), *user, "--net", "bash", "-euo", "pipefail", "-c"]
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        running: list[subprocess.Popen[str]] = []

        def start(script: str) -> subprocess.Popen[str]:
            found = subprocess.Popen(
                [*enter, script], cwd=directory, env={**os.environ, "PATH": path, "PYTHONPATH": str(CHECKOUT)},
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
            )  # fmt: skip
            running.append(found)
            return found

        try:
            yield start
        finally:
            for process in running:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
    finally:
        holder.kill()
        holder.communicate()


def wait_until_ready(server: subprocess.Popen[str]) -> None:
    assert server.stdout is not None
    deadline, said = time.monotonic() + START_S, []
    while time.monotonic() < deadline:
        line = server.stdout.readline()
        said.append(line)
        if line.startswith("kbroker") and " ready on " in line:
            return
        assert line, "".join(said)
    pytest.fail("".join(said))


@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_a_quick_start_succeeds(page: str, tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        assert not in_ci(), "curl is not installed"
        pytest.skip("curl is not installed")
    ran, servers = 0, []
    with terminal(tmp_path) as start:
        for block in blocks(page):
            if SERVER.match(block) and len(block.splitlines()) == 1:
                servers.append(start(f"exec {block}"))
                wait_until_ready(servers[-1])
                continue
            if block.startswith("kbroker verify"):
                for server in servers:
                    server.send_signal(signal.SIGINT)
                    assert server.wait(STOP_S) == 0
            process = start(block)
            said, _ = process.communicate(timeout=BLOCK_S)
            assert process.returncode == 0, f"{block}\n{said}"
            ran += 1
    assert ran


def test_the_quick_start_of_security_succeeds(tmp_path: Path) -> None:
    """Its certificates also satisfy strict checks, which Python 3.13 makes by default."""
    if shutil.which("kcat") is None:
        assert not in_ci(), "kcat is not installed"
        pytest.skip("kcat is not installed")
    page = (CHECKOUT / "docs" / "security.md").read_text()
    section = page.partition("## Quick start")[2].partition("\n## ")[0].replace("\n   ", "\n")  # blocks in a list
    files = iter(("server.properties", "admin.properties"))
    said = ""
    with terminal(tmp_path) as start:

        def run(script: str) -> str:
            process = start(script)
            said, _ = process.communicate(timeout=BLOCK_S)
            assert process.returncode == 0, f"{script}\n{said}"
            return said

        for kind, text in re.findall(r"^```(\w+)\n(.*?)^```", section, re.MULTILINE | re.DOTALL):
            if kind == "properties":
                (tmp_path / next(files)).write_text(text)
            elif SERVER.match(text):
                wait_until_ready(start(f"exec {text}"))
            else:
                said = run(text.replace("kbroker user create", "echo shop-password | kbroker user create"))
        assert "hello" in said.splitlines()
        refused = run("(echo x | kcat -F kcat.conf -b localhost:9092 -t other -P 2>&1) || true")
        assert "Topic authorization failed" in refused
        run("openssl verify -x509_strict -CAfile ca.pem server.crt")
