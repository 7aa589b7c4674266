"""What a mutant is: patches of source, and why a checker must find it."""

from __future__ import annotations

from typing import NamedTuple


class Patch(NamedTuple):
    """One replacement in the source of a module; `old` occurs there exactly once."""

    module: str
    old: str
    new: str

    def apply(self, source: str) -> str:
        """The patched source. Errors: AssertionError if the source has changed so that the patch does not fit."""
        count = source.count(self.old)
        assert count == 1, f"the text to replace occurs {count} times in {self.module}:\n{self.old}"
        return source.replace(self.old, self.new)


class Mutant(NamedTuple):
    """One planted defect.

    Shape  why is a sentence about the defect; expected names the checkers that may find it, none if only other tests do
    """

    name: str
    why: str
    expected: tuple[str, ...]
    patches: tuple[Patch, ...]
