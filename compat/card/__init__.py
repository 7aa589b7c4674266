"""The report card: how a broker's answers differ from those of Apache Kafka 4.3.1.

A row sends requests and notes what it observes. `expected.json` holds what the same row observed on Apache Kafka, and
the card compares the two. Requests and responses go through `wire`; no client library and no jar is needed.

    python -m compat --bootstrap-server localhost:9092

| module          | contents                                                                     |
|-----------------|------------------------------------------------------------------------------|
| `codec.py`      | messages as dicts, encoded and decoded by `wire`                             |
| `connection.py` | one connection, where each wait ends with the row's time limit               |
| `session.py`    | the broker: what it advertises, and the topics and groups that the card made |
| `client.py`     | what a row uses: calls, topics, groups, notes                                |
| `registry.py`   | areas and rows                                                               |
| `rows/`         | the rows, a module for each area                                             |
| `outcome.py`    | notes without random parts, and the differences between two                  |
| `runner.py`     | runs rows side by side, and finds out whether the broker is still there      |
| `report.py`     | the table, JSON, JUnit XML and the HTML page                                 |
| `kfake/`        | franz-go's kfake, a broker to compare with                                   |
"""
