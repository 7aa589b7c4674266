"""Errors that are kept, as an answer or for all who wait for the same.

An error refers to the frames that it came through, and these to what they were at. Where one of them refers to the one
who keeps the error, nothing of that goes before the collector of garbage comes by, which may be much later: pieces of
segments, and answers that left long ago.
"""

from __future__ import annotations

from typing import TypeVar

Error = TypeVar("Error", bound=BaseException)


def without_frames(error: Error) -> Error:
    """The error itself; neither it nor what led to it refers to any frame from now on."""
    one: BaseException | None = error
    while one is not None:
        one.__traceback__ = None
        one = one.__cause__ or one.__context__
    return error
