"""The program of a worker process: it reads calls from a pipe and runs them one after another.

    request  (function, its arguments)               by the standard input
    reply    (True, result) or (False, exception)    by the standard output

Both are pickled; a pickle marks its own end, so a truncated one is detected. A function's module is imported at its
first call. This module imports very little, to keep the memory of an idle worker small.

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
from contextlib import suppress
from typing import BinaryIO, Final

NICENESS: Final = 10
"""The default niceness of a worker: its work may take longer while other processes are busy."""


def serve(requests: BinaryIO, replies: BinaryIO) -> None:
    """Answer requests until the pipe ends. Errors: OSError, and those of pickle."""
    while True:
        try:
            # The data is trusted: only the two processes of this program use the pipe.
            function, arguments = pickle.load(requests)  # noqa: S301
        except EOFError:
            return
        reply: tuple[bool, object]
        try:
            reply = True, function(*arguments)
        except MemoryError:
            return  # end this process; the parent may have more memory
        except Exception as error:  # noqa: BLE001  (every error goes to the caller)
            reply = False, error
        replies.write(pickle.dumps(reply, protocol=5))
        replies.flush()


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
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output that a function prints must not mix with replies
    _thread.start_new_thread(_end_with, (0,))
    with suppress(OSError):
        serve(sys.stdin.buffer, replies)
    os._exit(0)


if __name__ == "__main__":
    main()
