"""The tokenizer of the real model."""

from __future__ import annotations

from pathlib import Path

import pytest

from tlserve.engine.vocabulary import build_tokenizer
from tlserve.text.tokenizer import Tokenizer
from tlserve.weights.checkpoint import open_checkpoint


@pytest.fixture(scope="session")
def smollm2(smollm2_path: Path) -> Tokenizer:
    """Built from the metadata of the GGUF file."""
    return build_tokenizer(open_checkpoint(smollm2_path).tokenizer)
