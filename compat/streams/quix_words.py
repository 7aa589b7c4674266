"""The same program as WordCount.java with quixstreams: a repartition topic, a changelog, and exactly-once processing.

It runs in the environment of requirements/streams.txt. Arguments: bootstrap servers, consumer group, state directory.
"""

import sys
import time

from quixstreams import Application, State


def count(word: str, state: State) -> dict[str, str]:
    """The word and its next count."""
    time.sleep(0.0005)  # so that kills find work that is not committed
    number = state.get("count", 0) + 1
    state.set("count", number)
    return {"word": word, "count": str(number)}


def main() -> None:
    """Count the words of the topic "lines" until the process is killed."""
    servers, group, directory = sys.argv[1:]
    application = Application(
        broker_address=servers,
        consumer_group=group,
        processing_guarantee="exactly-once",
        state_dir=directory,
        auto_offset_reset="earliest",
        commit_interval=0.2,
        loglevel="WARNING",
        consumer_extra_config={"session.timeout.ms": 6000},
        # Each start has another transactional id, so that the transaction of a killed program only ends by this.
        producer_extra_config={"transaction.timeout.ms": 6000},
    )
    lines = application.topic("lines", value_deserializer="str")
    counts = application.topic("counts", key_serializer="str", value_serializer="str")
    words = application.dataframe(lines).apply(str.split, expand=True)
    words = words.group_by(lambda word: word, name="word", value_deserializer="str", value_serializer="str")
    counted = words.apply(count, stateful=True)
    counted.apply(lambda each: each["count"], metadata=False).to_topic(counts)
    application.run()


if __name__ == "__main__":
    main()
