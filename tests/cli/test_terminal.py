"""Tables, styles and lines drawn in place, as a terminal gets them."""

from __future__ import annotations

import io
import sys

import pytest

from kbroker.cli._say import say
from kbroker.cli._table import print_table
from kbroker.cli._terminal import InPlace, progress, show


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def opened(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A terminal that is standard output and standard error."""
    out = Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", out)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return out


def test_a_table_is_folded_to_the_width_of_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = opened(monkeypatch)
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("NO_COLOR", "1")
    print_table("", ("name", "offset"), [("x" * 70, 5), ("名前" * 20, 123)])
    lines = terminal.getvalue().splitlines()
    assert max(map(len, lines)) <= 40
    assert terminal.getvalue().count("x") == 70
    assert terminal.getvalue().count("名前") >= 19, "a fold may part two of them"
    assert [line.rsplit(maxsplit=1)[-1] for line in lines if line.endswith(("   5", " 123"))] == ["5", "123"]
    wide = [line for line in lines if "名" in line]
    assert all(2 * sum(not each.isascii() for each in line.split("   ")[0]) <= 31 for line in wide)


def test_hostile_text_cannot_move_the_cursor(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = opened(monkeypatch)
    print_table("a\x1b[2J", ("b\x1b[2J",), [("c\x1b[2J",)])
    show(("d\x1b[2J", "red"))
    assert "\x1b[2J" not in terminal.getvalue()


def test_styles_end_with_their_text_and_obey_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = opened(monkeypatch)
    show(("a", "bold red"), ("b ", ""), ("  ", "dim"))
    monkeypatch.setenv("NO_COLOR", "1")
    show(("a", "bold red"))
    assert terminal.getvalue() == "\x1b[1;31ma\x1b[0mb\na\n"


def test_lines_replace_the_lines_before(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = opened(monkeypatch)
    lines = InPlace(terminal)
    lines.draw(["a", "b"])
    lines.draw(["c"])
    lines.erase()
    lines.erase()
    first, second = "\x1b[?7la\nb\n\x1b[?7h", "\x1b[?7lc\n\x1b[?7h"
    assert terminal.getvalue() == f"{first}\x1b[2A\x1b[J{second}\x1b[1A\x1b[J"


def test_what_is_printed_appears_above_the_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = opened(monkeypatch)
    with progress() as line:
        line.show("checking", 1, 2, "1/2 MiB")
        say("a finding")
    text = terminal.getvalue()
    assert "checking ━━━━━━━━━━━━━━━━━━━━╺" in text
    assert text.endswith("\x1b[1A\x1b[Ja finding\n")
