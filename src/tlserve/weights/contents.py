"""What opening a model yields: plain values and lazy tensors, the same whatever files they came from.

Leaves reading to `gguf_model`, `folder` and `bigram`; building tokenizers and runners to the rooms above.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from attrs import field, frozen

from tlserve.weights.tensor import Tensor


@frozen(kw_only=True)
class JsonTokenizer:
    """A Hugging Face ``tokenizer.json``.

    ``add_bos`` is what tokenizer_config.json asks for; None: the file's own post-processor decides.
    """

    data: bytes = field(repr=False)
    add_bos: bool | None = None


@frozen(kw_only=True)
class GgufBpe:
    """A byte-level BPE vocabulary from GGUF (``tokenizer.ggml.model`` = "gpt2").

    Attributes:
        tokens: text of each id, bytes spelled in GPT-2's printable alphabet.
        token_types: per id 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte.
        merges: "left right" pairs, best first.
        pre: name of the split rule, such as "smollm", "llama-bpe" or "qwen2"; "default" where the file has none.
    """

    tokens: tuple[str, ...] = field(repr=False)
    token_types: tuple[int, ...] = field(repr=False)
    merges: tuple[str, ...] = field(repr=False)
    pre: str
    bos_id: int | None
    eos_id: int | None
    unk_id: int | None
    add_bos: bool
    add_eos: bool
    add_space_prefix: bool


@frozen(kw_only=True)
class GgufSpm:
    """A SentencePiece vocabulary from GGUF (``tokenizer.ggml.model`` = "llama").

    ``tokens`` spell a space as U+2581 and bytes as ``<0x0A>``; ``scores`` rank merges, higher first; ``token_types``
    as in `GgufBpe`.
    """

    tokens: tuple[str, ...] = field(repr=False)
    scores: tuple[float, ...] = field(repr=False)
    token_types: tuple[int, ...] = field(repr=False)
    bos_id: int | None
    eos_id: int | None
    unk_id: int | None
    add_bos: bool
    add_eos: bool
    add_space_prefix: bool


@frozen
class ByteTokenizer:
    """Token i is byte i; 256 of them."""


TokenizerSource: TypeAlias = JsonTokenizer | GgufBpe | GgufSpm | ByteTokenizer
"""The vocabulary as plain data; `tlserve.text` builds tokenizers from it."""


@frozen(kw_only=True, eq=False)
class Checkpoint:
    """A model as found on disk, in Hugging Face vocabulary also when it comes from GGUF.

    Conventions that every reader keeps, so that a runner need not ask where weights come from:

    * Linear weights are (outputs, inputs). Query and key rows are ordered for half-split rope (dimension i turns with
      i + head_dim / 2); GGUF's llama files order them for interleaved rope and are re-ordered on the way in.
    * Norm weights are Hugging Face's: llama, mistral, qwen2 and qwen3 multiply by ``weight``, gemma3 multiplies by
      ``1 + weight``. GGUF's gemma files hold ``1 + weight``; the one is taken off on the way in.
    * A tensor ``rope_freqs`` (float32, head_dim / 2), if there is one, divides each rope frequency by its entry.
    * ``config["tie_word_embeddings"]`` is always set; where it is true there is no ``lm_head.weight``.

    Attributes:
        architecture: "llama", "mistral", "qwen2", "qwen3", "gemma3" or "bigram".
        config: config.json's keys and values (hidden_size, num_hidden_layers, rope_theta, ...), not yet checked.
        tensors: Hugging Face names to tensors; a bigram has one, ``logits`` (256, 256) float32.
        tokenizer: the vocabulary.
        chat_template: Jinja source, or None where the model brings none.
        bos_token, eos_token: text of the begin and end tokens for the template; "" where the model has none.
        eos_token_ids: tokens that end an answer, the principal one first.
        generation_defaults: temperature, top_p, top_k, min_p, repetition_penalty as far as the model recommends them.
        source: the path and kind, for the log.
    """

    architecture: str
    config: Mapping[str, object] = field(repr=False)
    tensors: Mapping[str, Tensor] = field(repr=False)
    tokenizer: TokenizerSource
    chat_template: str | None = field(repr=False)
    bos_token: str
    eos_token: str
    eos_token_ids: tuple[int, ...]
    generation_defaults: Mapping[str, float] = field(factory=dict)
    source: str

    @property
    def num_parameters(self) -> int:
        """Weights in all tensors."""
        return sum(tensor.num_elements for tensor in self.tensors.values())

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors in their files."""
        return sum(tensor.num_bytes for tensor in self.tensors.values())
