"""The map of the house: imports run downward only, and the wall between the colours stands."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src" / "tlserve"

# Top to bottom; rooms of one floor are strangers to each other.
FLOORS: list[set[str]] = [
    {"__main__"},
    {"cli"},
    {"arguments"},
    {"server", "conform"},
    {"openai"},
    {"bridge"},
    # ------- the wall: above it no numpy and no numba, below it no trio -------
    {"engine"},
    {"schedule"},
    {"cache", "decode"},
    {"model"},
    {"kernels"},
    {"text", "weights"},
    {"schema"},
    {"config"},
    {"options", "signals"},
    {"address", "errors", "names"},
]
WALL = 6
FLOOR_OF = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
MAX_LINES = 400

# Who may import what from outside, where it is not left to the wall.
ONLY_IN = {
    "trio": {"bridge", "server"},
    "quart": {"server"},
    "quart_trio": {"server"},
    "hypercorn": {"server"},
    "prometheus_client": {"server"},
    "opentelemetry": {"server"},
    "numba": {"kernels", "model", "decode"},
    "llvmlite": {"kernels"},
    "jinja2": {"text"},
    "tokenizers": {"text"},
    "gguf": {"weights"},
    "safetensors": {"weights"},
    "httpx": {"conform"},
    "cattrs": {"openai", "options"},
}

FILES = sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")


def room_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports_of(tree: ast.AST) -> Iterator[tuple[ast.stmt, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative import"
            yield node, node.module or ""


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_run_downward(path: Path) -> None:
    """A room imports itself and lower floors; foreign packages stay where they belong; no first-party import hides in a function."""
    room = room_of(path)
    tree = ast.parse(path.read_text())
    module_level = {node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)}
    for node, name in imports_of(tree):
        package, _, rest = name.partition(".")
        if package == "tlserve":
            other = rest.partition(".")[0]
            assert other == room or FLOOR_OF[other] > FLOOR_OF[room], (
                f"{path}:{node.lineno} imports {name}, not below it"
            )
            assert node in module_level, f"{path}:{node.lineno} imports {name} inside of a function"
        if package in ONLY_IN:
            assert room in ONLY_IN[package], f"{path}:{node.lineno} imports {package}"
        if package == "numpy":
            assert FLOOR_OF[room] >= WALL, f"{path}:{node.lineno} imports numpy above the wall"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_files_stay_small(path: Path) -> None:
    """A file is one room: at most 400 lines."""
    assert len(path.read_text().splitlines()) <= MAX_LINES


def test_every_room_has_a_floor() -> None:
    """A new folder or file at the top must be put on the map."""
    rooms = {room_of(path) for path in FILES}

    assert rooms == set(FLOOR_OF)
