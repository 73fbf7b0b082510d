"""Opens a model wherever it lies: a GGUF file, a folder holding one, a Hugging Face folder or a bigram table.

What comes out is described in `contents`; how each kind is read, in `gguf_model` and `folder`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tlserve.errors import CheckpointError
from tlserve.weights.contents import (
    ByteTokenizer,
    Checkpoint,
    GgufBpe,
    GgufSpm,
    JsonTokenizer,
    TokenizerSource,
)
from tlserve.weights.folder import open_folder
from tlserve.weights.gguf_model import open_gguf
from tlserve.weights.tensor import Tensor

__all__ = [
    "ByteTokenizer",
    "Checkpoint",
    "GgufBpe",
    "GgufSpm",
    "JsonTokenizer",
    "Tensor",
    "TokenizerSource",
    "open_checkpoint",
]

LOOKED_FOR: Final = "looked for config.json with *.safetensors, or one *.gguf file"


def open_checkpoint(path: Path) -> Checkpoint:
    """Open a model; weights stay in their files, mapped, until they are asked for.

    Any thread; takes some 50 ms for a small GGUF model, most of it the vocabulary.

    Raises:
        CheckpointError: nothing is there, or a file is missing, damaged or contradicts itself.
        UnsupportedModelError: an architecture, tensor type or tokenizer that is not served.
    """
    if path.is_file():
        return open_gguf(path)
    if not path.is_dir():
        raise CheckpointError(f"{path}: no such file or directory; {LOOKED_FOR}")
    if _is_hugging_face(path):
        return open_folder(path)
    return open_gguf(_only_gguf(path))


def _is_hugging_face(folder: Path) -> bool:
    """Repositories of GGUF files carry a config.json too, so that alone does not decide."""
    has_weights = any(folder.glob("*.safetensors")) or not any(folder.glob("*.gguf"))
    return has_weights and (folder / "config.json").is_file()


def _only_gguf(folder: Path) -> Path:
    found = sorted(folder.glob("*.gguf"))
    if not found:
        raise CheckpointError(f"{folder}: no model in this directory; {LOOKED_FOR}")
    if len(found) > 1:
        names = ", ".join(file.name for file in found)
        raise CheckpointError(f"{folder}: several models: {names}; name one of these files instead of the directory")
    return found[0]
