"""Files and directories that are removed from the disk after a delay.

Source  file.delete.delay.ms of Apache Kafka
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable


class Doomed:
    """The queue of names to remove.

    Shape       (due in monotonic ms, name)
    Concurrent  any thread may add while others remove: each step takes or puts one item
    """

    __slots__ = ("_items",)

    def __init__(self, items: Iterable[tuple[int, str]] = ()) -> None:
        self._items = deque(items)

    def __len__(self) -> int:
        return len(self._items)

    def add(self, due_ms: int, name: str) -> None:
        self._items.append((due_ms, name))

    def remove_due(self, now_ms: int, remove: Callable[[str], None]) -> int:
        """Call `remove` for each name that is due and return how many are gone, including names that did not exist.

        Failed removals are retried by the next call.
        Errors  the first OSError of `remove`, after all due names were tried
        """
        failure: OSError | None = None
        count = 0
        for _ in range(len(self._items)):
            try:
                item = self._items.popleft()
            except IndexError:
                break  # another thread took the last item
            due_ms, name = item
            if due_ms > now_ms:
                self._items.append(item)
                continue
            try:
                remove(name)
            except FileNotFoundError:
                pass
            except OSError as error:
                self._items.append(item)
                failure = failure or error
                continue
            count += 1
        if failure is not None:
            raise failure
        return count
