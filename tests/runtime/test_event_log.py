"""Log lines, especially those with text from clients."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.runtime.event_log import configure, escape, get_logger

logger = get_logger("kbroker.test")


@pytest.fixture(autouse=True)
def restore_logging() -> Iterator[None]:
    root = logging.getLogger("kbroker")
    before = root.handlers[:], root.level, root.propagate
    yield
    root.handlers[:], root.propagate = before[0], before[2]
    root.setLevel(before[1])


def written(*, as_json: bool = False, **fields: object) -> str:
    stream = io.StringIO()
    configure(as_json=as_json, stream=stream)
    logger.info("topic created", **fields)
    return stream.getvalue()


def test_a_line_has_the_event_and_its_fields() -> None:
    line = written(topic="orders", partitions=6)
    assert datetime.fromisoformat(line[:23]), "local date and time"
    assert line[23:] == " INFO  topic created topic=orders partitions=6\n"


def test_json_has_one_object_a_line_with_typed_fields() -> None:
    event = json.loads(written(as_json=True, topic="orders", partitions=6, rack=None))
    assert event.pop("time") > 0
    assert event == {
        "level": "INFO",
        "module": "kbroker.test",
        "event": "topic created",
        "topic": "orders",
        "partitions": 6,
        "rack": None,
    }


def test_x5_a_message_with_client_text_stays_on_its_line() -> None:
    stream = io.StringIO()
    configure(stream=stream)
    logger.warning("cannot make a\n00:00:00.000 INFO  all is well\x1b[2J")
    assert stream.getvalue().endswith(r" WARNING cannot make a\n00:00:00.000 INFO  all is well\x1b[2J" + "\n")


@given(text=st.text())
def test_x5_no_client_string_begins_a_line_or_moves_a_cursor(text: str) -> None:
    word = escape(text)
    assert word.isascii()
    assert word.isprintable()
    if word.startswith('"'):
        assert json.loads(word) == text
    else:
        assert word == text
        assert " " not in word
        assert "=" not in word


@pytest.mark.parametrize("as_json", [False, True])
def test_x5_a_hostile_field_stays_on_its_line(as_json: bool) -> None:
    hostile = "x\n12:00:00 ERROR forged\r\x1b[2J\x7f\u2028"
    line = written(as_json=as_json, client_id=hostile)
    assert line.count("\n") == 1
    assert line[:-1].isprintable()
    assert line.isascii()


def test_a_long_value_is_cut() -> None:
    assert len(written(client_id="x" * 100_000)) < 1_000


@pytest.mark.parametrize("as_json", [False, True])
def test_an_exception_has_a_traceback_without_control_characters(as_json: bool) -> None:
    stream = io.StringIO()
    configure(as_json=as_json, stream=stream)
    try:
        raise ValueError("from a client: \x1b[2J")
    except ValueError:
        logger.exception("fault", api="Produce")
    text = stream.getvalue()
    assert "Traceback" in text
    assert "test_event_log.py" in text
    assert "\x1b" not in text
    assert text.count("\n") == 1 or not as_json


def test_events_below_the_level_are_not_written() -> None:
    stream = io.StringIO()
    configure(level="WARNING", stream=stream)
    logger.info("nothing")
    logger.debug("nothing")
    logger.warning("something")
    assert stream.getvalue().count("\n") == 1
