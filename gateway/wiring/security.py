"""The guard that the settings describe, and warnings about insecure settings.

Owns: what the settings of keys mean together. Must never enter: a key in a text.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from gateway.security.guard import AccessScope, Guard
from gateway.security.key_file import KeySource, UnusableKeys
from gateway.settings import Settings, SettingsError


@dataclass(frozen=True, slots=True)
class KeySources:
    """The keys of each kind; None: no such key is configured."""

    api: KeySource | None
    admin: KeySource | None

    @property
    def all(self) -> Sequence[KeySource]:
        return [source for source in (self.api, self.admin) if source is not None]


def sources_of(settings: Settings) -> KeySources:
    """Read the files of keys. Raises SettingsError."""
    return KeySources(_source(settings, "api_key"), _source(settings, "admin_api_key"))


def guard_of(settings: Settings, sources: KeySources, refused: Callable[[AccessScope], None]) -> Guard:
    """Return the guard; it calls ``refused`` with the scope of each refused request."""
    return Guard(sources.api, sources.admin, metrics_open=settings.metrics_open, refused=refused)


def warnings_of(settings: Settings, address: str, port: int) -> Iterator[str]:
    """Yield warnings for the user who starts a gateway that listens on ``address`` and ``port``."""
    keys = (settings.api_key, settings.api_key_file, settings.admin_api_key, settings.admin_api_key_file)
    if all(key is None for key in keys) and not ipaddress.ip_address(address.partition("%")[0]).is_loopback:
        yield (
            f"the control routes are open to all who can reach {address} port {port}: workers can be"
            " added, paused and removed; set DYN_ADMIN_API_KEY or DYN_ADMIN_API_KEY_FILE"
        )
    if settings.worker_tls_insecure:
        yield (
            "CERTIFICATES OF WORKERS ARE NOT CHECKED (--worker-tls-insecure): whoever answers in a worker's"
            " place gets its prompts and keys"
        )


def _source(settings: Settings, name: str) -> KeySource | None:
    secret, path = getattr(settings, name), getattr(settings, f"{name}_file")
    if secret is None and path is None:
        return None
    try:
        return KeySource(None if secret is None else secret.get_secret_value().encode(), path)
    except (OSError, UnusableKeys) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise SettingsError(f"{settings.source_of(f'{name}_file')}: {path} cannot be used: {why}") from error
