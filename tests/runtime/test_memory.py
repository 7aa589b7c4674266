import gc
import itertools
import subprocess
import sys

from kbroker.runtime.memory import EXPENSIVE_NS, spare_lasting_objects

PROGRAM = """
import resource, sys
import gc
import itertools

from kbroker.runtime.memory import EXPENSIVE_NS, keep_freed_memory, spare_lasting_objects
if sys.argv[1] == "keep":
    assert keep_freed_memory()
def faults_of(count):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for size in range(count):
        # two at once, as a request and a copy of it, of sizes that grow
        first, second = bytearray(900_000 + size * 4096), bytearray(900_000 + size * 4096)
        del first, second
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults_of(5)
print(faults_of(200))
"""


def faults(how: str) -> int:
    done = subprocess.run([sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, check=True)
    return int(done.stdout)


def test_large_buffers_reuse_the_same_pages() -> None:
    assert faults("keep") * 5 < faults("leave")


def test_an_expensive_full_collection_freezes_its_objects() -> None:
    clock = itertools.count(step=EXPENSIVE_NS)
    stop = spare_lasting_objects(lambda: next(clock))
    lasting: list[list[int]] = [[] for _ in range(1_000)]
    before = gc.get_freeze_count()
    try:
        gc.collect()
        assert gc.get_freeze_count() >= before + len(lasting)
    finally:
        stop()
        gc.unfreeze()


def test_cheap_full_collections_freeze_nothing() -> None:
    stop = spare_lasting_objects(lambda: 0)
    before = gc.get_freeze_count()
    try:
        gc.collect()
        assert gc.get_freeze_count() == before
    finally:
        stop()
