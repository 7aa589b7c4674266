"""The page of an audit: it is self-contained, shows the findings, and escapes all names."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest

from kbroker.spark.jobs.audit_page import page
from kbroker.spark.jobs.audit_report import AuditReport, PartitionView, SegmentView
from kbroker.tiered.scrubbing import Finding

EVIL = '<script>alert("x")</script>&"\''


class Read(HTMLParser):
    """Collects the tags, the text, and the tags that are still open."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def view(*segments: SegmentView, topic: str = "orders", exists: bool = True) -> PartitionView:
    return PartitionView(topic, "id", 0, exists, 0, 150, 200, 1_000, segments)


def segment(start: int, end: int, *problems: str, timestamp: int = 1_000_000, size: int = 1_000) -> SegmentView:
    return SegmentView(EVIL, start, end, size, timestamp, 0, "COPY_SEGMENT_FINISHED", True, problems)


def report(*partitions: PartitionView, findings: list[Finding] | None = None) -> AuditReport:
    made = AuditReport(f"the broker at {EVIL}", EVIL, 1_700_000_000_000, True)
    made.partitions, made.findings, made.warnings = list(partitions), findings or [], [EVIL]
    return made


def test_names_cannot_inject_html() -> None:
    found = [Finding("damage", EVIL, name=EVIL)]
    read = Read(page(report(view(segment(0, 99, EVIL), topic=EVIL), findings=found)))
    assert read.open == []
    assert not {"script", "link", "img", "iframe"} & {tag for tag, _ in read.tags}
    assert read.text.count(EVIL) >= 5


def test_the_page_loads_nothing() -> None:
    text = page(report(view(segment(0, 99))))
    assert "src=" not in text
    assert "url(" not in text
    assert "@import" not in text
    assert {attrs["href"] for _, attrs in Read(text).tags if "href" in attrs} == set()


def test_three_charts_have_a_bar_for_each_segment() -> None:
    first, second = view(segment(0, 99), segment(100, 149, "has a wrong CRC")), view(segment(0, 9), topic="other")
    read = Read(page(report(first, second)))
    kinds = [attrs["class"] for tag, attrs in read.tags if tag == "rect"]
    assert len([tag for tag, _ in read.tags if tag == "svg"]) == 3
    assert (kinds.count("tier"), kinds.count("bad"), kinds.count("local")) == (6, 3, 2)


def test_the_verdict_counts_findings_by_kind() -> None:
    assert "No findings." in page(report(view(segment(0, 99))))
    found = [Finding("damage", "x", name="a"), Finding("damage", "y", name="b"), Finding("gap", "z", name="c")]
    assert "3 findings: 2 damage, 1 gap" in page(report(findings=found))


def test_omitted_rows_are_counted() -> None:
    found = [Finding("damage", "x", name="a")] * 1_002
    read = Read(page(report(*(view(segment(0, 99), topic=f"t{number}") for number in range(1_201)), findings=found)))
    assert read.text.count("1,001 more partitions are not shown.") == 3
    assert read.text.count("and 2 more") == 1
    assert read.text.count("and 201 more") == 1


@pytest.mark.parametrize(
    "partitions",
    [
        [],
        [PartitionView("orders", "id", 0, False, None, None, None, None, (segment(5, 9),))],
        [view(segment(0, 0, timestamp=-1, size=0))],
        [view(segment(0, 1 << 62, timestamp=1 << 62, size=1 << 50))],
        [view(*(segment(at, at, timestamp=1_000) for at in range(50)))],
        [view(segment(0, 9), topic="t" * 249) for _ in range(300)],
    ],
)
def test_unusual_partitions_have_a_valid_page(partitions: list[PartitionView]) -> None:
    assert Read(page(report(*partitions))).open == []
