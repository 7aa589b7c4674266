"""The query of `/state/view`: what the page at / asks for, and by what it can be sorted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl

from kbroker.web.sorting import Order, Sorted

SORTS: Final = {
    "partitions": ("health", "name", "size", "copylag"),
    "topics": ("health", "name", "partitions", "size"),
    "groups": ("health", "name", "members", "lag"),
    "transactions": ("age", "name"),
}
"""What each table can be sorted by; the first one is the default."""
ROWS: Final = {"partitions": 50, "topics": 25, "groups": 25, "transactions": 25}
MAX_QUERY: Final = 2_000


@dataclass(frozen=True, slots=True)
class Asked:
    """A request for the page's data."""

    search: str
    orders: tuple[Order, ...]

    @classmethod
    def parse(cls, query: str) -> Asked:
        """Errors: ValueError"""
        if len(query) > MAX_QUERY:
            raise ValueError(f"the query is longer than {MAX_QUERY} characters")
        given = dict(parse_qsl(query, max_num_fields=10))
        orders = tuple(Order.parse(given.pop(table, allowed[0]), allowed) for table, allowed in SORTS.items())
        search = given.pop("search", "").strip().casefold()
        if given:
            raise ValueError(f"unknown parameter {next(iter(given))!r}")
        return cls(search, orders)

    def order(self, table: str) -> Order:
        """The order of a table."""
        return self.orders[list(SORTS).index(table)]

    def table(self, name: str) -> Sorted:
        """An empty table."""
        return Sorted(self.order(name), ROWS[name])
