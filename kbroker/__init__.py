"""kbroker: a broker that stock Kafka clients talk to without knowing."""

from importlib.util import find_spec

__version__ = "0.1.0"


def build() -> str:
    """ "compiled" if the hot modules are compiled by mypyc (see requirements/hatch_build.py), else "pure Python"."""
    return "pure Python" if find_spec("kbroker__mypyc") is None else "compiled"
