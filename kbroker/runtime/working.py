"""What a worker process runs: it calls functions that it is told of by a pipe, one after the other.

    request  (function, its arguments)               by the standard input
    reply    (True, result) or (False, exception)    by the standard output

Both are pickled, in a frame of magic, length and CRC-32, so that half an answer is never taken for one. A function is
named by its module, which is imported when it is first called: this module imports next to nothing, since what a
process needs before it has done anything is memory that nobody else can use.

The process ends with its input: at once, also in the middle of a call, since whoever asked is gone, by `kill -9`
perhaps, and his successor may be at the same files. Signals that ask a terminal's or a service's processes to end are
for the one who asked, who then lets go of the pipe.
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
"""What a worker does may take longer while others have something to do, unless its argument is another niceness."""


class BrokenFrame(Exception):
    """What came by a pipe is no frame, or not all of one."""


def framed(value: object) -> bytes:
    """A value as it is sent. Errors: what pickle says of one that cannot be."""
    data = pickle.dumps(value, protocol=5)
    return FRAME.pack(MAGIC, len(data), zlib.crc32(data)) + data


def write(descriptor: int, frame: bytes) -> None:
    """Send all of a frame. Errors: OSError (nobody reads any more)."""
    left = memoryview(frame)
    while left:
        left = left[os.write(descriptor, left) :]


def read_frame(descriptor: int) -> Any:
    """The next value; EOFError where the pipe ends before one. Errors: BrokenFrame, OSError."""
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
        # The pipe is between two processes of one program, and nobody else has it.
        return pickle.loads(data)  # noqa: S301
    except Exception as error:  # a pickle that is none may raise anything
        raise BrokenFrame(f"a frame cannot be read: {type(error).__name__}: {error}") from error


def _read(descriptor: int, size: int) -> bytes:
    """So many bytes, or what there is before the pipe's end."""
    data = b""
    while len(data) < size and (more := os.read(descriptor, size - len(data))):
        data += more
    return data


def serve(requests: int, replies: int) -> None:
    """Answer requests until there are no more. Errors: BrokenFrame, OSError."""
    while True:
        try:
            function, arguments = read_frame(requests)
        except EOFError:
            return
        reply: tuple[bool, object]
        try:
            reply = True, function(*arguments)
        except MemoryError:
            return  # of this process; the other one may have some
        except Exception as error:  # noqa: BLE001  (whatever it is, it belongs to who asked)
            reply = False, error
        write(replies, framed(reply))


def _end_with(descriptor: int) -> None:
    """End this process as soon as nobody holds the other end of a pipe, whatever it is doing."""
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
    os.dup2(2, 1)  # what a function prints is no reply
    _thread.start_new_thread(_end_with, (0,))
    with suppress(BrokenFrame, OSError):
        serve(0, replies)
    os._exit(0)


if __name__ == "__main__":
    main()
