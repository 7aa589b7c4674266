"""The page at /: one HTML file without outside assets, which reads `/state/view` again and again.

The page treats all data as text. Its Content-Security-Policy allows its own script and style by their hashes, and
requests to its own origin; so even a fault in the escaping could not run a foreign script or send data elsewhere.

Source: https://www.w3.org/TR/CSP3/
"""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode
from importlib.resources import files
from typing import Final

from kbroker.web.http import Reply

HTML: Final = "text/html; charset=utf-8"
_TEXT: Final = files("kbroker.web").joinpath("state.html").read_bytes()


def _hash(tag: bytes) -> str:
    (text,) = re.findall(rb"<%b[^>]*>(.*?)</%b>" % (tag, tag), _TEXT, re.DOTALL)
    return f"'sha256-{b64encode(hashlib.sha256(text).digest()).decode()}'"


POLICY: Final = (
    f"default-src 'none'; script-src {_hash(b'script')}; style-src {_hash(b'style')}; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)


def reply(_query: str) -> Reply:
    """The page."""
    headers = ("Content-Security-Policy", POLICY), ("Referrer-Policy", "no-referrer")
    return Reply(200, HTML, (_TEXT,), headers)
