"""Work in threads of its own, until the end of a block."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Self


class Background:
    """A context manager: each function runs in a thread. At the end of the block it sets `over` and waits for them."""

    def __init__(self, *work: Callable[[], None]) -> None:
        self.over = threading.Event()
        self._threads = [threading.Thread(target=each) for each in work]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        for thread in self._threads:
            thread.join()
