"""API keys: who may ask, as which tenant, and how much at once.

The file has one key a line::

    # name   key                      options
    alice    sk-5f0c2d3b7e9a4411      weight=3 max_concurrent=8
    batch    sk-90e1aa27c3d84f6b      max_concurrent=2

A name on several lines is one tenant with several keys, so that a key can be replaced without a gap; its options must agree.
Keys are kept as SHA-256 digests; neither messages nor log lines ever hold a key, or any word of a line that could be one.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from attrs import field, frozen

from tlserve.errors import ConfigError
from tlserve.openai.errors import invalid_api_key, too_many_at_once
from tlserve.openai.headers import parse_bearer

_FORM = "name key [weight=N] [max_concurrent=N]"
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_KEY = re.compile(r"[\x21-\x7e]{8,256}")
_OPTION = re.compile(r"(?P<option>weight|max_concurrent)=(?P<number>[0-9]{1,6})")
_HIGHEST = {"weight": 1000, "max_concurrent": 100_000}


@frozen(kw_only=True)
class Tenant:
    """Who a request belongs to.

    Attributes:
        name: as the file and the logs have it; empty where no keys are asked for.
        weight: its share of the engine beside other tenants of the same priority.
        max_concurrent: the most requests at once; None for no limit of its own.
    """

    name: str
    weight: int = 1
    max_concurrent: int | None = None


ANYONE = Tenant(name="")
"""Whoever asks, where no keys are asked for."""


@frozen
class ApiKeys:
    """The keys of a file, as they were when it was read."""

    _tenants: Sequence[tuple[bytes, Tenant]] = field(repr=False)

    @classmethod
    def parse(cls, text: str) -> ApiKeys:
        """Read the text of a file.

        Raises:
            ConfigError: a line has another form, a key is there twice, a tenant contradicts itself, or there is no key at all.
        """
        tenants: dict[bytes, Tenant] = {}
        by_name: dict[str, Tenant] = {}
        for number, line in enumerate(text.splitlines(), start=1):
            words = [] if line.lstrip().startswith("#") else line.split()
            if not words:
                continue
            digest, tenant = _read_line(words, number)
            if digest in tenants:
                raise ConfigError(f"line {number}: this key is in the file already; give every line a key of its own")
            if by_name.setdefault(tenant.name, tenant) != tenant:
                raise ConfigError(
                    f"line {number}: {tenant.name} has other options than on its line before; make them equal"
                )
            tenants[digest] = tenant
        if not tenants:
            raise ConfigError(f"no key in it, so nobody could ask anything; write lines of the form {_FORM}")
        return cls(tuple(tenants.items()))

    @classmethod
    def load(cls, path: Path) -> ApiKeys:
        """Read a file.

        Raises:
            ConfigError: it cannot be read, or its text is not allowed; the message names the file.
        """
        try:
            return cls.parse(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise ConfigError(f"engine.api_keys_file = {str(path)!r} cannot be read: {reason}") from None
        except ConfigError as error:
            raise ConfigError(f"engine.api_keys_file = {str(path)!r}, {error}") from None

    def __len__(self) -> int:
        return len(self._tenants)

    def tenant_of(self, key: str) -> Tenant | None:
        """Whose key it is. Takes as long for every key, whatever it has in common with a right one."""
        digest = _digest(key)
        found = None
        for known, tenant in self._tenants:
            if hmac.compare_digest(known, digest):
                found = tenant
        return found


class KeyRing:
    """The keys in force, and how many requests each tenant has running. Loop thread only.

    Attributes:
        keys: replaced when the file has changed; None where everybody may ask.
    """

    def __init__(self, keys: ApiKeys | None) -> None:
        self.keys = keys
        self._running: Counter[str] = Counter()

    def tenant_of(self, authorization: Sequence[str]) -> Tenant:
        """Who sends these values of the ``Authorization`` header.

        Raises:
            ApiError: 401 for anything but one good key.
        """
        if self.keys is None:
            return ANYONE
        key = parse_bearer(authorization)
        tenant = None if key is None else self.keys.tenant_of(key)
        if tenant is None:
            raise invalid_api_key()
        return tenant

    @contextmanager
    def hold(self, tenant: Tenant) -> Iterator[None]:
        """Count one request of ``tenant`` for the length of the block.

        Raises:
            ApiError: 429 when it has as many already as it may.
        """
        if tenant.max_concurrent is not None and self._running[tenant.name] >= tenant.max_concurrent:
            raise too_many_at_once(limit=tenant.max_concurrent)
        self._running[tenant.name] += 1
        try:
            yield
        finally:
            self._running[tenant.name] -= 1


def _read_line(words: Sequence[str], number: int) -> tuple[bytes, Tenant]:
    if len(words) < 2:
        raise ConfigError(f"line {number}: expected {_FORM}")
    name, key, *options = words
    if not _NAME.fullmatch(name):
        raise ConfigError(f"line {number}: its name is not 1 to 64 letters, digits, '.', '_' or '-'; expected {_FORM}")
    if not _KEY.fullmatch(key):
        raise ConfigError(f"line {number}: the key of {name} is not 8 to 256 visible ASCII characters")
    numbers: dict[str, int] = {}
    for option in options:
        match = _OPTION.fullmatch(option)
        if match is None or match["option"] in numbers or not 1 <= int(match["number"]) <= _HIGHEST[match["option"]]:
            limits = " or ".join(f"{word} from 1 to {highest}" for word, highest in _HIGHEST.items())
            raise ConfigError(
                f"line {number}: an option of {name} is none, is there twice or is out of range: {limits}"
            )
        numbers[match["option"]] = int(match["number"])
    return _digest(key), Tenant(
        name=name, weight=numbers.get("weight", 1), max_concurrent=numbers.get("max_concurrent")
    )


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
