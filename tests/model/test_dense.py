"""The numpy runner: torch's numbers for six architectures, however the work is cut up and whoever shares it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from attrs import evolve
from numpy.typing import NDArray

from tlserve.errors import EngineError
from tlserve.model.batch import SequenceRows
from tlserve.model.runner import ModelRunner
from tlserve.weights.contents import Checkpoint
from tlserve.weights.tensor import Tensor

OpenTiny = Callable[[str], Checkpoint]
TinyReference = Callable[[str], Mapping[str, Any]]
MakeRunner = Callable[..., ModelRunner]
Forward = Callable[[ModelRunner, Sequence[SequenceRows]], NDArray[np.float32]]
LogprobsOf = Callable[[ModelRunner, Sequence[SequenceRows]], NDArray[np.float64]]
Tiny = tuple[Checkpoint, Mapping[str, Any]]


@pytest.fixture(params=["llama", "llama3", "mistral", "qwen2", "qwen3", "gemma3"])
def tiny(request: pytest.FixtureRequest, open_tiny: OpenTiny, tiny_reference: TinyReference) -> Tiny:
    """Each of the six models with what torch computed for it."""
    return open_tiny(request.param), tiny_reference(request.param)


def scrambled(num_blocks: int, seed: int = 0) -> list[int]:
    """All block ids of a pool, in no order."""
    return [int(block) for block in np.random.default_rng(seed).permutation(num_blocks)]


def in_chunks(tokens: Sequence[int], size: int, blocks: Sequence[int]) -> list[SequenceRows]:
    """A prompt cut into prefill chunks, all logits wanted."""
    cuts = range(0, len(tokens), size)
    return [SequenceRows(tokens[i : i + size], i, blocks, len(tokens[i : i + size])) for i in cuts]


@pytest.mark.parametrize("block_size", [4, 16])
@pytest.mark.parametrize("chunk", [1, 3, 7, 40])
def test_logprobs_are_those_of_torch(
    tiny: Tiny, chunk: int, block_size: int, make_runner: MakeRunner, logprobs_of: LogprobsOf
) -> None:
    """Whole or in chunks, in blocks that lie anywhere: the same logprobs at every position."""
    checkpoint, reference = tiny
    runner = make_runner(checkpoint, block_size=block_size)
    ids, blocks = reference["ids"], scrambled(runner.num_blocks)
    logprobs = np.concatenate([logprobs_of(runner, [rows]) for rows in in_chunks(ids, chunk, blocks)])
    np.testing.assert_allclose(logprobs[-1], reference["last_logprobs"], atol=1e-4)
    followed = logprobs[np.arange(len(ids) - 1), ids[1:]]
    np.testing.assert_allclose(followed, reference["next_logprobs"], atol=1e-4)


def test_greedy_tokens_are_those_of_torch(tiny: Tiny, make_runner: MakeRunner, logprobs_of: LogprobsOf) -> None:
    """Twenty-four steps of decode, each on the keys that the steps before have stored."""
    checkpoint, reference = tiny
    runner = make_runner(checkpoint, block_size=4)
    blocks = scrambled(runner.num_blocks)
    rows = SequenceRows(reference["ids"], 0, blocks, 1)
    for step in reference["greedy"]:
        logprobs = logprobs_of(runner, [rows])[0]
        token = int(logprobs.argmax())
        assert token == step["token"]
        assert logprobs[token] == pytest.approx(step["logprob"], abs=1e-4)
        rows = SequenceRows([token], rows.start + len(rows.tokens), blocks, 1)


def test_embedding_is_that_of_torch(tiny: Tiny, make_runner: MakeRunner) -> None:
    """Mean of the final-normed states, scaled to length one."""
    checkpoint, reference = tiny
    mean = make_runner(checkpoint).run_once(reference["ids"]).mean(axis=0)
    np.testing.assert_allclose(mean / np.linalg.norm(mean), reference["embedding"], atol=1e-5)


def test_company_does_not_change_the_answer(tiny: Tiny, make_runner: MakeRunner, forward: Forward) -> None:
    """A prefill, a middle chunk, a decode and a verification in one pass equal the same four alone."""
    checkpoint, ids = tiny[0], tiny[1]["ids"]
    pool = scrambled(64)
    owned = [pool[i * 16 : (i + 1) * 16] for i in range(4)]
    past = [
        SequenceRows(ids[:9], 0, owned[1], 0),
        SequenceRows(ids[5:25], 0, owned[2], 0),
        SequenceRows(ids[::-1], 0, owned[3], 0),
    ]
    now = [
        SequenceRows(ids[:33], 0, owned[0], 1),
        SequenceRows(ids[9:20], 9, owned[1], 0),
        SequenceRows([ids[25]], 20, owned[2], 1),
        SequenceRows([4, 8, 15], 40, owned[3], 3),
    ]
    together, alone = make_runner(checkpoint, block_size=4), make_runner(checkpoint, block_size=4)
    forward(together, past)
    mixed = forward(together, now)
    for rows in past:
        forward(alone, [rows])
    np.testing.assert_allclose(mixed, np.concatenate([forward(alone, [rows]) for rows in now]), atol=1e-5)


def test_rows_without_logits_cost_no_output(open_tiny: OpenTiny, make_runner: MakeRunner, forward: Forward) -> None:
    """A chunk in the middle of a prefill yields no row, only keys and values."""
    runner = make_runner(open_tiny("llama"))
    assert forward(runner, [SequenceRows([1, 2, 3], 0, [0], 0)]).shape == (0, runner.vocab_size)


def test_what_a_block_held_before_does_not_matter(
    open_tiny: OpenTiny, make_runner: MakeRunner, forward: Forward
) -> None:
    """A sequence in reused blocks gets the same logits, to the last bit, as in fresh ones."""
    used, fresh = make_runner(open_tiny("gemma3")), make_runner(open_tiny("gemma3"))
    forward(used, [SequenceRows(list(range(64)), 0, [0, 1, 2, 3], 0)])
    rows = [SequenceRows([9, 8, 7, 6, 5], 0, [2, 0], 5)]
    np.testing.assert_array_equal(forward(used, rows), forward(fresh, rows))


@pytest.mark.parametrize(("name", "reach"), [("mistral", 3 * 7), ("llama", None)])
def test_a_sliding_window_forgets(
    name: str, reach: int | None, open_tiny: OpenTiny, make_runner: MakeRunner, forward: Forward
) -> None:
    """Three layers of window 8 look back 21 tokens: farther ones change nothing, and every nearer one does."""
    runner = make_runner(open_tiny(name), block_size=4)
    ids = list(range(10, 50))
    usual = forward(runner, [SequenceRows(ids, 0, scrambled(64), 1)])
    for distance in (1, 20, 21, 22, 30, 39):
        changed = ids.copy()
        changed[-1 - distance] = 7
        logits = forward(runner, [SequenceRows(changed, 0, scrambled(64), 1)])
        assert np.array_equal(logits, usual) == (reach is not None and distance > reach), distance


def test_run_once_leaves_the_pool_alone(
    open_tiny: OpenTiny, tiny_reference: TinyReference, make_runner: MakeRunner, forward: Forward
) -> None:
    """An embedding between two steps of a sequence changes nothing for it."""
    ids = tiny_reference("qwen3")["ids"]
    first, second = SequenceRows(ids[:20], 0, [0, 1, 2], 1), SequenceRows(ids[20:], 20, [0, 1, 2], 1)
    plain, disturbed = make_runner(open_tiny("qwen3")), make_runner(open_tiny("qwen3"))
    forward(plain, [first])
    forward(disturbed, [first])
    disturbed.run_once(ids[::-1])
    np.testing.assert_array_equal(forward(disturbed, [second]), forward(plain, [second]))


def test_run_once_sees_what_forward_sees(open_tiny: OpenTiny, make_runner: MakeRunner, forward: Forward) -> None:
    """Hidden states times the tied embedding are forward's logits, over several query tiles."""
    checkpoint = open_tiny("llama")
    runner = make_runner(checkpoint)
    ids = [int(token) for token in np.random.default_rng(5).integers(0, 256, 300)]
    embedding = checkpoint.tensors["model.embed_tokens.weight"].dequantize()
    logits = forward(runner, [SequenceRows(ids, 0, scrambled(64), len(ids))])
    np.testing.assert_allclose(runner.run_once(ids) @ embedding.T, logits, atol=1e-4)


@pytest.mark.parametrize("tokens", [[], [256], [-1], [1] * 513])
def test_run_once_refuses_what_it_cannot_compute(
    tokens: list[int], open_tiny: OpenTiny, make_runner: MakeRunner
) -> None:
    """Nothing, a token outside the vocabulary, or more than the context."""
    with pytest.raises(EngineError):
        make_runner(open_tiny("llama")).run_once(tokens)


def test_llama_biases_are_added(open_tiny: OpenTiny, make_runner: MakeRunner, forward: Forward) -> None:
    """Biases of zero change nothing, and any other bias of any linear changes the logits."""
    checkpoint, rows = open_tiny("llama"), [SequenceRows([1, 2, 3], 0, [0], 3)]
    usual = forward(make_runner(checkpoint), rows)
    linears = [name for name in checkpoint.tensors if name.endswith("_proj.weight")]
    biases = {
        name.replace("weight", "bias"): np.zeros(checkpoint.tensors[name].shape[0], np.float32) for name in linears
    }
    config = {**checkpoint.config, "attention_bias": True, "mlp_bias": True}

    def biased(changes: Mapping[str, NDArray[np.float32]]) -> NDArray[np.float32]:
        tensors = {name: Tensor.from_array(name, values) for name, values in {**biases, **changes}.items()}
        changed = evolve(checkpoint, config=config, tensors={**checkpoint.tensors, **tensors})
        return forward(make_runner(changed), rows)

    np.testing.assert_array_equal(biased({}), usual)
    for name, zeros in biases.items():
        # A constant added to all keys shifts all scores of a query alike, so a key's bias must vary.
        assert not np.allclose(biased({name: np.linspace(-1, 1, len(zeros), dtype=np.float32)}), usual), name


def test_softcaps_apply(open_tiny: OpenTiny, make_runner: MakeRunner, forward: Forward) -> None:
    """Logits are squeezed to the final cap; attention scores have a cap of their own."""
    checkpoint, rows = open_tiny("gemma3"), [SequenceRows([1, 2, 3], 0, [0], 3)]

    def capped(**caps: float) -> NDArray[np.float32]:
        return forward(make_runner(evolve(checkpoint, config={**checkpoint.config, **caps})), rows)

    usual = capped()
    np.testing.assert_allclose(capped(final_logit_softcapping=0.5), 0.5 * np.tanh(usual / 0.5), atol=1e-6)
    assert not np.allclose(capped(attn_logit_softcapping=0.01), usual)
    np.testing.assert_allclose(capped(attn_logit_softcapping=1e4), usual, atol=1e-4)


def test_nan_stays_within_its_sequence(open_tiny: OpenTiny, make_runner: MakeRunner, forward: Forward) -> None:
    """A damaged weight shows in the logits of those who meet it, without a warning; others never notice."""
    checkpoint = open_tiny("llama3")
    embedding = checkpoint.tensors["model.embed_tokens.weight"].dequantize()
    embedding[3] = np.nan
    damaged = Tensor.from_array("model.embed_tokens.weight", embedding)
    runner = make_runner(evolve(checkpoint, tensors={**checkpoint.tensors, damaged.name: damaged}))
    logits = forward(runner, [SequenceRows([1, 3], 0, [0], 1), SequenceRows([1, 2], 0, [1], 1)])
    assert np.isnan(logits[0]).all()
    assert np.isfinite(logits[1]).all()
