"""Coverage-guided fuzzing of everything that reads bytes from a peer or from a disk.

    python -m tests.fuzz                          all targets, 1,000 runs each (fewer of a whole node)
    python -m tests.fuzz requests --runs 100000
    python -m tests.fuzz --seconds 600            ten minutes, shared between the targets by weight
    python -m tests.fuzz batches --input FILE     run one input again, without atheris
    python -m tests.fuzz all --seconds 600 --keep keep what reaches new code, in tests/fuzz/corpus

A target (target.py) is a function of bytes. It returns if the bytes are accepted or refused with a declared error, and
raises anything else. Each run is also bounded in executed lines, CPU time and memory. Targets for a port of a whole
node (connections.py) also check that it refuses what needs a login, a right or a token. atheris (libFuzzer) mutates
the inputs and keeps those that reach new code in `wire` and `kbroker`, including the generated codecs.

A second of CPU is 15,000 to 30,000 runs (1,000 of `frames`, 100 to 800 of a whole node); `--seconds 1200` on two idle
cores makes more than ten million.

tests/fuzz/corpus has one text file for each target, with an input in base64 on each line. More seeds are made at the
start: frames of real clients (tests/wire/fixtures/captured) and our own encodings of every class and version. The tests
in this folder run all of these without atheris, with exact bounds: executed lines, and bytes allocated.
"""
