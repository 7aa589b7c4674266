"""A headless Chromium, driven by the DevTools protocol over two pipes; no library is needed.

Source: https://chromedevtools.github.io/devtools-protocol/
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import tempfile
import time
from base64 import b64decode
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

PATIENCE_S = 60
# Chromium reads commands from descriptor 3 and writes answers to descriptor 4.
FLAGS = (
    "--headless", "--remote-debugging-pipe", "--no-first-run", "--disable-gpu", "--disable-dev-shm-usage",
    "--disable-background-networking", "--disable-extensions", "--hide-scrollbars",
)  # fmt: skip


def program() -> str:
    """The path of Chromium; skips the test without it, except in CI."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        reason = "the page's tests need Chromium: `apt install chromium`"
        assert not os.environ.get("CI"), reason
        pytest.skip(reason)
    return found


def _moved(descriptor: int) -> int:
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(descriptor)
    return moved


class PageError(AssertionError):
    """A script failed, or the page violated its policy."""


class Chromium:
    """One browser with one page. Use as a context manager."""

    def __init__(self, *, width: int = 1200, height: int = 900) -> None:
        browser = program()  # first, because it may skip the test
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        # Descriptors above 9, so that the shell does not overwrite one while it makes 3 and 4 of them.
        commands, self._to = map(_moved, os.pipe())
        self._from, answers = map(_moved, os.pipe())
        flags = [*FLAGS, f"--window-size={width},{height}", f"--user-data-dir={self._profile.name}"]
        if os.geteuid() == 0:
            flags.append("--no-sandbox")  # its sandbox does not work for root
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$0" "$@" 3<&{commands} 4>&{answers}', browser, *flags, "about:blank"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(commands, answers),
        )
        os.close(commands)
        os.close(answers)
        self._number = 0
        self._received = b""
        self._session: str | None = None
        self.problems: list[str] = []

    def __enter__(self) -> Chromium:
        with ExitStack() as failing:
            failing.callback(self.close)
            target = self.ask("Target.createTarget", url="about:blank")["targetId"]
            self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Log"):
                self.ask(f"{domain}.enable")
            failing.pop_all()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the browser."""
        self._process.terminate()
        os.close(self._to)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._from)
        self._profile.cleanup()

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and wait for its answer."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            got = self._receive()
            if got.get("id") == self._number:
                assert "error" not in got, f"{method}: {got['error']}"
                answer: dict[str, Any] = got["result"]
                return answer
            self._note(got)

    def _receive(self) -> Mapping[str, Any]:
        while b"\0" not in self._received:
            more = os.read(self._from, 1 << 20)
            assert more, "Chromium has ended"
            self._received += more
        text, _, self._received = self._received.partition(b"\0")
        message: Mapping[str, Any] = json.loads(text)
        return message

    def _note(self, event: Mapping[str, Any]) -> None:
        if event.get("method") == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(event["params"]["exceptionDetails"])[:2_000])
        elif event.get("method") == "Log.entryAdded" and event["params"]["entry"]["source"] in (
            "security",
            "violation",
        ):
            self.problems.append(event["params"]["entry"]["text"])
        elif event.get("method") == "Page.javascriptDialogOpening":
            self.problems.append("a dialog opened")

    def open(self, url: str) -> None:
        """Go to a page."""
        error = self.ask("Page.navigate", url=url).get("errorText")
        assert not error, f"{url}: {error}"

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression, awaited if it is a promise."""
        got = self.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in got:
            raise PageError(json.dumps(got["exceptionDetails"])[:2_000])
        return got["result"].get("value")

    def until(self, expression: str) -> Any:
        """Wait until an expression is true; returns its value."""
        deadline = time.monotonic() + PATIENCE_S
        while not (value := self.evaluate(expression)):
            assert time.monotonic() < deadline, f"{expression} is not true within {PATIENCE_S} s\n{self.text()}"
            time.sleep(0.02)
        return value

    def text(self, selector: str = "body") -> str:
        """The visible text of an element."""
        return str(self.evaluate(f"document.querySelector({json.dumps(selector)}).innerText"))

    def click(self, selector: str) -> None:
        """Click an element."""
        self.evaluate(f"document.querySelector({json.dumps(selector)}).click()")

    def screenshot(self, path: Path) -> None:
        """Write what the page shows, including what one has to scroll to, as PNG."""
        shot = self.ask("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(b64decode(shot["data"]))
