"""kbroker: a broker that stock Kafka clients talk to without knowing."""

from importlib.util import find_spec

__version__ = "0.1.0"


def build() -> str:
    """Which build runs: "compiled" (the hot modules, by mypyc; see requirements/hatch_build.py) or "pure Python"."""
    return "pure Python" if find_spec("kbroker__mypyc") is None else "compiled"
