"""Files that are read again when they change, and only then."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import trio

from tlserve.errors import ConfigError
from tlserve.server import watch


async def test_a_change_is_acted_on_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often the file is looked at; a refused content is not tried again until it changes; a missing file is waited for."""
    looks = 0
    stamps = watch._stamps

    def counting(paths: Sequence[Path]) -> list[watch.Stamp]:
        nonlocal looks
        looks += 1
        return stamps(paths)

    monkeypatch.setattr(watch, "_stamps", counting)
    monkeypatch.setattr(watch, "INTERVAL_S", 0.005)
    path, seen = tmp_path / "file", list[str]()

    def reload() -> None:
        seen.append(path.read_text() if path.exists() else "missing")
        if seen[-1] == "bad":
            raise ConfigError("bad")

    async def look_five_times() -> None:
        enough = looks + 5
        with trio.fail_after(5):
            while looks < enough:  # noqa: ASYNC110
                await trio.sleep(0.005)  # The looks happen in a thread, which has no event to wait for.

    def write(text: str) -> None:
        fresh = path.with_name("fresh")
        fresh.write_text(text)
        fresh.replace(path)

    write("first")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: watch.watch_files([path], reload, what="test"))
        await look_five_times()
        assert seen == []
        for text in ("second", "bad", "third time"):
            write(text)
            await look_five_times()
        path.unlink()
        await look_five_times()
        nursery.cancel_scope.cancel()

    assert seen == ["second", "bad", "third time", "missing"]
