"""All settings of one broker, read from several layers.

A value comes from the first layer that has the key: the broker's dynamic settings, the cluster's dynamic settings, the
flags, the environment, the file, the profile, and last the declared default. `Layers` keeps the given texts, because
DescribeConfigs shows every layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, TypeVar

from kbroker.config.authorizer import AuthorizerSettings
from kbroker.config.catalogue import (
    BROKER,
    DYNAMIC_ONLY,
    LISTENER_PREFIX,
    PLUGIN_PREFIXES,
    TOPIC,
    broker_setting,
    unknown,
)
from kbroker.config.cleaner import CleanerSettings
from kbroker.config.environment import from_environment
from kbroker.config.fetch import FetchSettings
from kbroker.config.groups import GroupSettings, groups_fault
from kbroker.config.jaas import LoginModule, parse_jaas_file
from kbroker.config.limits import LimitSettings
from kbroker.config.listeners import Listeners, listeners_of
from kbroker.config.log_settings import LogSettings
from kbroker.config.metadata import MetadataSettings
from kbroker.config.observability import PAGES, ObservabilitySettings
from kbroker.config.profiles import NOT_BESIDE_A_FILE, ONLY_FOR_ONE_BROKER, PROFILES
from kbroker.config.properties import parse_properties
from kbroker.config.quorum import quorum_of
from kbroker.config.quotas import QuotaSettings
from kbroker.config.replication import ReplicationSettings
from kbroker.config.sasl import MECHANISMS, SaslSettings
from kbroker.config.server import EVERYBODY_OUT, ServerSettings
from kbroker.config.settings import Dynamic, Effect, Setting, declarations
from kbroker.config.tier_rules import check_tier
from kbroker.config.tier_settings import RLMM_PREFIX, RSM_PREFIX, TierSettings
from kbroker.config.tls import TlsSettings
from kbroker.config.transactions import TransactionSettings
from kbroker.config.values import HIDDEN, ConfigError, Kind, SecretTexts, Value, key_of, parse_list, to_text

L = TypeVar("L")


class Layers(NamedTuple):
    """The given texts by key, strongest layer first."""

    broker: Mapping[str, str] = MappingProxyType({})
    cluster: Mapping[str, str] = MappingProxyType({})
    static: Mapping[str, str] = MappingProxyType({})
    login_modules: Mapping[tuple[str, str], LoginModule] = MappingProxyType({})
    """The login modules of kbroker.jaas.file."""

    def text(self, name: str) -> str | None:
        """The text from the strongest layer that has the key; None if the default applies."""
        return next((layer[name] for layer in (self.broker, self.cluster, self.static) if name in layer), None)

    def below(self, prefix: str) -> dict[str, str]:
        """The static settings with this prefix, by name without the prefix."""
        return SecretTexts((name[len(prefix) :], text) for name, text in self.static.items() if name.startswith(prefix))

    def __repr__(self) -> str:
        """The keys only: the texts may be secrets."""
        return f"Layers(broker={[*self.broker]}, cluster={[*self.cluster]}, static={[*self.static]})"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings in force, by area, and warnings about them.

    Shape   one attribute for each area; `value(name)` looks up a key by Kafka's name; warnings are lines for the log
    Errors  ConfigError from `load`; nothing else here fails
    """

    server: ServerSettings
    log: LogSettings
    cleaner: CleanerSettings
    replication: ReplicationSettings
    metadata: MetadataSettings
    fetch: FetchSettings
    groups: GroupSettings
    transactions: TransactionSettings
    limits: LimitSettings
    quotas: QuotaSettings
    authorizer: AuthorizerSettings
    tier: TierSettings
    tls: TlsSettings
    observability: ObservabilitySettings
    sasl: SaslSettings
    listeners: Listeners
    layers: Layers
    warnings: tuple[str, ...] = ()
    _topic_values: dict[str, Value] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def load(
        cls,
        file: bytes | None = None,
        *,
        file_name: str = "the settings file",
        overrides: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        profile: str = "embedded",
        defaults: Mapping[str, str] | None = None,
    ) -> Settings:
        """Read the settings with which a broker starts.

        Shape   overrides are `key=value`; environment may hold any variables, but only KAFKA_* are read; defaults are
                the caller's defaults (such as this user's data directory), with the precedence of a profile
        Errors  ConfigError for a bad value, an unknown key in file or overrides, and a refused key
        """
        if profile not in PROFILES:
            raise unknown(profile, PROFILES, what="profile")
        static = parse_properties(file, file_name=file_name) if file is not None else {}
        from_variables, warnings = from_environment(environment or {})
        flags = dict(_key_and_value(one) for one in overrides)
        if visible := [name for name in flags if is_password(name)]:
            warnings.append(
                f"every user of this machine can read flags: move {', '.join(visible)} to a file (--config)"
            )
        static |= from_variables | flags
        _unify_spellings(static)
        warnings.extend(as_lines(remark for name, text in static.items() for remark in _check_static(name, text)))
        weak = {**PROFILES[profile], **(defaults or {})}
        if "log.dir" in static:
            weak.pop("log.dirs", None)
        if file is not None:
            for name in NOT_BESIDE_A_FILE:
                weak.pop(name, None)
        if "controller" not in static.get("process.roles", "controller"):
            for name in ONLY_FOR_ONE_BROKER:
                weak.pop(name, None)
        loaded = cls._build(Layers(static={**weak, **static}), warnings)
        if any(protocol.startswith("SASL_") for protocol in loaded.listeners.protocols.values()):
            loaded = replace(loaded, layers=loaded.layers._replace(login_modules=_login_modules(static)))
        _check_together(loaded)
        warnings = [*loaded.warnings, *as_lines(_for_no_listener(loaded.server, static))]
        if (fault := groups_fault(loaded.groups)) is not None:
            raise ConfigError(fault)
        return replace(loaded, warnings=(*warnings, *check_tier(loaded.tier, loaded.log_retention())))

    @classmethod
    def _build(cls, layers: Layers, warnings: Sequence[str], listeners: Listeners | None = None) -> Settings:
        server = _area(ServerSettings, layers)
        return cls(
            server=server,
            log=_area(LogSettings, layers),
            cleaner=_area(CleanerSettings, layers),
            replication=_area(ReplicationSettings, layers),
            metadata=_area(MetadataSettings, layers),
            fetch=_area(FetchSettings, layers),
            groups=_area(GroupSettings, layers),
            transactions=_area(TransactionSettings, layers),
            limits=_area(LimitSettings, layers),
            quotas=_area(QuotaSettings, layers),
            authorizer=_area(AuthorizerSettings, layers),
            tier=replace(
                _area(TierSettings, layers),
                rsm_configs=layers.below(RSM_PREFIX),
                rlmm_configs=layers.below(RLMM_PREFIX),
            ),
            tls=_area(TlsSettings, layers),
            observability=_area(ObservabilitySettings, layers),
            sasl=_area(SaslSettings, layers),
            listeners=listeners or listeners_of(server),
            layers=layers,
            warnings=tuple(dict.fromkeys(warnings)),
        )

    @property
    def node_id(self) -> int:
        """This node's number."""
        return self.server.node_id

    @property
    def data_directory(self) -> str:
        """The one log directory."""
        return (self.log.log_dirs or self.log.log_dir)[0]

    def value(self, name: str) -> Value:
        """The value in force of a broker key.

        Errors  KeyError for a key that is not declared
        """
        declaration = broker_setting(name)
        if declaration is None:
            raise KeyError(name)
        text = self.layers.text(name)
        return declaration.default if text is None else declaration.parse(text)

    def for_listener(self, cls: type[L], listener: str, *, mechanism: str | None = None) -> L:
        """The settings of one area for a listener, and for one of its SASL mechanisms. A setting below
        `listener.name.<listener>.<mechanism>.` is stronger than one below `listener.name.<listener>.`, and that is
        stronger than one without a prefix, whatever their layers.
        """
        of_listener = f"{LISTENER_PREFIX}{listener.lower()}."
        own = () if mechanism is None else (f"{of_listener}{mechanism.lower()}.",)
        return _area(cls, self.layers, prefixes=(*own, of_listener, ""))

    def with_tier_directory(self, path: str) -> Settings:
        """The settings with this tier directory, if the tier is a directory and no other one is configured."""
        if not self.tier.is_directory or "dir" in self.tier.rsm_configs:
            return self
        static = {**self.layers.static, f"{RSM_PREFIX}dir": path}
        return self._build(self.layers._replace(static=static), self.warnings, self.listeners)

    def log_retention(self) -> dict[str, Value]:
        """The retention of a topic without own settings, by the broker's keys."""
        defaults = self._topic_defaults()
        keys = ("retention.ms", "retention.bytes", "local.retention.ms", "local.retention.bytes")
        return {f"log.{key}": defaults[key] for key in keys}

    def with_dynamic(self, cluster: Mapping[str, str], broker: Mapping[str, str]) -> Settings:
        """The settings with these dynamic settings instead of the previous ones. Unusable ones only cause a warning.

        Shape   cluster has the settings of the broker resource "", broker those of this broker's id
        """
        warnings: list[str] = []
        layers = self.layers._replace(
            cluster=_usable(cluster, warnings, default_resource=True),
            broker=_usable(broker, warnings, default_resource=False),
        )
        # The broker opens its listeners once. A change is shown, and takes effect at the next start.
        settings = self._build(layers, warnings, self.listeners)
        if settings.server.keeps_everybody_out:
            warnings.append(f"ignoring the dynamic settings of max.connections: {EVERYBODY_OUT}")
            cluster, broker = (
                {name: text for name, text in layer.items() if not name.startswith("max.connections")}
                for layer in (layers.cluster, layers.broker)
            )
            settings = self._build(layers._replace(cluster=cluster, broker=broker), warnings, self.listeners)
        return settings

    def topic_values(self, configs: Mapping[str, str]) -> dict[str, Value]:
        """Every topic key with its value, for a topic with these own settings.

        The settings were validated when they were set. An invalid text (written by another program) counts as not set.
        """
        values = dict(self._topic_defaults())
        for name, text in configs.items():
            if (declaration := TOPIC.get(name)) is not None:
                try:
                    values[name] = declaration.parse(text)
                except ConfigError:
                    continue
        return values

    def log_config(self, configs: Mapping[str, str], make: Callable[..., L]) -> L:
        """The topic's configuration for the storage; `make` is LogConfig, which this layer must not import."""
        values = self.topic_values(configs)
        # The order of a list has no meaning, and the list of throttled replicas may be long.
        given = {
            one.attribute: frozenset(value) if isinstance(value := values[name], tuple) else value
            for name, one in TOPIC.items()
            if one.effect is Effect.ENFORCED
        }
        if (internal := given.pop("internal_segment_bytes")) is not None:
            given["segment_bytes"] = internal
        return make(
            **{
                **given,
                "producer_id_expiration_ms": self.fetch.producer_id_expiration_ms,
                "max_producers": self.limits.kbroker_max_producers_per_partition,
                "retention_lease_max_ms": self.limits.kbroker_retention_lease_max_ms,
            }
        )

    def _topic_defaults(self) -> dict[str, Value]:
        """The values of a topic without own settings. They are cached, because a start reads them for every topic."""
        if not self._topic_values:
            self._topic_values.update((name, self._topic_default(one)) for name, one in TOPIC.items())
        return self._topic_values

    def _topic_default(self, declaration: Setting) -> Value:
        for name, factor in declaration.synonyms:
            value = self.value(name)
            if value is None:
                continue
            if declaration.name == "retention.ms" and isinstance(value, int) and value < 0:
                return -1
            if factor == 1:
                return value
            assert isinstance(value, int)
            return value * factor
        return declaration.default


def _area(cls: type[L], layers: Layers, prefixes: Sequence[str] = ("",)) -> L:
    given = {}
    for one in declarations(cls):
        for prefix in prefixes:
            if (text := layers.text(prefix + one.name)) is not None:
                given[one.attribute] = one.parse(text)
                break
    return cls(**given)


def _login_modules(static: Mapping[str, str]) -> Mapping[tuple[str, str], LoginModule]:
    key = "kbroker.jaas.file"
    if not (path := static.get(key, "").strip()):
        return {}
    try:
        return parse_jaas_file(Path(path).read_text(), key=f"{key} ({path})")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{key}: cannot read {path}: {getattr(error, 'strerror', None) or error}") from error


def _key_and_value(override: str) -> tuple[str, str]:
    name, equals, value = override.partition("=")
    if not equals or not name.strip():
        raise ConfigError(f"{key_of(override)!r} is not of the form key=value")
    return name.strip(), value.strip()


def is_password(name: str) -> bool:
    """Whether the value is surely a secret. Settings of plug-ins have no declared type."""
    declaration = broker_setting(name)
    is_password = declaration is not None and declaration.kind is Kind.PASSWORD
    return is_password or (name.startswith(PLUGIN_PREFIXES) and name.endswith(("secret.key", "password", "token")))


def _unify_spellings(static: dict[str, str]) -> None:
    """`broker.id` is the older name of `node.id`: if one is given, set both."""
    node, broker = static.get("node.id"), static.get("broker.id")
    if node is not None and broker is not None and node.strip() != broker.strip():
        raise ConfigError(f"node.id={node} and broker.id={broker} are the same setting and must have the same value")
    if (either := node if node is not None else broker) is not None:
        static["node.id"] = static["broker.id"] = either


def _check_static(name: str, text: str) -> Iterator[Remark]:
    """Raise ConfigError for a key or value that cannot be static; yield warnings."""
    declaration = broker_setting(name)
    if declaration is None:
        raise unknown(name, BROKER)
    if name in DYNAMIC_ONLY:
        raise ConfigError(f"{name} can only be set while the broker runs")
    # A value that equals that of the embedded profile causes no warning.
    if text.strip() != PROFILES["embedded"].get(name):
        yield from remarks(name, declaration, text)


def _for_no_listener(server: ServerSettings, names: Iterable[str]) -> Iterator[Remark]:
    """Warnings about settings for listeners that do not exist; they protect nothing."""
    entries = parse_list(server.listener_security_protocol_map.strip())
    listeners = [entry.partition(":")[0].strip() for entry in entries]
    listeners += [*server.controller_listener_names, PAGES]
    known = tuple(f"{LISTENER_PREFIX}{one.lower()}." for one in listeners)
    mechanisms = {one.lower() for one in MECHANISMS}
    for name in names:
        if not name.startswith(LISTENER_PREFIX):
            continue
        keys = [name.removeprefix(one) for one in known if name.startswith(one)]
        if not keys:
            yield Remark(
                name, "has no effect: listener.security.protocol.map has no such listener, in lower case as in Kafka"
            )
        elif not any(key in BROKER or key.partition(".")[0] in mechanisms for key in keys):
            yield Remark(name, "has no effect: no mechanism of SASL has this name, in lower case as in Kafka")


class Remark(NamedTuple):
    """A warning about one setting. Warnings with the same `what` share one line."""

    subject: str
    what: str


def as_lines(found: Iterable[Remark]) -> list[str]:
    """Lines for the log, one for each different `what`."""
    subjects: dict[str, list[str]] = {}
    for remark in found:
        subjects.setdefault(remark.what, []).append(remark.subject)
    return [f"{', '.join(dict.fromkeys(names))} {what}" for what, names in subjects.items()]


def remarks(name: str, declaration: Setting, text: str) -> Iterator[Remark]:
    """Raise ConfigError if a value is bad or refused; yield warnings."""
    value = declaration.parse(text)
    shown = HIDDEN if declaration.sensitive else to_text(value)
    if declaration.effect is Effect.REFUSED and value != declaration.default:
        raise ConfigError(f"{name}={shown} is not supported: {declaration.why}")
    if declaration.effect is Effect.HARMLESS and value != declaration.default:
        yield Remark(f"{name}={shown}", f"has no effect: {declaration.why}")
    if declaration.warn is not None and (what := declaration.warn(value)) is not None:
        yield Remark(f"{name}={shown}", what)
    if declaration.warn_below is not None and isinstance(value, int) and value < declaration.warn_below:
        yield Remark(
            f"{name}={shown}", f"is below Kafka's minimum of {declaration.warn_below}: many small files are slow"
        )


def _usable(configs: Mapping[str, str], warnings: list[str], *, default_resource: bool) -> dict[str, str]:
    """The stored dynamic settings that are usable. Another version or Apache Kafka may have stored unusable ones."""
    usable: dict[str, str] = {}
    found: list[Remark] = []
    for name, text in configs.items():
        declaration = broker_setting(name)
        if declaration is None or declaration.dynamic is Dynamic.READ_ONLY:
            warnings.append(f"ignoring the dynamic setting {name}: it cannot be changed while the broker runs")
        elif default_resource and declaration.dynamic is Dynamic.PER_BROKER:
            warnings.append(f"ignoring the dynamic setting {name}: it can be set only for single brokers")
        else:
            try:
                found.extend(remarks(name, declaration, text))
            except ConfigError as error:
                warnings.append(f"ignoring a dynamic setting: {error}")
            else:
                usable[name] = text
    warnings.extend(as_lines(found))
    return usable


def _check_together(settings: Settings) -> None:
    """Check settings that depend on each other. Errors: ConfigError."""
    server = settings.server
    if server.keeps_everybody_out:
        raise ConfigError(EVERYBODY_OUT)
    quorum_of(server, settings.listeners)
    replication = settings.replication
    if replication.replica_fetch_wait_max_ms > replication.replica_lag_time_max_ms:
        raise ConfigError(
            "replica.fetch.wait.max.ms should always be less than or equal to replica.lag.time.max.ms to prevent "
            "frequent changes in ISR"
        )
