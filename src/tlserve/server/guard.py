"""Who may come in and over which wire: API keys and TLS, as the configuration names them and while their files change."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import trio
from attrs import frozen

from tlserve.config import ServeConfig
from tlserve.server.keys import ApiKeys, KeyRing
from tlserve.server.tls import Tls
from tlserve.server.watch import watch_files


@frozen
class Guard:
    """What stands at the API's door. Loop thread only."""

    keys: KeyRing
    tls: Tls | None
    _keys_file: Path | None

    @classmethod
    def of(cls, config: ServeConfig) -> Guard:
        """Read the files that ``config`` names.

        Raises:
            ConfigError: one of them cannot be used.
        """
        path, certfile, keyfile = config.api_keys_file, config.tls_certfile, config.tls_keyfile
        keys = None if path is None else ApiKeys.load(path)
        tls = None if certfile is None or keyfile is None else Tls(certfile, keyfile)
        return cls(KeyRing(keys), tls, path)

    async def watch(self) -> None:
        """Follow the changes of the files until cancelled; what cannot be used is logged, and the old stays in force."""
        async with trio.open_nursery() as watching:
            if self._keys_file is not None:
                watching.start_soon(partial(watch_files, [self._keys_file], self._reload_keys, what="API keys"))
            if self.tls is not None:
                watching.start_soon(partial(watch_files, self.tls.files, self.tls.reload, what="certificate"))

    def _reload_keys(self) -> None:
        if self._keys_file is not None:
            self.keys.keys = ApiKeys.load(self._keys_file)
