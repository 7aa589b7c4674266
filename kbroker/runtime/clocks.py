"""The clocks and the randomness of this process: all that a blocking client needs of the environment.

Importing trio takes as long as everything else that a command imports.
"""

from __future__ import annotations

import random
import time
from typing import ClassVar
from uuid import UUID

from mypy_extensions import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class RealClocks:
    """The part of `RealEnv` that waits for nothing."""

    def __init__(self) -> None:
        # Clients see ids from this generator, and must not be able to compute the next ones.
        self.random = random.SystemRandom()
        self.ahead_ms = 0

    def now_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    # The function itself, because the server calls it several times for each request.
    now_ns: ClassVar[staticmethod[[], int]] = staticmethod(time.monotonic_ns)

    @staticmethod
    def timestamp_ms() -> int:
        return time.time_ns() // 1_000_000

    def new_uuid(self) -> UUID:
        while True:
            made = UUID(int=self.random.getrandbits(128), version=4)
            # The first base64 digit is the top six bits; 62 is the dash, which command lines parse as an option.
            if made.int >> 122 != 62:
                return made
