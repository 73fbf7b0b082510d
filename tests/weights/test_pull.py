"""A fetched model's directory is whole or not there, whatever happens meanwhile."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest

from tlserve.errors import LoadCancelled, PullError
from tlserve.weights.progress import Progress
from tlserve.weights.pull import pull
from tlserve.weights.pull_attendant import Attendant
from tlserve.weights.pull_files import choose_files
from tlserve.weights.pull_staging import RECORD, open_staging

CONTENT = bytes(range(256)) * 10_000


def never() -> bool:
    return False


def ignore(_progress: Progress) -> None:
    pass


def get(source: str | Path, directory: Path, report: Callable[[Progress], None] = ignore) -> Path:
    return pull(source if isinstance(source, str) else f"file:{source}", directory, report=report, cancelled=never)


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    path = tmp_path / "source" / "m.gguf"
    path.parent.mkdir()
    path.write_bytes(CONTENT)
    return path


def left_beside(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.parent.iterdir() if path != directory and path.name != "source")


def test_model_is_put_in_place(gguf: Path, tmp_path: Path) -> None:
    """The directory and its parents are made, nothing else is left, and progress was told to the end."""
    directory = tmp_path / "deep" / "er" / "v1"
    seen: list[Progress] = []
    assert get(gguf, directory, seen.append) == directory
    assert (directory / "m.gguf").read_bytes() == CONTENT
    assert left_beside(directory) == []
    assert seen[-1] == Progress("copying", len(CONTENT), len(CONTENT))
    assert all(a.bytes_done <= b.bytes_done for a, b in pairwise(seen))


def test_folder_without_the_rest(tiny_models: Path, tmp_path: Path) -> None:
    """Of a Hugging Face folder only the files that are read are taken."""
    get(tiny_models / "tiny-llama", tmp_path / "m")
    names = {path.name for path in (tmp_path / "m").iterdir()}
    assert names == {"config.json", "generation_config.json", "model.safetensors", RECORD}


def test_second_pull_needs_nothing(gguf: Path, tmp_path: Path) -> None:
    """A directory that is there is not fetched again, even when the source is gone."""
    get(gguf, tmp_path / "m")
    gguf.unlink()
    seen: list[Progress] = []
    get(gguf, tmp_path / "m", seen.append)
    assert seen == []


@pytest.mark.parametrize("damage", ["cut short", "removed"])
def test_incomplete_model_is_fetched_again(gguf: Path, tmp_path: Path, damage: str) -> None:
    """A file that is missing or has another size means fetching anew, in place of the old directory."""
    file = get(gguf, tmp_path / "m") / "m.gguf"
    if damage == "removed":
        file.unlink()
    else:
        file.write_bytes(CONTENT[:-1])
    get(gguf, tmp_path / "m")
    assert file.read_bytes() == CONTENT
    assert left_beside(file.parent) == []


def test_empty_directory_is_filled(gguf: Path, tmp_path: Path) -> None:
    """An operator may have made the directory already."""
    (tmp_path / "m").mkdir()
    get(gguf, tmp_path / "m")
    assert (tmp_path / "m" / "m.gguf").read_bytes() == CONTENT


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_foreign_content_is_not_touched(gguf: Path, tmp_path: Path, kind: str) -> None:
    """What was not made by a pull stays as it is, and the message says what to do."""
    directory = tmp_path / "m"
    if kind == "folder":
        directory.mkdir()
        (directory / "precious").write_text("mine")
    else:
        directory.write_text("mine")
    with pytest.raises(PullError, match="was not made by a pull; empty it, or leave out the model source"):
        get(gguf, directory)
    assert (directory / "precious" if kind == "folder" else directory).read_text() == "mine"


def test_other_source_is_not_mixed_up(gguf: Path, tmp_path: Path) -> None:
    """A directory keeps the source that it was made from."""
    get(gguf, tmp_path / "m")
    with pytest.raises(
        PullError, match=r"holds file:.*m.gguf, asked for is file:/elsewhere; remove it or name another"
    ):
        get("file:/elsewhere", tmp_path / "m")


def test_damaged_record(gguf: Path, tmp_path: Path) -> None:
    """A record that cannot be read is an error, not a reason to delete."""
    record = get(gguf, tmp_path / "m") / RECORD
    record.write_text('{"source": 1}')
    with pytest.raises(PullError, match=r"damaged .*; remove the directory"):
        get(gguf, tmp_path / "m")


def test_stop_in_the_middle(gguf: Path, tmp_path: Path) -> None:
    """A stopped fetch leaves nothing that looks like a model, and the next one succeeds."""
    seen: list[Progress] = []
    with pytest.raises(LoadCancelled):
        pull(f"file:{gguf}", tmp_path / "m", report=seen.append, cancelled=lambda: len(seen) == 2)
    assert 0 < seen[-1].bytes_done < len(CONTENT)
    assert list(tmp_path.iterdir()) == [gguf.parent]
    get(gguf, tmp_path / "m")
    assert left_beside(tmp_path / "m") == []


def test_remains_of_a_killed_pull_are_cleared(gguf: Path, tmp_path: Path) -> None:
    """What a process left that was killed while it fetched never gets into the model."""
    staging = tmp_path / ".m.pull"
    (staging / "tmp123").mkdir(parents=True)
    (staging / "tmp123" / "half.whl").write_bytes(b"half")
    (staging / "half.gguf").write_bytes(b"half")
    get(gguf, tmp_path / "m")
    assert {path.name for path in (tmp_path / "m").iterdir()} == {"m.gguf", RECORD}


def test_digest_is_checked(gguf: Path, tmp_path: Path) -> None:
    """The file with the digest is taken, one with another is refused and not put in place."""
    with pytest.raises(PullError, match=r"m.gguf has sha256 .*, expected 0000"):
        get(f"file:{gguf}#sha256={'0' * 64}", tmp_path / "m")
    assert list(tmp_path.iterdir()) == [gguf.parent]
    get(f"file:{gguf}#sha256={hashlib.sha256(CONTENT).hexdigest()}", tmp_path / "m")


def test_one_fetches_and_the_others_wait(gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of four pulls at once one does the work; all return when the model is whole. Again and again, for such races."""
    monkeypatch.setattr("tlserve.weights.pull_staging.POLL_SECONDS", 0.001)
    gguf.write_bytes(b"small")
    seen: list[Progress] = []

    def race(directory: Path) -> bytes:
        return (get(gguf, directory, seen.append) / "m.gguf").read_bytes()

    with ThreadPoolExecutor(4) as pool:
        for number in range(30):
            directory = tmp_path / f"v{number}" / "m"
            assert list(pool.map(race, [directory] * 4)) == [b"small"] * 4
            assert seen.count(Progress("copying", 5, 5)) == number + 1
            assert left_beside(directory) == []


def test_waiting_can_be_stopped(gguf: Path, tmp_path: Path) -> None:
    """While another process has the lock, the wait is told and heeds a stop."""
    seen: list[Progress] = []
    with open_staging(tmp_path / "m", Attendant(ignore, never)), pytest.raises(LoadCancelled):
        pull(f"file:{gguf}", tmp_path / "m", report=seen.append, cancelled=lambda: bool(seen))
    assert seen == [Progress("waiting", 0, None)]


def test_lock_on_a_directory_that_is_gone(gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the last holder takes the directory away just before its lock is had, a new one is made."""
    flock = fcntl.flock

    def late(descriptor: int, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", flock)
        (tmp_path / ".m.pull").rmdir()
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    assert (get(gguf, tmp_path / "m") / "m.gguf").read_bytes() == CONTENT


def test_disk_without_room(gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too small a disk is noticed before anything is written."""
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage._replace(free=1000))
    with pytest.raises(PullError, match=r"needs 2,560,000 bytes, .* has 1,000 free; make room"):
        get(gguf, tmp_path / "m")


def test_disk_that_fills_up(gguf: Path, tmp_path: Path) -> None:
    """A full disk met while writing is told in words."""

    def fill(_progress: Progress) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(PullError, match="the disk is full; make room"):
        get(gguf, tmp_path / "m", fill)


def test_place_that_cannot_be_written(gguf: Path, tmp_path: Path) -> None:
    """A directory that cannot be made is told with its path and the reason."""
    (tmp_path / "file").write_text("")
    with pytest.raises(PullError, match=r"file/m: the model cannot be put there: .*(Not a directory|File exists)"):
        get(gguf, tmp_path / "file" / "m")


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (["a/m.gguf", "a/LICENSE"], ["a/m.gguf"]),
        (["config.json", "model.safetensors", "m.bin"], ["model.safetensors", "config.json"]),
        (["x/config.json", "x/model.safetensors", "y/config.json"], ["x/model.safetensors", "x/config.json"]),
        (
            [
                "model.safetensors.index.json",
                "model-00002-of-00002.safetensors",
                "model-00001-of-00002.safetensors",
                "consolidated.safetensors",
                "config.json",
                "tokenizer.json",
                "README.md",
            ],
            [
                "model-00001-of-00002.safetensors",
                "model-00002-of-00002.safetensors",
                "model.safetensors.index.json",
                "config.json",
                "tokenizer.json",
            ],
        ),
    ],
)
def test_choice_of_files(names: list[str], chosen: list[str]) -> None:
    """The weights, the configuration and what belongs to it; nothing else."""
    assert choose_files(names, "here") == chosen


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        ([], "here: holds no model"),
        (["config.json", "pytorch_model.bin"], "holds no model"),
        (["b.gguf", "x/a.gguf"], "holds 2 models, name the one you want: b.gguf, x/a.gguf"),
    ],
)
def test_no_clear_choice(names: list[str], problem: str) -> None:
    """None or several: the message says which."""
    with pytest.raises(PullError, match=problem):
        choose_files(names, "here")


@pytest.mark.parametrize("source", ["file:/no/such/place", "file:/etc/hostname"])
def test_local_source_without_a_model(tmp_path: Path, source: str) -> None:
    """A path that is nothing or something else."""
    with pytest.raises(PullError, match=r"no such folder, .gguf file or wheel"):
        get(source, tmp_path / "m")
