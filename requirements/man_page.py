"""Prints the man page, from the parsers: `python -m requirements.man_page > docs/kbroker.1`."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterator

from kbroker import __version__
from kbroker.cli import _parser
from kbroker.cli._completing import _subparsers, help_of

_END = r"""
.SH EXIT STATUS
.TP
0
success
.TP
1
the operation failed
.TP
2
the command line is wrong
.TP
3
a check has found damage, or records that could not be decoded
.TP
130, 143
interrupted by Ctrl-C or SIGTERM
.SH ENVIRONMENT
.TP
XDG_DATA_HOME
directory of the default data directory
.SH SEE ALSO
.BR kcat (1)
""".strip()


def page() -> str:
    """The page in troff's man macros."""
    # The defaults in the texts must not depend on who builds the page.
    os.environ["XDG_DATA_HOME"] = "~/.local/share"
    parser = _parser([])
    lines = [
        f'.TH KBROKER 1 "" "kbroker {__version__}"',
        ".SH NAME",
        r"kbroker \- a Kafka-compatible broker, and its command line tools",
        ".SH SYNOPSIS",
        ".B kbroker",
        r"\fICOMMAND\fR [\fIFLAG\fR ...]",
        ".SH DESCRIPTION",
        _text(parser.description or ""),
        ".SH COMMANDS",
    ]
    below = _subparsers(parser)
    for each in below._choices_actions:
        lines += _command(below.choices[each.dest])
    return "\n".join([*lines, _END, ""])


def _command(parser: argparse.ArgumentParser) -> Iterator[str]:
    yield f".SS {_text(parser.prog)}"
    yield _text(parser.description or "")
    below = _subparsers(parser)
    for action in parser._actions:
        if action is below or not action.help or "--help" in action.option_strings:
            continue
        yield ".TP"
        yield _names(parser, action)
        yield _text(help_of(parser, action))
    if below is not None:
        for each in below._choices_actions:
            yield from _command(below.choices[each.dest])


def _names(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    """The line with a flag's names and its value, or the name of an argument."""
    formatter = parser._get_formatter()
    if not action.option_strings:
        return rf"\fI{_text(str(action.metavar or action.dest))}\fR"
    names = ", ".join(rf"\fB{_text(each)}\fR" for each in action.option_strings)
    value = formatter._format_args(action, action.dest.upper()) if action.nargs != 0 else ""
    return rf"{names} \fI{_text(value)}\fR" if value else names


def _text(text: str) -> str:
    """A text that troff prints as it is."""
    escaped = " ".join(text.split()).replace("\\", r"\e").replace("-", r"\-")
    return re.sub(r"^([.'])", r"\\&\1", escaped)


if __name__ == "__main__":
    sys.stdout.write(page())
