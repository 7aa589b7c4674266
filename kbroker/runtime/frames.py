"""Removes stack frames from errors that are stored.

An error refers to the stack frames that it passed through, and these to their local variables. If one of them refers to
the object that stores the error, the cycle is freed only by the garbage collector, perhaps much later. Such a cycle can
keep pieces of segments and old replies in memory.
"""

from __future__ import annotations

from typing import TypeVar

Error = TypeVar("Error", bound=BaseException)


def without_frames(error: Error) -> Error:
    """Remove the tracebacks of an error and of its causes; return the same error."""
    one: BaseException | None = error
    while one is not None:
        one.__traceback__ = None
        one = one.__cause__ or one.__context__
    return error
