"""The difference between two images, for replicas, log configs, coordinators and the tier.

Images share unchanged parts, so an identity check shows whether a part has changed. The cost is one check for each
topic and one for each partition of a changed topic.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from kbroker.metadata.image import NO_LEADER, Image, PartitionImage, TopicImage
from kbroker.metadata.parts import RECOVERED, RECOVERING


@dataclass(frozen=True, slots=True)
class PartitionChange:
    """One changed partition: before is None for a new one, after is None for one that was deleted with its topic."""

    topic: TopicImage
    index: int
    before: PartitionImage | None
    after: PartitionImage | None

    @property
    def is_unclean_election(self) -> bool:
        """Whether a replica was elected that was neither in sync nor an eligible leader replica (KIP-966), so that
        committed records may be lost. The controller marks such a leader as recovering.
        """
        before, after = self.before, self.after
        if before is None or after is None or after.leader == NO_LEADER or after.leader_recovery_state != RECOVERING:
            return False
        eligible = (*before.isr, *before.eligible_leader_replicas)
        return before.leader_recovery_state == RECOVERED or after.leader not in eligible


@dataclass(frozen=True)
class Delta:
    """The difference between two images; each part is computed when it is first used.

    A topic that was deleted and created again under the same name is in deleted_topics and in created_topics, with
    different ids.
    """

    before: Image
    after: Image

    @cached_property
    def created_topics(self) -> list[TopicImage]:
        """Topics whose id is new."""
        return _topics_missing_in(self.before, self.after)

    @cached_property
    def deleted_topics(self) -> list[TopicImage]:
        """Topics whose id was removed, as they were before."""
        return _topics_missing_in(self.after, self.before)

    @cached_property
    def changed_partitions(self) -> list[PartitionChange]:
        """Every partition that is new, deleted or changed; those of deleted topics come first."""
        return list(self._changed_partitions())

    def _changed_partitions(self) -> Iterator[PartitionChange]:
        for topic in self.deleted_topics:
            for index, partition in topic.partitions.items():
                yield PartitionChange(topic, index, partition, None)
        if self.after.topics_by_id is self.before.topics_by_id:
            return
        for topic_id, topic in self.after.topics_by_id.items():
            old = self.before.topics_by_id.get(topic_id)
            if old is topic:
                continue
            known = {} if old is None else old.partitions
            for index, partition in topic.partitions.items():
                before = known.get(index)
                if before is not partition:
                    yield PartitionChange(topic, index, before, partition)

    @cached_property
    def changed_configs(self) -> list[tuple[int, str]]:
        """Resources (type, name) whose overrides differ. The configs of a deleted topic count as changed."""
        before, after = self.before.configs, self.after.configs
        if before is after:
            return []
        gone = [resource for resource in before if resource not in after]
        return gone + [resource for resource, keys in after.items() if before.get(resource) != keys]

    @property
    def features_changed(self) -> bool:
        """Whether a finalized feature level differs."""
        return self.before.features != self.after.features


def _topics_missing_in(image: Image, other: Image) -> list[TopicImage]:
    """The topics of the other image whose ids this one does not have."""
    if image.topics_by_id is other.topics_by_id:
        return []
    return [topic for topic_id, topic in other.topics_by_id.items() if topic_id not in image.topics_by_id]
