"""TLS for the API port: the certificate and key of the configuration, as a context that can be renewed while it serves."""

from __future__ import annotations

import ssl
from pathlib import Path

from hypercorn.config import Config

from tlserve.errors import ConfigError


class Tls:
    """The server's side of TLS, with Hypercorn's choice of versions (1.2 and up) and ciphers.

    Args:
        certfile: the certificate with its chain, PEM.
        keyfile: its private key, PEM, without a passphrase.

    Raises:
        ConfigError: a file cannot be read, or the two do not belong together.
    """

    def __init__(self, certfile: Path, keyfile: Path) -> None:
        self._certfile, self._keyfile = certfile, keyfile
        self.context = self._fresh_context()

    @property
    def files(self) -> tuple[Path, Path]:
        """Certificate and key."""
        return self._certfile, self._keyfile

    def reload(self) -> None:
        """Use the files as they are now for connections that come from now on.

        Raises:
            ConfigError: as at the start; what was in use stays in use.
        """
        self._fresh_context()  # A bad pair must not be half loaded into the context that serves.
        self.context.load_cert_chain(self._certfile, self._keyfile)

    def _fresh_context(self) -> ssl.SSLContext:
        for key, path in (("tls_certfile", self._certfile), ("tls_keyfile", self._keyfile)):
            _check_readable(key, path)
        config = Config()
        config.certfile, config.keyfile = str(self._certfile), str(self._keyfile)
        config.keyfile_password = ""
        try:
            context = config.create_ssl_context()
        except ssl.SSLError as error:
            raise ConfigError(
                f"engine.tls_certfile = {str(self._certfile)!r} and engine.tls_keyfile = {str(self._keyfile)!r} are not a "
                f"certificate and its unprotected private key in PEM form: {error.reason or error}"
            ) from None
        if context is None:
            raise ConfigError(
                "engine.tls_certfile and engine.tls_keyfile are empty; name both files, or neither for plain HTTP"
            )
        return context


def _check_readable(key: str, path: Path) -> None:
    try:
        with path.open("rb") as file:
            file.read(1)
    except OSError as error:
        raise ConfigError(f"engine.{key} = {str(path)!r} cannot be read: {error.strerror}") from None
