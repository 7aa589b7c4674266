"""The program of a worker process: it reads calls from a pipe and runs them one after another.

    request  (function, its arguments)               by the standard input
    reply    (True, result) or (False, exception)    by the standard output

Both are pickled, in a frame with magic, length and CRC-32, so that a truncated reply is detected. A function's module
is imported at its first call. This module imports very little, to keep the memory of an idle worker small.

The process ends as soon as its input ends, even in the middle of a call: its parent has ended, perhaps by `kill -9`,
and the next broker may already use the same files. The worker ignores the signals that a terminal or a service manager
sends to all processes: the parent handles them and closes the pipe.
"""

from __future__ import annotations

import _thread
import os
import pickle
import select
import signal
import sys
import zlib
from contextlib import suppress
from struct import Struct
from typing import Any, Final

FRAME: Final = Struct(">4sII")  # magic, length and CRC-32 of what follows
MAGIC: Final = b"kbw1"
MAX_FRAME_BYTES: Final = 64 << 20
NICENESS: Final = 10
"""The default niceness of a worker: its work may take longer while other processes are busy."""


class BrokenFrame(Exception):
    """The bytes from a pipe are not a complete frame."""


def framed(value: object) -> bytes:
    """Pickle a value into a frame. Errors: those of pickle."""
    data = pickle.dumps(value, protocol=5)
    return FRAME.pack(MAGIC, len(data), zlib.crc32(data)) + data


def write(descriptor: int, frame: bytes) -> None:
    """Send a whole frame. Errors: OSError (the reader has closed the pipe)."""
    left = memoryview(frame)
    while left:
        left = left[os.write(descriptor, left) :]


def read_frame(descriptor: int) -> Any:
    """The next value. Errors: EOFError at the end of the pipe, BrokenFrame, OSError."""
    head = _read(descriptor, FRAME.size)
    if not head:
        raise EOFError
    if len(head) < FRAME.size:
        raise BrokenFrame("the pipe ended within a frame's head")
    magic, size, checksum = FRAME.unpack(head)
    if magic != MAGIC or size > MAX_FRAME_BYTES:
        raise BrokenFrame(f"no frame begins with {head!r}")
    data = _read(descriptor, size)
    if len(data) < size:
        raise BrokenFrame(f"the pipe ended after {len(data)} bytes of {size}")
    if zlib.crc32(data) != checksum:
        raise BrokenFrame("a frame's CRC is wrong")
    try:
        # The data is trusted: only the two processes of this program use the pipe.
        return pickle.loads(data)  # noqa: S301
    except Exception as error:  # a malformed pickle may raise any exception
        raise BrokenFrame(f"a frame cannot be read: {type(error).__name__}: {error}") from error


def _read(descriptor: int, size: int) -> bytes:
    """`size` bytes; fewer at the end of the pipe."""
    data = b""
    while len(data) < size and (more := os.read(descriptor, size - len(data))):
        data += more
    return data


def serve(requests: int, replies: int) -> None:
    """Answer requests until the pipe ends. Errors: BrokenFrame, OSError."""
    while True:
        try:
            function, arguments = read_frame(requests)
        except EOFError:
            return
        reply: tuple[bool, object]
        try:
            reply = True, function(*arguments)
        except MemoryError:
            return  # end this process; the parent may have more memory
        except Exception as error:  # noqa: BLE001  (every error goes to the caller)
            reply = False, error
        write(replies, framed(reply))


def _end_with(descriptor: int) -> None:
    """End this process as soon as the other end of a pipe is closed, even during a call."""
    hung_up = select.poll()
    hung_up.register(descriptor, 0)
    hung_up.poll()
    os._exit(0)


def main() -> None:
    """Work for the process at the other end of the standard input and output."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    with suppress(OSError):
        os.nice(int(sys.argv[1]) if len(sys.argv) > 1 else NICENESS)
    replies = os.dup(1)
    os.dup2(2, 1)  # output that a function prints must not mix with replies
    _thread.start_new_thread(_end_with, (0,))
    with suppress(BrokenFrame, OSError):
        serve(0, replies)
    os._exit(0)


if __name__ == "__main__":
    main()
