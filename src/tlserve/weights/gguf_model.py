"""Opens a model that is one GGUF file: tokenizer, template and hyper-parameters come from its metadata."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tlserve.weights.contents import Checkpoint
from tlserve.weights.fields import Fields
from tlserve.weights.gguf import read_gguf
from tlserve.weights.gguf_config import hugging_face_config
from tlserve.weights.gguf_names import hugging_face_tensors
from tlserve.weights.gguf_tokenizer import end_token_ids, read_tokenizer, token_text

SAMPLING_KEYS: Final[Mapping[str, str]] = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
    "general.sampling.top_k": "top_k",
    "general.sampling.penalty_repeat": "repetition_penalty",
}


def open_gguf(path: Path) -> Checkpoint:
    """Open a GGUF file; its tensors stay mapped, nothing of their data is read.

    Raises:
        CheckpointError: the file is missing, damaged or contradicts itself.
        UnsupportedModelError: an architecture, tensor type or tokenizer that is not served.
    """
    file = read_gguf(path)
    metadata = Fields(str(path), file.metadata)
    config = hugging_face_config(metadata, file.tensors)
    tokenizer = read_tokenizer(metadata)
    return Checkpoint(
        architecture=str(config["model_type"]),
        config=config,
        tensors=hugging_face_tensors(file, config),
        tokenizer=tokenizer,
        chat_template=metadata.optional("tokenizer.chat_template", str),
        bos_token=token_text(tokenizer, tokenizer.bos_id),
        eos_token=token_text(tokenizer, tokenizer.eos_id),
        eos_token_ids=end_token_ids(metadata, tokenizer),
        generation_defaults=_sampling_defaults(metadata),
        source=f"{path} (GGUF)",
    )


def _sampling_defaults(metadata: Fields) -> dict[str, float]:
    found = {name: metadata.optional(key, float) for key, name in SAMPLING_KEYS.items()}
    return {name: value for name, value in found.items() if value is not None}
