"""One call opens a model wherever it lies, or says what it looked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tlserve.errors import CheckpointError
from tlserve.weights.checkpoint import open_checkpoint


def test_file_and_folder_with_one_gguf(write_gguf: Any) -> None:
    """A GGUF file is found by its own path and by its folder's."""
    path = write_gguf()
    (path.parent / "README.md").write_text("about")
    from_file, from_folder = open_checkpoint(path), open_checkpoint(path.parent)
    assert from_file.tensors.keys() == from_folder.tensors.keys()
    assert str(path) in from_folder.source


def test_several_gguf_files(write_gguf: Any) -> None:
    """Which of several is meant is for the operator to say."""
    folder = write_gguf(name="b.gguf").parent
    write_gguf(name="a.gguf")
    with pytest.raises(CheckpointError, match=r"several models: a.gguf, b.gguf; name one"):
        open_checkpoint(folder)


def test_hugging_face_folder_with_a_gguf_beside(write_gguf: Any, tiny_models: Path, tmp_path: Path) -> None:
    """config.json decides: the folder is read as Hugging Face's."""
    write_gguf()
    for file in (tiny_models / "tiny-qwen3").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    assert open_checkpoint(tmp_path).architecture == "qwen3"


def test_gguf_with_a_config_beside(write_gguf: Any) -> None:
    """Repositories of GGUF files carry a config.json, which is not read."""
    path = write_gguf()
    (path.parent / "config.json").write_text('{"model_type": "mamba"}')
    assert open_checkpoint(path.parent).architecture == "llama"


@pytest.mark.parametrize("content", ["nothing", "an empty folder", "a folder of other things"])
def test_no_model(tmp_path: Path, content: str) -> None:
    """The message says what was looked for, and where."""
    path = tmp_path / "models"
    if content != "nothing":
        path.mkdir()
    if content == "a folder of other things":
        (path / "notes.txt").write_text("no model")
    with pytest.raises(
        CheckpointError, match=r"models: no .*looked for config.json with \*.safetensors, or one \*.gguf"
    ):
        open_checkpoint(path)


def test_another_kind_of_file(tmp_path: Path) -> None:
    """A file that is no GGUF is refused as one."""
    path = tmp_path / "model.safetensors"
    path.write_bytes(bytes(64))
    with pytest.raises(CheckpointError, match="not a GGUF file"):
        open_checkpoint(path)
