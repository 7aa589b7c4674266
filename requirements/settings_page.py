"""Writes docs/configuration.md from the declarations: `python -m requirements.settings_page`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from types import ModuleType

from kbroker.config import tier_settings, topic
from kbroker.config.catalogue import BROKER, BROKER_AREAS, DYNAMIC_ONLY, TOPIC, area_name, declared
from kbroker.config.profiles import PROFILES
from kbroker.config.resources import CLIENT_METRICS, GROUP
from kbroker.config.settings import Effect, Setting
from kbroker.config.values import to_text

_INTRODUCTION = """\
# Settings

Written by `make docs`; do not edit.

kbroker has Apache Kafka's settings under Kafka's names. Its own settings begin with `kbroker.`. The broker takes a
value from the first of these sources that has the key:

1. dynamic settings of this broker, then those of all brokers (`kafka-configs --alter`)
2. flags: `--override key=value`, `--data-dir`, `--listen`
3. the environment, only in the container image (`kbroker serve --from-environment`): `KAFKA_LOG_RETENTION_MS` is
   `log.retention.ms` (one underscore is a dot, two are an underscore, three are a dash)
4. the file given by `--config`, in Java's properties format
5. the profile given by `--profile`; with a file, the tier is off unless one of the sources above enables it
6. the default

A topic's own setting overrides the broker's settings that the topic table lists in the same row.

kbroker knows every key of Apache Kafka 4.3.1 and treats it in one of three ways:

- **enforced**: the setting does what it does in Kafka.
- **no effect**: the broker accepts and ignores the setting, because ignoring it is safe. The log says so at the start.
- **refused**: ignoring the setting would be unsafe, so the broker does not start with any value but the default.

The last tables list every key with its treatment. An unknown key is an error that suggests the nearest known key. The
column "while running" says which settings can be changed dynamically: cluster-wide settings for all brokers or for one
broker, per-broker settings only for one broker, read-only settings not at all. All settings of topics can be changed.
"""

_DIFFERENCES = """\
## Differences from Kafka

DescribeConfigs returns what Apache Kafka 4.3.1 returns, for every key, source and synonym, with these exceptions:

- `node.id`, `process.roles` and `controller.listener.names` have defaults; in Kafka they have none. The default of
  `log.dir` is not Kafka's, because clean-up jobs empty Kafka's default directory below `/tmp`.
- `listeners` and `listener.security.protocol.map` are read-only: the broker opens its listeners once.
- `segment.bytes` and `log.segment.bytes` may be smaller than Kafka's minimum of 1 MiB.
- IncrementalAlterConfigs refuses an unknown broker key; Kafka stores it.
- After any dynamic change of a broker setting, Kafka shows static values of other keys as if they were not set;
  kbroker still shows them.
"""


def document() -> str:
    """The whole page."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield _INTRODUCTION
    yield "## Profiles"
    yield ""
    yield from _profiles()
    yield from _section(topic, topic.SETTINGS)
    for area in BROKER_AREAS:
        yield from _section(area, declared(area))
        if area is tier_settings:
            yield from _metadata_topic()
    yield from _dynamic_only()
    yield _DIFFERENCES
    yield from _every_key()


def _every_key() -> Iterator[str]:
    """One row for each of Kafka's keys, in alphabetical order: its effect, and the reason if it has none."""
    yield "## Every key of Apache Kafka 4.3.1"
    yield ""
    yield "Enforced keys do what they do in Kafka; the tables above list their bounds."
    known = {"topic": TOPIC.values(), "broker": BROKER.values(), "group": GROUP.values()}
    known["client metrics"] = CLIENT_METRICS.values()
    for resource, declarations in known.items():
        yield ""
        yield f"| {resource} | effect | reason |"
        yield "|---|---|---|"
        for one in sorted(declarations, key=lambda one: one.name):
            if not one.internal and not one.name.startswith("kbroker."):
                yield f"| `{one.name}` | {one.effect.value} | {'' if one.effect is Effect.ENFORCED else one.why} |"


def _profiles() -> Iterator[str]:
    keys = sorted({key for profile in PROFILES.values() for key in profile})
    yield f"| key | {' | '.join(PROFILES)} |"
    yield f"|---|{'---|' * len(PROFILES)}"
    for key in keys:
        yield f"| `{key}` | {' | '.join(profile.get(key, '') for profile in PROFILES.values())} |"
    yield ""


def _metadata_topic() -> Iterator[str]:
    yield "Under the prefix `rlmm.config.`, if the metadata manager is the one that uses `__remote_log_metadata`:"
    yield ""
    yield "| key | type | default | allowed | |"
    yield "|---|---|---|---|---|"
    for one in tier_settings.METADATA_TOPIC.values():
        text = one.doc if one.effect is Effect.ENFORCED else f"No effect: {one.why}"
        yield f"| `{one.name}` | {one.kind.name.lower()} | {_default(one)} | {_allowed(one)} | {text} |"
    yield ""
    yield (
        "Keys under the prefix `rsm.config.` belong to the storage plug-in; docs/tiered-storage.md lists the keys of "
        "kbroker's own plug-ins."
    )
    yield ""


def _dynamic_only() -> Iterator[str]:
    yield "## Only dynamic"
    yield ""
    yield "These settings cannot stand in a file."
    yield ""
    yield "| key | type | default | allowed | while running | |"
    yield "|---|---|---|---|---|---|"
    for one in DYNAMIC_ONLY.values():
        if one.effect is Effect.ENFORCED:
            yield _row(one, one.dynamic.value)
    yield ""


def _section(area: ModuleType, settings: Iterable[Setting]) -> Iterator[str]:
    assert area.__doc__ is not None
    known = list(settings)
    enforced = [one for one in known if one.effect is Effect.ENFORCED]
    yield f"## {area_name(area).capitalize()}"
    yield ""
    yield area.__doc__.partition("\n")[0]
    yield ""
    if enforced:
        last = "while running" if area is not topic else "broker's settings, strongest first"
        yield f"| key | type | default | allowed | {last} | |"
        yield "|---|---|---|---|---|---|"
        for one in enforced:
            fallbacks = ", ".join(f"`{name}`" for name, _ in one.synonyms)
            yield _row(one, fallbacks if area is topic else one.dynamic.value)
        yield ""
    for effect in (Effect.REFUSED, Effect.HARMLESS):
        yield from _without_effect(effect, [one for one in known if one.effect is effect and not one.internal])


def _without_effect(effect: Effect, known: Iterable[Setting]) -> Iterator[str]:
    by_reason: dict[str, list[Setting]] = {}
    for one in known:
        by_reason.setdefault(one.why, []).append(one)
    for why, those in by_reason.items():
        yield f"**{effect.value.capitalize()}.** {why}"
        yield ""
        yield "| key | type | default |"
        yield "|---|---|---|"
        for one in those:
            yield f"| `{one.name}` | {one.kind.name.lower()} | {_default(one)} |"
        yield ""


def _row(one: Setting, last: str) -> str:
    text = f"{one.doc} DescribeConfigs shows it only where it is set." if one.internal else one.doc
    return f"| `{one.name}` | {one.kind.name.lower()} | {_default(one)} | {_allowed(one)} | {last} | {text} |"


def _default(one: Setting) -> str:
    text = one.default_text
    return "none" if text is None else f"`{text}`" if text else "empty"


def _allowed(one: Setting) -> str:
    if one.one_of:
        return ", ".join(one.one_of)
    low, high = (to_text(bound) for bound in (one.at_least, one.at_most))
    also = f" or {one.also}" if one.also is not None else ""
    if low is not None and high is not None:
        return f"{low} to {high}{also}"
    return f"from {low}{also}" if low is not None else f"to {high}{also}" if high is not None else ""


if __name__ == "__main__":
    sys.stdout.write(document())
