"""Run the card on Apache Kafka, kbroker and kfake, and write the results into docs/report-card.md:
`python -m compat.card.compare`.

Kafka and kbroker offer everything here: a tier in a directory, transaction.version 2 and group.version 1.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path

from compat.card import kfake, report
from compat.card.registry import all_rows
from compat.card.runner import ACCEPTED, DIFFERS, EQUAL, NOT_OFFERED, Card, Result, Runner, recording
from compat.features import raise_features
from compat.tiered.site import Site

PAGE = Path(__file__).parents[2] / "docs" / "report-card.md"
FEATURES = {"transaction.version": 2, "group.version": 1}
SHOWN = 20
ADVERTISED = " is advertised in Kafka's versions"

RESULTS = "## Results\n"


@contextmanager
def everything(*, is_kafka: bool) -> Iterator[str]:
    """A broker that offers everything; yields its address."""
    with tempfile.TemporaryDirectory(prefix="card-", ignore_cleanup_errors=True) as directory:
        site = Site.in_directory(Path(directory), is_kafka=is_kafka)
        try:
            site.broker.start()
            raise_features(site.address, FEATURES)
            yield site.address
        finally:
            site.broker.kill()


def cards() -> dict[str, Card]:
    """The card of each broker."""
    found = {}
    brokers = {
        report.KAFKA: everything(is_kafka=True),
        "kbroker": everything(is_kafka=False),
        f"kfake {version()}": kfake.running(),
    }
    for name, running in brokers.items():
        with running as address:
            found[name] = Runner(address).run(all_rows(), recording())
        print(f"{name}: {report.summary(found[name])}", file=sys.stderr)
    return found


def version() -> str:
    """The version of kfake, from its go.mod."""
    text = (Path(kfake.__file__).parent / "go.mod").read_text()
    found = re.search(r"pkg/kfake v\S+-(\d{8})\d+-(\w+)", text)
    assert found is not None
    return f"of {found[1]} ({found[2][:7]})"


def page(found: dict[str, Card]) -> str:
    """The page: its text as it is, and new results."""
    parts = [
        PAGE.read_text(encoding="utf-8").partition(RESULTS)[0],
        RESULTS,
        "\n| broker | rows | " + " | ".join(report.STATUSES) + " | time |\n",
    ]
    parts.append("|---|" + "---:|" * (len(report.STATUSES) + 2) + "\n")
    for name, card in found.items():
        counts = " | ".join(str(card.count(status)) for status in report.STATUSES)
        parts.append(f"| {name} | {len(card.results)} | {counts} | {card.seconds:.0f} s |\n")
    parts.append("\nRows that are equal, by area:\n\n| area | rows | " + " | ".join(found) + " |\n")
    parts.append("|---|" + "---:|" * (len(found) + 1) + "\n")
    first = next(iter(found.values()))
    for area in report.areas(first):
        total = sum(each.row.area == area for each in first.results)
        counts = " | ".join(str(card.count(EQUAL, area)) for card in found.values())
        parts.append(f"| {area} | {total} | {counts} |\n")
    for name, card in found.items():
        parts += _details(name, card)
    return "".join(parts)


def _details(name: str, card: Card) -> Iterator[str]:
    if card.count(EQUAL) == len(card.results):
        return
    yield f"\n### {name}\n\n"
    if card.gone:
        yield f"It ended: {_without_address(card.gone, card)}.\n\n"
    for status in (DIFFERS, ACCEPTED):
        results = [each for each in card.results if each.status == status]
        # The first rows of each area, so that all areas are shown.
        firsts = [list(islice((one for one in results if one.row.area == area), 2)) for area in report.areas(card)]
        shown = results if len(results) <= SHOWN else list(chain(*firsts))
        if shown:
            more = "" if len(shown) == len(results) else ", the first of each area"
            yield f"{len(results)} rows: {status}{more}.\n\n| row | where | Kafka | {name} |\n|---|---|---|---|\n"
            yield from (_line(each) for each in shown)
            yield "\n"
    missing = [each for each in card.results if each.status == NOT_OFFERED]
    if missing:
        yield f"{len(missing)} rows: not offered.\n\n"
    for text in dict.fromkeys(each.text for each in missing):
        rows = ", ".join(each.row.name.removesuffix(ADVERTISED) for each in missing if each.text == text)
        yield f"- {_cell(_without_address(text, card))}: {rows}\n"


def _line(result: Result) -> str:
    """A row of the table: its first difference."""
    where, theirs, ours = result.differences[0] if result.differences else (result.text, "", "")
    return f"| {_cell(result.row.id)} | {_cell(where)} | {_cell(theirs)} | {_cell(ours)} |\n"


def _without_address(text: str, card: Card) -> str:
    return text.replace(f" at {card.place}", "")


def _cell(text: str) -> str:
    """Text for a cell of a table."""
    short = text if len(text) <= 100 else text[:97] + "..."
    return short.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


def main() -> int:
    """Write the page; 1 if Kafka or kbroker differs."""
    found = cards()
    PAGE.write_text(page(found).rstrip() + "\n", encoding="utf-8")
    return 0 if all(card.is_equal for name, card in found.items() if not name.startswith("kfake")) else 1


if __name__ == "__main__":
    sys.exit(main())
