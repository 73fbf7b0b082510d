"""Opens a Hugging Face folder: config.json, *.safetensors, tokenizer.json and their companions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tlserve.errors import CheckpointError, UnsupportedModelError
from tlserve.weights import bigram
from tlserve.weights.contents import Checkpoint
from tlserve.weights.fields import Fields, read_bytes, read_object, read_optional_object
from tlserve.weights.folder_tokenizer import FolderTokenizer, read_folder_tokenizer
from tlserve.weights.safetensors import read_safetensors

ARCHITECTURES: Final[Mapping[str, str]] = {
    "llama": "llama",
    "mistral": "mistral",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gemma3_text": "gemma3",
    bigram.MODEL_TYPE: "bigram",
}
"""``model_type`` of config.json to our name."""

IGNORED_SUFFIX: Final = "rotary_emb.inv_freq"
"""A buffer that old exports wrote out; it follows from the configuration."""

LM_HEAD: Final = "lm_head.weight"

SAMPLING_KEYS: Final = ("temperature", "top_p", "min_p", "top_k", "repetition_penalty")


def open_folder(folder: Path) -> Checkpoint:
    """Open a Hugging Face folder; its tensors stay mapped, nothing of their data is read.

    Raises:
        CheckpointError: a file is missing, damaged or contradicts itself.
        UnsupportedModelError: an architecture, tensor type or tokenizer that is not served.
    """
    config = _read_config(folder)
    generation = read_optional_object(folder / "generation_config.json")
    architecture = _architecture(config)
    tokenizer = read_folder_tokenizer(folder, config)
    tensors = {name: t for name, t in read_safetensors(folder).items() if not name.endswith(IGNORED_SUFFIX)}
    if architecture == "bigram":
        bigram.check_table(folder, tensors)
    tied = config.get("tie_word_embeddings", architecture == "gemma3")
    if tied:
        tensors.pop(LM_HEAD, None)  # some exports write the embedding twice
    return Checkpoint(
        architecture=architecture,
        config={**config.values, "tie_word_embeddings": tied},
        tensors=tensors,
        tokenizer=tokenizer.source,
        chat_template=_chat_template(folder, generation, tokenizer),
        bos_token=tokenizer.bos_token,
        eos_token=tokenizer.eos_token,
        eos_token_ids=_eos_token_ids(generation, config, tokenizer),
        generation_defaults=_sampling_defaults(generation),
        source=f"{folder} (Hugging Face folder)",
    )


def _read_config(folder: Path) -> Fields:
    config = read_object(folder / "config.json")
    if config.values.get("model_type") == bigram.MODEL_TYPE:
        return Fields(config.origin, {"vocab_size": bigram.SHAPE[1], **config.values})
    return config


def _architecture(config: Fields) -> str:
    model_type = config.required("model_type", str)
    if model_type not in ARCHITECTURES:
        problem = f"model_type {model_type!r} is not served; served are {', '.join(ARCHITECTURES)}"
        raise UnsupportedModelError(f"{config.origin}: {problem}")
    return ARCHITECTURES[model_type]


def _chat_template(folder: Path, generation: Fields, tokenizer: FolderTokenizer) -> str | None:
    """generation_config.json's, else tokenizer_config.json's, else the file of its own that newer exports have."""
    template = generation.optional("chat_template", str) or tokenizer.chat_template
    if template is not None:
        return template
    path = folder / "chat_template.jinja"
    if not path.is_file():
        return None
    try:
        return read_bytes(path).decode()
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path}: not UTF-8 at byte {error.start}") from error


def _eos_token_ids(generation: Fields, config: Fields, tokenizer: FolderTokenizer) -> tuple[int, ...]:
    """Every token that any of the files names as an end; generation_config.json's first."""
    named = [*generation.token_ids("eos_token_id"), *config.token_ids("eos_token_id"), *tokenizer.eos_ids]
    return tuple(dict.fromkeys(named))


def _sampling_defaults(generation: Fields) -> dict[str, float]:
    if not generation.get("do_sample", True):
        return {}
    found = {key: generation.optional(key, float) for key in SAMPLING_KEYS}
    return {key: value for key, value in found.items() if value is not None}
