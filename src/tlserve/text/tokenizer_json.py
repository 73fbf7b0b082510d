"""Placeholder until this file is written."""

from __future__ import annotations

from typing import Any

from tlserve.errors import UnsupportedModelError
from tlserve.text.tokenizer import Tokenizer


def from_tokenizer_json(*args: Any, **kwargs: Any) -> Tokenizer:
    raise UnsupportedModelError("not yet")
