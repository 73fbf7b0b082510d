"""A Hugging Face folder is read with all its companions, and a bad one says which file and key is wrong."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tlserve.errors import CheckpointError, UnsupportedModelError
from tlserve.weights.checkpoint import ByteTokenizer, JsonTokenizer, open_checkpoint

TOKENIZER = json.dumps({"added_tokens": [{"id": 3, "content": "<s>"}, {"id": 4, "content": "<|im_end|>"}], "model": {}})
DECODER = {"5": {"content": "<begin>"}, "6": {"content": "<end>"}}

Folder = Callable[..., Path]


@pytest.fixture
def folder(tmp_path: Path, tiny_models: Path) -> Folder:
    """The tiny llama with changed files: text as it is, anything else as JSON, None removes it."""

    def make(files: Mapping[str, Any] | None = None, config: Mapping[str, Any] | None = None) -> Path:
        path = tmp_path / "model"
        shutil.copytree(tiny_models / "tiny-llama", path)
        changed = json.loads((path / "config.json").read_text()) | dict(config or {})
        (path / "config.json").write_text(json.dumps({k: v for k, v in changed.items() if v is not ...}))
        for name, content in (files or {}).items():
            if content is None:
                (path / name).unlink()
            else:
                (path / name).write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    return make


@pytest.mark.parametrize("name", ["llama", "llama3", "mistral", "qwen2", "qwen3", "gemma3"])
def test_tiny_models(tiny_models: Path, name: str) -> None:
    """One of each architecture: values as an independent reader gives them, bytes for a tokenizer."""
    path = tiny_models / f"tiny-{name}"
    checkpoint = open_checkpoint(path)
    assert checkpoint.architecture == name.removesuffix("3" if name == "llama3" else "-")
    assert checkpoint.tokenizer == ByteTokenizer()
    assert checkpoint.eos_token_ids == (2,)
    assert checkpoint.chat_template is None
    assert checkpoint.config["hidden_size"] == 64
    values = load_file(path / "model.safetensors")
    assert checkpoint.tensors.keys() == values.keys()
    assert checkpoint.num_parameters == sum(v.size for v in values.values())
    for key, tensor in checkpoint.tensors.items():
        np.testing.assert_array_equal(tensor.dequantize(), values[key])


TEMPLATES = [
    ({"generation_config.json": {"chat_template": "G"}, "tokenizer_config.json": {"chat_template": "T"}}, "G"),
    ({"tokenizer_config.json": {"chat_template": "T"}, "chat_template.jinja": "J"}, "T"),
    (
        {
            "tokenizer_config.json": {
                "chat_template": [
                    {"name": "tool_use", "template": "U"},
                    {"name": "default", "template": "D"},
                ]
            }
        },
        "D",
    ),
    ({"tokenizer_config.json": {"chat_template": [{"name": "rag", "template": "R"}]}, "chat_template.jinja": "J"}, "J"),
    ({"chat_template.jinja": "J ü"}, "J ü"),
    ({}, None),
]


@pytest.mark.parametrize(("files", "template"), TEMPLATES)
def test_chat_template(folder: Folder, files: Mapping[str, Any], template: str | None) -> None:
    """generation_config.json, then tokenizer_config.json (the default one of several), then chat_template.jinja."""
    assert open_checkpoint(folder(files)).chat_template == template


@pytest.mark.parametrize(
    ("files", "ends"),
    [
        ({"generation_config.json": {"eos_token_id": [9, 8]}}, (9, 8, 2)),
        ({"generation_config.json": {"eos_token_id": 7}}, (7, 2)),
        ({"generation_config.json": None}, (2,)),
        (
            {"tokenizer.json": TOKENIZER, "tokenizer_config.json": {"eos_token": "<|im_end|>"}},
            (2, 4),
        ),
        (
            {
                "tokenizer.json": TOKENIZER,
                "tokenizer_config.json": {"eos_token": {"content": "<end>"}, "added_tokens_decoder": DECODER},
            },
            (2, 6),
        ),
    ],
)
def test_end_tokens(folder: Folder, files: Mapping[str, Any], ends: tuple[int, ...]) -> None:
    """All that any of the three files names as an end, each once."""
    assert open_checkpoint(folder(files)).eos_token_ids == ends


def test_tokenizer(folder: Folder) -> None:
    """tokenizer.json goes on as bytes; the template's texts are tokenizer_config.json's, or found by their ids."""
    files = {"tokenizer.json": TOKENIZER, "tokenizer_config.json": {"eos_token": "<|im_end|>", "add_bos_token": True}}
    checkpoint = open_checkpoint(folder(files, {"bos_token_id": 3}))
    assert checkpoint.tokenizer == JsonTokenizer(data=TOKENIZER.encode(), add_bos=True)
    assert (checkpoint.bos_token, checkpoint.eos_token) == ("<s>", "<|im_end|>")


def test_sampling_defaults(folder: Folder) -> None:
    """The recommended sampling is passed on, unless the model recommends greedy decoding."""
    advice = {"temperature": 0.7, "top_k": 20, "max_length": 99}
    path = folder({"generation_config.json": advice})
    assert open_checkpoint(path).generation_defaults == {"temperature": 0.7, "top_k": 20.0}
    (path / "generation_config.json").write_text(json.dumps(advice | {"do_sample": False}))
    assert open_checkpoint(path).generation_defaults == {}


def rewrite(path: Path, change: Callable[[dict[str, np.ndarray]], None]) -> None:
    tensors = load_file(path / "model.safetensors")
    change(tensors)
    save_file(tensors, path / "model.safetensors")


@pytest.mark.parametrize(("tied", "kept"), [(True, False), (False, True), (..., True)])
def test_second_copy_of_a_tied_embedding_is_dropped(folder: Folder, tied: Any, *, kept: bool) -> None:
    """Where embeddings are tied there is one matrix, even if the file has two."""
    path = folder(config={"tie_word_embeddings": tied})
    rewrite(path, lambda tensors: tensors.update({"lm_head.weight": np.zeros((256, 64), np.float32)}))
    checkpoint = open_checkpoint(path)
    assert ("lm_head.weight" in checkpoint.tensors) is kept
    assert checkpoint.config["tie_word_embeddings"] is (tied is True)


def test_old_buffers_are_left_out(folder: Folder) -> None:
    """Rope frequencies that old exports saved are no weights."""
    path = folder()
    buffer = "model.layers.0.self_attn.rotary_emb.inv_freq"
    rewrite(path, lambda tensors: tensors.update({buffer: np.zeros(8, np.float32)}))
    assert buffer not in open_checkpoint(path).tensors


@pytest.mark.parametrize(
    ("files", "config", "problem"),
    [
        ({"config.json": "{"}, {}, r"config.json: not valid JSON"),
        ({"config.json": "[" * 100_000}, {}, r"config.json: not valid JSON"),
        ({"config.json": "[]"}, {}, r"config.json: holds a JSON list, expected an object"),
        ({}, {"model_type": ...}, r"config.json: model_type is missing"),
        ({}, {"model_type": 7}, r"config.json: model_type is 7, expected a string"),
        ({}, {"vocab_size": 4096}, r"tokenizer.json is missing; only a model of 256 tokens .* this has 4096"),
        ({}, {"vocab_size": True}, r"config.json: vocab_size is True, expected a whole number"),
        ({"tokenizer.model": ""}, {"vocab_size": 99}, r"a tokenizer.model alone is not read"),
        ({}, {"tie_word_embeddings": "no"}, r"config.json: tie_word_embeddings is 'no', expected true or false"),
        ({"generation_config.json": {"eos_token_id": "2"}}, {}, r"generation_config.json: eos_token_id is '2'"),
        (
            {"generation_config.json": {"eos_token_id": [1, -1]}},
            {},
            r"generation_config.json: eos_token_id is \[1, -1\]",
        ),
        ({"generation_config.json": {"temperature": "hot"}}, {}, r"temperature is 'hot', expected a number"),
        ({"generation_config.json": {"chat_template": 1}}, {}, r"generation_config.json: chat_template is 1"),
        ({"tokenizer_config.json": {"chat_template": [1]}}, {}, r"tokenizer_config.json: chat_template is \[1\]"),
        (
            {"tokenizer_config.json": {"chat_template": [{"name": "x"}, {"name": "default"}]}},
            {},
            r"\[1\]: template is mi",
        ),
        (
            {"tokenizer.json": "{}", "tokenizer_config.json": {"added_tokens_decoder": {"x": {}}}},
            {},
            r"token ids as keys",
        ),
        ({"tokenizer.json": "{"}, {}, r"tokenizer.json: not valid JSON"),
        ({"model.safetensors": None}, {}, r"no weights: looked for model.safetensors and model.safetensors.index.json"),
    ],
)
def test_bad_folder(folder: Folder, files: Mapping[str, Any], config: Mapping[str, Any], problem: str) -> None:
    """The message names the file, the key, its value and what was expected."""
    path = folder({**files}, config)
    with pytest.raises(CheckpointError, match=problem):
        open_checkpoint(path)


def test_template_that_is_not_text(folder: Folder) -> None:
    """A template in another encoding is refused by its file's name."""
    path = folder()
    (path / "chat_template.jinja").write_bytes(b"gr\xfc\xdfe")
    with pytest.raises(CheckpointError, match=r"chat_template.jinja: not UTF-8 at byte 2"):
        open_checkpoint(path)


def test_other_architecture_is_refused(folder: Folder) -> None:
    """The message lists what is served."""
    with pytest.raises(
        UnsupportedModelError, match=r"'mixtral' is not served; served are llama, .*, gemma3_text, bigram"
    ):
        open_checkpoint(folder(config={"model_type": "mixtral"}))


def test_bigram(succ_dir: Path) -> None:
    """A bigram is one table, over bytes; the rest of its folder is read as usual."""
    checkpoint = open_checkpoint(succ_dir)
    assert checkpoint.architecture == "bigram"
    assert checkpoint.config["vocab_size"] == 256
    assert checkpoint.tensors["logits"].dequantize()[ord("a")].argmax() == ord("b")
    assert checkpoint.tokenizer == ByteTokenizer()
    assert checkpoint.chat_template == "{% for m in messages %}{{ m.content }}{% endfor %}"


@pytest.mark.parametrize(
    ("tensors", "problem"),
    [
        ({"logits": np.zeros((256, 255), np.float32)}, r"it is \(256, 255\) F32"),
        ({"logits": np.zeros((256, 256), np.float16)}, r"it is \(256, 256\) F16"),
        ({"table": np.zeros((256, 256), np.float32)}, "it is missing"),
    ],
)
def test_bad_bigram(tmp_path: Path, tensors: dict[str, np.ndarray], problem: str) -> None:
    """A table of another shape, type or name is refused."""
    (tmp_path / "config.json").write_text('{"model_type": "bigram"}')
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=problem):
        open_checkpoint(tmp_path)
