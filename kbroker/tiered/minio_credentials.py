"""The keys of the store. A credentials file is read again when it changes, so rotated keys need no restart."""

from __future__ import annotations

import configparser
from collections.abc import Mapping
from dataclasses import dataclass

from kbroker.config.values import HIDDEN
from kbroker.runtime.ports import Disk
from kbroker.tiered.api import StoreMisconfigured
from kbroker.tiered.minio_settings import KEYS_IN_ENVIRONMENT, MinioConfigError, MinioSettings

_LARGEST_FILE = 1 << 20
_NAMES = (
    ("access_key", ("aws_access_key_id", "access.key")),
    ("secret_key", ("aws_secret_access_key", "secret.key")),
    ("session_token", ("aws_session_token", "session.token")),
)


@dataclass(frozen=True, slots=True, repr=False)
class Keys:
    """An access key with its secret key and token; its representation shows nothing."""

    access_key: str
    secret_key: str
    session_token: str | None = None

    def __repr__(self) -> str:
        return f"Keys({HIDDEN})"

    def is_sendable(self) -> bool:
        """Whether headers can carry the keys. The secret key is not sent."""
        sent = self.access_key + (self.session_token or "")
        return sent.isascii() and sent.isprintable()

    def hide_in(self, text: str) -> str:
        """`text` without the keys: a store or a proxy may repeat what it was sent."""
        for secret in (self.secret_key, self.session_token, self.access_key):
            if secret:
                text = text.replace(secret, HIDDEN)
        return text


class KeySource:
    """The current keys for signing.

    Shape   origin names the settings that the keys come from
    Errors  MinioConfigError at the start if there are no keys; StoreMisconfigured later, while the file cannot be read
    """

    def __init__(self, settings: MinioSettings, *, environment: Mapping[str, str], disk: Disk) -> None:
        self._file, self._profile, self._disk = settings.credentials_file, settings.credentials_profile, disk
        self._seen: tuple[int, int] | None = None  # modification time and size of the file
        self._keys: Keys | None = None
        self.origin = "rsm.config.credentials.file"
        if settings.access_key:
            self.origin = "rsm.config.access.key and rsm.config.secret.key"
            self._keys = Keys(
                settings.access_key,
                settings.secret_key.reveal(),
                settings.session_token.reveal() if settings.session_token else None,
            )
        elif not self._file:
            self.origin = "the environment"
            self._keys = _from_environment(environment)
        if self._keys is not None and not self._keys.is_sendable():
            raise MinioConfigError(f"The keys from {self.origin} have characters that cannot be sent in a header")

    def keys(self) -> Keys:
        """The keys; a credentials file is read again if it changed."""
        if self._file:
            self._read_if_changed()
        assert self._keys is not None
        return self._keys

    def hide_in(self, text: str) -> str:
        """See `Keys.hide_in`."""
        return text if self._keys is None else self._keys.hide_in(text)

    def read_again(self) -> Keys:
        """The keys, from the file even if it seems unchanged."""
        self._seen = None
        return self.keys()

    def _read_if_changed(self) -> None:
        try:
            seen = self._disk.modified_ms(self._file), self._disk.size(self._file)
            if seen == self._seen:
                return
            file = self._disk.open(self._file, writable=False)
            try:
                text = file.pread(_LARGEST_FILE, 0).decode()
            finally:
                file.close()
        except (OSError, UnicodeDecodeError) as error:
            if self._keys is None:
                raise StoreMisconfigured(f"{self.origin}={self._file}: {type(error).__name__}") from None
            return  # the file is being replaced: the old keys stay in use until the store refuses them
        found = _parse(text, self._profile)
        if found is not None:
            self._keys, self._seen = found, seen
        elif self._keys is None:
            raise StoreMisconfigured(f"{self.origin}={self._file}: no keys in section [{self._profile}]")


def _from_environment(environment: Mapping[str, str]) -> Keys:
    for access, secret, token in KEYS_IN_ENVIRONMENT:
        if environment.get(access) and environment.get(secret):
            # Variables that are filled from files often have a line end.
            access_key, secret_key, session_token = (
                environment.get(name, "").rstrip("\r\n") for name in (access, secret, token)
            )
            return Keys(access_key, secret_key, session_token or None)
    names = ", ".join(f"{access} and {secret}" for access, secret, _ in KEYS_IN_ENVIRONMENT)
    raise MinioConfigError(
        "No keys for the store: set rsm.config.access.key and rsm.config.secret.key, rsm.config.credentials.file, "
        f"or one of these pairs in the environment: {names}"
    )


def _parse(text: str, profile: str) -> Keys | None:
    """The keys of a file with `[section]` and `name = value` lines; lines before any section belong to [default]."""
    parser = configparser.RawConfigParser(default_section="", strict=False)
    try:
        try:
            parser.read_string(text)
        except configparser.MissingSectionHeaderError:
            parser.read_string(f"[default]\n{text}")
    except configparser.Error:
        return None  # the error's text would quote the line
    if not parser.has_section(profile):
        return None
    section = parser[profile]
    found = {ours: next((section[name] for name in names if section.get(name)), None) for ours, names in _NAMES}
    if not found["access_key"] or not found["secret_key"]:
        return None
    keys = Keys(found["access_key"], found["secret_key"], found["session_token"])
    return keys if keys.is_sendable() else None
