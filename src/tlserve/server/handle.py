"""The server from the outside: ``run`` for a process of its own, ``spawn`` for a thread of somebody else's process."""

from __future__ import annotations

import faulthandler
import gc
import sys
import threading
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Self

import attrs
import trio

from tlserve.bridge.client import Loader
from tlserve.config import ServeConfig
from tlserve.engine.load import LoadedEngine, load_engine
from tlserve.engine.progress import Report
from tlserve.errors import StartupError, TlserveError
from tlserve.server.lifecycle import Addresses, serve
from tlserve.server.shutdown import Shutdown

_SWITCH_S = 0.0001
"""How long a thread computes in Python, in seconds, while another one waits to: after every call of the system a loop waits for its turn."""


def run(config: ServeConfig, *, load: Loader = load_engine) -> None:
    """Serve in this thread until SIGTERM, drain, return.

    With ``handle_signals`` it must be the main thread.

    Raises:
        StartupError: an address cannot be bound or the model cannot be loaded.
        EngineDead: the engine gave up.
    """
    shutdown = Shutdown()
    sys.setswitchinterval(_SWITCH_S)
    try:
        trio.run(partial(serve, config, shutdown, load=_frozen_after(load)), strict_exception_groups=True)
    except BaseExceptionGroup as group:
        raise first_of(group) from None
    finally:
        faulthandler.cancel_dump_traceback_later()  # Set by the drain, for the case that this line is never reached.


def spawn(config: ServeConfig, *, wait: bool = True, load: Loader = load_engine) -> ServerHandle:
    """Serve in a thread of its own; signals are left to the caller's process.

    Args:
        config: what to serve.
        wait: return when the model is loaded; else as soon as the addresses are known, while it loads.
        load: how to get from the configuration to an engine.

    Raises:
        ListenError: an address cannot be bound.
        StartupError: the model cannot be loaded (with ``wait``; else ``join`` raises it).
    """
    handle = ServerHandle(attrs.evolve(config, handle_signals=False), load)
    if wait:
        handle.wait_ready()
    return handle


class ServerHandle:
    """A server that runs in a thread. Usable from any thread; as a context manager it drains and joins at the end.

    Attributes:
        http_addr: ``host:port`` of the API.
        health_addr: ``host:port`` of health, readiness and metrics.
    """

    http_addr: str
    health_addr: str

    def __init__(self, config: ServeConfig, load: Loader) -> None:
        self._error: BaseException | None = None
        self._bound = threading.Event()
        self._settled = threading.Event()
        self._is_ready = False
        self._token: trio.lowlevel.TrioToken | None = None
        self._shutdown: Shutdown | None = None
        self._thread = threading.Thread(target=self._run, args=(config, load), name="tlserve", daemon=True)
        self._thread.start()
        self._bound.wait()
        if self._token is None:
            self.join()

    def wait_ready(self, timeout: float | None = None) -> None:
        """Wait until the model is loaded.

        Raises:
            StartupError: it cannot be.
            TimeoutError: it is still loading after ``timeout`` seconds.
        """
        if not self._settled.wait(timeout):
            raise TimeoutError(f"the model is still loading after {timeout} s")
        if not self._is_ready:
            self.join()

    def drain(self) -> None:
        """Begin to stop: nothing new is taken, what runs is finished. Returns at once; ``join`` waits."""
        if self._token is not None and self._shutdown is not None:
            self._call_soon(self._shutdown.begin, "drain was called")

    def join(self, timeout: float | None = None) -> None:
        """Wait until everything is down.

        Raises:
            StartupError: the server could not begin to serve.
            EngineDead: the engine gave up.
            TimeoutError: it is still up after ``timeout`` seconds.
        """
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise TimeoutError(f"the server is still up after {timeout} s; call drain() first")
        if self._error is not None:
            raise self._error

    def _run(self, config: ServeConfig, load: Loader) -> None:
        try:
            trio.run(self._serve, config, load, strict_exception_groups=True)
        except BaseException as error:  # noqa: BLE001  (raised again by join)
            self._error = first_of(error) if isinstance(error, BaseExceptionGroup) else error
        finally:
            self._bound.set()
            self._settled.set()

    async def _serve(self, config: ServeConfig, load: Loader) -> None:
        self._shutdown = Shutdown()
        await serve(config, self._shutdown, on_bound=self._set_bound, on_ready=self._set_ready, load=load)

    def _set_bound(self, addresses: Addresses) -> None:
        self.http_addr, self.health_addr = addresses.api, addresses.health
        self._token = trio.lowlevel.current_trio_token()
        self._bound.set()

    def _set_ready(self) -> None:
        self._is_ready = True
        self._settled.set()

    def _call_soon(self, function: Callable[[str], None], argument: str) -> None:
        if self._token is None:
            return
        try:
            self._token.run_sync_soon(function, argument)
        except trio.RunFinishedError:
            return  # It is down already.

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.drain()
        self.join()


def _frozen_after(load: Loader) -> Loader:
    """``load``, and then all that has been made so far is no concern of the garbage collector any more.

    A full collection would go through it again and again, a tenth of a second each time in which no thread gets on.
    """

    def load_and_freeze(config: ServeConfig, report: Report) -> LoadedEngine:
        loaded = load(config, report)
        gc.collect()
        gc.freeze()
        return loaded

    return load_and_freeze


def first_of(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error that an operator should read out of a group of them: one raised on purpose, where there is one."""
    leaves = _leaves(group)
    for kind in (StartupError, TlserveError):
        for error in leaves:
            if isinstance(error, kind):
                return error
    return leaves[0] if len(leaves) == 1 else group


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
    return [error]
