import subprocess
import sys

PROGRAM = """
import resource, sys
from kbroker.runtime.memory import keep_freed_memory
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


def test_large_buffers_are_made_of_the_same_pages_again() -> None:
    assert faults("keep") * 5 < faults("leave")
