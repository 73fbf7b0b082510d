"""Servers that all cases share: a model that counts, one that waves, a real one; and the full tier."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from support import SUCC_TEMPLATE, Serve, Server, shift_logits, write_bigram


@pytest.fixture(scope="session")
def counting(serve_shared: Serve, succ_dir: Path) -> Server:
    """After byte i comes byte i + 1. The engine tier."""
    return serve_shared(succ_dir)


@pytest.fixture(scope="session")
def full(serve_shared: Serve, succ_dir: Path) -> Server:
    """The same model in the full tier."""
    return serve_shared(succ_dir, api_tier="full")


@pytest.fixture(scope="session")
def waving(serve_shared: Serve, tmp_path_factory: pytest.TempPathFactory) -> Server:
    """Whatever it is asked, it says 👋é and a space over and over, one byte a token."""
    return serve_shared(write_bigram(tmp_path_factory.mktemp("models") / "waving", circle_logits("👋é ")))


@pytest.fixture(scope="session")
def silent(serve_shared: Serve, tmp_path_factory: pytest.TempPathFactory) -> Server:
    """It counts, but ``!`` is its end of text, and comes at once after a space."""
    directory = write_bigram(tmp_path_factory.mktemp("models") / "silent", shift_logits(1))
    generation = {"chat_template": SUCC_TEMPLATE, "eos_token_id": ord("!")}
    (directory / "generation_config.json").write_text(json.dumps(generation))
    return serve_shared(directory)


@pytest.fixture(scope="session")
def hot(serve_shared: Serve, tmp_path_factory: pytest.TempPathFactory) -> Server:
    """All 256 bytes are equally likely at any time: its answers are noise, and differ by seed."""
    directory = write_bigram(tmp_path_factory.mktemp("models") / "hot", np.zeros((256, 256)))
    return serve_shared(directory, api_tier="full")


@pytest.fixture(scope="session")
def llama(serve_shared: Serve, tiny_models: Path) -> Server:
    """A small random transformer over bytes."""
    return serve_shared(tiny_models / "tiny-llama")


@pytest.fixture(scope="session")
def smollm2(serve_shared: Serve, smollm2_path: Path) -> Server:
    """The real model, whose tokens are words and whose template has control tokens."""
    return serve_shared(smollm2_path, engine={"num_blocks": 512})


def circle_logits(text: str) -> NDArray[Any]:
    """Logits [256, 256] of a model that says the bytes of ``text`` in a circle, all different, and begins it after any other."""
    data = text.encode()
    table = np.zeros((256, 256), dtype=np.float32)
    table[:, data[0]] = 50
    for byte, following in zip(data, data[1:] + data[:1], strict=True):
        table[byte] = 0
        table[byte, following] = 50
    return table
