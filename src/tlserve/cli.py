"""The command line: arguments to a configuration to a running server."""

from __future__ import annotations

from tlserve.signals import STOP_SIGNALS, exit_on_signals, kill_on_signals

exit_on_signals()  # Before the imports below: they take a moment in which a SIGTERM must not be lost.

import argparse  # noqa: E402
import importlib  # noqa: E402
import json  # noqa: E402
import signal  # noqa: E402
import sys  # noqa: E402
import threading  # noqa: E402
from collections.abc import Sequence  # noqa: E402
from functools import partial  # noqa: E402
from pathlib import Path  # noqa: E402

import attrs  # noqa: E402

from tlserve.arguments import parser  # noqa: E402
from tlserve.config import ServeConfig  # noqa: E402
from tlserve.engine.load import load_engine  # noqa: E402
from tlserve.engine.warmup import warm_up  # noqa: E402
from tlserve.errors import ConfigError, ConformError, LoadCancelled, TlserveError  # noqa: E402
from tlserve.schema import config_schema  # noqa: E402
from tlserve.server.guard import Guard  # noqa: E402
from tlserve.server.handle import run  # noqa: E402
from tlserve.server.log import configure_logging  # noqa: E402
from tlserve.server.tracing import check_tracing  # noqa: E402
from tlserve.weights.progress import ProgressPrinter  # noqa: E402
from tlserve.weights.pull import pull  # noqa: E402


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    options = parser().parse_args(arguments)
    try:
        match options.command:
            case "pull":
                _pull(options.source, options.directory)
            case "warmup":
                warm_up(partial(print, file=sys.stderr))
            case "schema":
                print(json.dumps(config_schema(), indent=2))
            case "conform":
                return 0 if _conform(options) else 1
            case _:
                _serve(options)
    except (ConfigError, ConformError) as error:
        return _fail(error, code=2)
    except LoadCancelled:
        return 0
    except TlserveError as error:
        return _fail(error, code=1)
    return 0


def _serve(options: argparse.Namespace) -> None:
    config = _config_of(options)
    if options.check_config:
        Guard.of(config)
        check_tracing(config)
        print(
            f"configuration is fine: model {config.model_id}, API {config.http_listen}, health {config.health_listen}"
        )
        return
    configure_logging(sys.stdout)
    progress = ProgressPrinter(sys.stderr)
    try:
        run(config, load=partial(load_engine, on_fetch=progress))
    finally:
        progress.finish()


def _config_of(options: argparse.Namespace) -> ServeConfig:
    if options.config is not None:
        if options.port is not None or options.health_port is not None:
            raise ConfigError("--port and --health-port go with --model-dir; with --config set http_listen in the file")
        return ServeConfig.load(options.config)
    if options.model_dir is None:
        raise ConfigError("nothing to serve: give --config FILE or --model-dir DIR (tlserve --help shows both)")
    ports = {"--port": 8000 if options.port is None else options.port}
    ports["--health-port"] = 9464 if options.health_port is None else options.health_port
    for name, port in ports.items():
        if not 0 <= port <= 65535:
            raise ConfigError(f"{name} {port} is not a port; allowed: 0 to 65535")
    return attrs.evolve(
        ServeConfig.for_model(options.model_dir),
        http_listen=f":{ports['--port']}",
        health_listen=f":{ports['--health-port']}",
    )


def _pull(source: str, directory: Path) -> None:
    stop = threading.Event()
    for number in STOP_SIGNALS:
        signal.signal(number, lambda *_: stop.set())
    progress = ProgressPrinter(sys.stderr)
    try:
        path = pull(source, directory, report=progress, cancelled=stop.is_set)
    finally:
        progress.finish()
    print(path)


def _conform(options: argparse.Namespace) -> bool:
    """Load the kit when it is wanted: what it needs is an extra that a server does without."""
    try:
        kit = importlib.import_module("tlserve.conform.command")
    except ModuleNotFoundError as missing:
        raise ConformError(f"{missing.name} is not installed; run: pip install 'tlserve[conform]'") from None
    kill_on_signals()  # A run that is broken off has not passed.
    is_fine: bool = kit.conform(
        kit.Options(
            base_url=options.base_url,
            health_url=options.health_url,
            model=options.model,
            tier=options.tier,
            api_key=options.api_key,
            cases=options.case,
            timeout_s=options.timeout,
            is_json=options.json,
        )
    )
    return is_fine


def _fail(error: TlserveError, *, code: int) -> int:
    print(f"tlserve: {error}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
