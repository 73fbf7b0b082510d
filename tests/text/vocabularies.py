"""Small vocabularies as a GGUF file holds them, and the tokenizers over them."""

from __future__ import annotations

from tlserve.text.gguf_bpe import from_gguf_bpe
from tlserve.text.gguf_spm import from_gguf_spm
from tlserve.text.pieces import BYTE_ALPHABET
from tlserve.text.vocab_tokenizer import VocabTokenizer

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6
CONTROLS = ("<|bos|>", "<|im_start|>", "<|im_end|>", "[INST]", "PAD")
WORDS = ("Ġthe", "the", "im", "<|", "|>", "end", "he", "ll", "Ġw", "12", "Ċ")
PIECES = ("▁t", "he", "th", "▁the", "e▁", "in", "hi", "ing", "▁▁", "▁▁▁▁", "<|", "<s", *"▁theaingHlo.<|>_mds", "é")


def byte_level() -> tuple[list[str], list[str], list[int]]:
    """Tokens, merges and types: five control tokens, the bytes, some words, and one token of plain text."""
    grown = [word[:end] for word in WORDS for end in range(2, len(word) + 1)]
    merges = [f"{word[:-1]} {word[-1]}" for word in grown]
    tokens = list(dict.fromkeys([*CONTROLS, *BYTE_ALPHABET, *grown]))
    types = [CONTROL] * len(CONTROLS) + [NORMAL] * (len(tokens) - len(CONTROLS))
    return [*tokens, "<thé>"], list(dict.fromkeys(merges)), [*types, USER_DEFINED]


def sentencepiece() -> tuple[list[str], list[float], list[int]]:
    """Tokens, scores and types: unknown, BOS, EOS, a turn's end, the bytes, and pieces, the best first."""
    tokens = ["<unk>", "<s>", "</s>", "<|im_end|>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens += dict.fromkeys(PIECES)
    types = [UNKNOWN, CONTROL, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * (len(tokens) - 260)]
    scores = [0.0] * 260 + [float(-rank) for rank in range(len(tokens) - 260)]
    return [*tokens, "<b> "], [*scores, 0.0], [*types, USER_DEFINED]


def small_bpe(*, pre: str | None = "gpt-2", bos_id: int | None = 0, add_bos: bool | None = False) -> VocabTokenizer:
    """The byte-level tokenizer."""
    tokens, merges, types = byte_level()
    return from_gguf_bpe(tokens, merges, types, pre=pre, bos_id=bos_id, add_bos=add_bos)


def small_spm(*, bos_id: int | None = 1, add_bos: bool = False, add_space_prefix: bool = False) -> VocabTokenizer:
    """The SentencePiece tokenizer."""
    tokens, scores, types = sentencepiece()
    return from_gguf_spm(tokens, scores, types, bos_id=bos_id, add_bos=add_bos, add_space_prefix=add_space_prefix)


def spelled(tokenizer: VocabTokenizer, text: str) -> list[str]:
    """The pieces that a plain text becomes, byte for byte as Latin-1."""
    return [tokenizer.token_bytes(token).decode("latin-1") for token in tokenizer.encode(text, parse_special=False)]
