"""Escapes text so that a terminal can show it safely.

Much logged or printed text comes from clients or other brokers: names, ids, keys, error messages. A terminal executes
control characters in it, and bidirectional overrides reorder a line.
"""

from __future__ import annotations

import re
from typing import Final

# C0 except the tab, DEL, C1, direction marks and overrides, line separators, and surrogates, which cannot be encoded.
_CONTROLS: Final = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str) -> str:
    """The text on one line, with control characters except tabs escaped as in Python."""
    return _CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def visible_lines(text: str) -> str:
    """The same, but line feeds stay."""
    return "\n".join(map(visible, text.split("\n")))


def visible_json(text: str) -> str:
    """JSON text with its line feeds; other control characters are escaped as in JSON."""
    lines = (_CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", line) for line in text.split("\n"))
    return "\n".join(lines)
