"""Text that a terminal shows and does not obey.

Much of what is logged or printed was sent by clients: names, ids, keys, error messages of brokers. A terminal acts on
control characters in it, and bidirectional overrides show a line in another order.
"""

from __future__ import annotations

import re
from typing import Final

# C0 but the tab, DEL, C1, marks and overrides of direction, line separators, and surrogates, which cannot be encoded.
_CONTROLS: Final = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str) -> str:
    """The text on one line, with control characters as Python escapes them; tabs stay."""
    return _CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def visible_lines(text: str) -> str:
    """The same with the line feeds of the text."""
    return "\n".join(map(visible, text.split("\n")))


def visible_json(text: str) -> str:
    """The lines of JSON, with the escapes of JSON."""
    lines = (_CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", line) for line in text.split("\n"))
    return "\n".join(lines)
