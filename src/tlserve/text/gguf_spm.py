"""Placeholder until this file is written."""

from __future__ import annotations

from typing import Any

from tlserve.errors import UnsupportedModelError
from tlserve.text.tokenizer import Tokenizer


def from_gguf_spm(*args: Any, **kwargs: Any) -> Tokenizer:
    raise UnsupportedModelError("not yet")
