"""What a Hugging Face folder says about its tokenizer: tokenizer.json, tokenizer_config.json.

The vocabulary itself is handed on as bytes; only the texts and ids of special tokens are looked up here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from attrs import field, frozen

from tlserve.errors import CheckpointError
from tlserve.weights.contents import ByteTokenizer, JsonTokenizer, TokenizerSource
from tlserve.weights.fields import Fields, parse_object, read_bytes, read_optional_object

NUM_BYTES: Final = 256
DEFAULT_TEMPLATE_NAME: Final = "default"


@frozen(kw_only=True)
class FolderTokenizer:
    """A tokenizer's source with what tokenizer_config.json adds; "" and () where the model says nothing."""

    source: TokenizerSource
    bos_token: str = ""
    eos_token: str = ""
    eos_ids: tuple[int, ...] = ()
    chat_template: str | None = field(default=None, repr=False)


def read_folder_tokenizer(folder: Path, config: Fields) -> FolderTokenizer:
    """The folder's tokenizer; without tokenizer.json a model of 256 tokens speaks bytes.

    Raises:
        CheckpointError: a file is damaged, or there is no tokenizer for a larger vocabulary.
    """
    settings = read_optional_object(folder / "tokenizer_config.json")
    template = _chat_template(settings)
    path = folder / "tokenizer.json"
    if not path.is_file():
        _check_byte_vocabulary(folder, config)
        return FolderTokenizer(source=ByteTokenizer(), chat_template=template)
    data = read_bytes(path)
    special = _special_tokens(settings) or _added_tokens(path, data)
    bos_token, eos_token = (_token_text(settings, name, special, config) for name in ("bos_token", "eos_token"))
    return FolderTokenizer(
        source=JsonTokenizer(data=data, add_bos=settings.optional("add_bos_token", bool)),
        bos_token=bos_token,
        eos_token=eos_token,
        eos_ids=tuple(token for token, text in special.items() if text == eos_token),
        chat_template=template,
    )


def _check_byte_vocabulary(folder: Path, config: Fields) -> None:
    vocab_size = config.required("vocab_size", int)
    if vocab_size != NUM_BYTES:
        problem = f"tokenizer.json is missing; only a model of {NUM_BYTES} tokens can do without, this has {vocab_size}"
        hint = " (a tokenizer.model alone is not read: convert it)" if (folder / "tokenizer.model").exists() else ""
        raise CheckpointError(f"{folder}: {problem}{hint}")


def _chat_template(settings: Fields) -> str | None:
    """One template, or the one named "default" of a list of {"name", "template"}."""
    if not isinstance(settings.values.get("chat_template"), list):
        return settings.optional("chat_template", str)
    for entry in settings.objects("chat_template"):
        if entry.required("name", str) == DEFAULT_TEMPLATE_NAME:
            return entry.required("template", str)
    return None


def _special_tokens(settings: Fields) -> dict[int, str]:
    """Id to text from tokenizer_config.json's added_tokens_decoder; empty in exports that leave it out."""
    decoder = settings.section("added_tokens_decoder")
    special = {}
    for key in decoder.values:
        if not key.isdecimal():
            decoder.fail(key, "token ids as keys")
        special[int(key)] = decoder.section(key).required("content", str)
    return special


def _added_tokens(path: Path, data: bytes) -> dict[int, str]:
    """Id to text from tokenizer.json's own list."""
    entries = parse_object(str(path), data).objects("added_tokens")
    return {entry.required("id", int): entry.required("content", str) for entry in entries}


def _token_text(settings: Fields, name: str, special: dict[int, str], config: Fields) -> str:
    """The token's text as tokenizer_config.json gives it (plain or as an object), else by config.json's id."""
    if isinstance(settings.values.get(name), dict):
        return settings.section(name).required("content", str)
    text = settings.optional(name, str)
    if text is not None:
        return text
    ids = config.token_ids(f"{name}_id")
    return special.get(ids[0], "") if ids else ""
