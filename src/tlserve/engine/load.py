"""From a configuration to a running engine: fetch, open, size, load, warm.

Runs in the engine thread, takes seconds to minutes, and reports how far it is; the report may end it.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from attrs import frozen

from tlserve.config import ServeConfig
from tlserve.decode.sampler import warm_sampler
from tlserve.engine.engine import Engine
from tlserve.engine.machine import available_cpus, available_memory
from tlserve.engine.progress import LoadPhase, LoadProgress, Report
from tlserve.engine.vocabulary import build_tokenizer
from tlserve.errors import ConfigError
from tlserve.model.batch import ForwardBatch, SequenceRows
from tlserve.model.load import context_length, kv_bytes_per_block, load_runner
from tlserve.model.runner import ModelRunner
from tlserve.text.prompt import PromptRenderer
from tlserve.text.template import DEFAULT_TEMPLATE, Template
from tlserve.text.tokenizer import Tokenizer
from tlserve.weights.checkpoint import Checkpoint, open_checkpoint
from tlserve.weights.progress import Progress
from tlserve.weights.pull import pull

KV_SHARE_OF_MEMORY = 0.25
"""The part of the memory limit that KV blocks may take when nobody says how much."""

DEFAULT_KV_TOKENS = 16384
"""Enough KV for this many tokens, or for one context where that is longer, when nobody says how much."""


@frozen(kw_only=True)
class ServedModel:
    """What the loop thread needs to know of the model: words, not weights. Safe to use from any thread."""

    id: str
    created: int
    tokenizer: Tokenizer
    prompts: PromptRenderer
    eos_token_ids: frozenset[int]
    max_model_len: int
    vocab_size: int
    description: str
    facts: dict[str, object]


@frozen
class LoadedEngine:
    """An engine that is ready to step, and the words that belong to it."""

    engine: Engine
    model: ServedModel


def load_engine(
    config: ServeConfig, report: Report, *, on_fetch: Callable[[Progress], None] = lambda _: None
) -> LoadedEngine:
    """Load what ``config`` names; ``on_fetch`` hears how far a download is, to show it to a person.

    Raises:
        StartupError: the model cannot be fetched, is broken, or is not supported.
        ConfigError: a limit in the configuration contradicts the model.
        LoadCancelled: by way of ``report``.
    """
    started_at = time.monotonic()
    checkpoint = _open(config, report, on_fetch)
    tokenizer = build_tokenizer(checkpoint.tokenizer, bos_token=checkpoint.bos_token or None)
    template = Template.parse(checkpoint.chat_template or DEFAULT_TEMPLATE)
    runner = _load_runner(config, checkpoint, report)
    engine = Engine(runner, config.engine, config.queue_capacity)
    _warm(runner, report)
    model = ServedModel(
        id=config.model_id,
        created=int(time.time()),
        tokenizer=tokenizer,
        prompts=PromptRenderer(
            template, control=tokenizer.special_tokens, bos=checkpoint.bos_token, eos=checkpoint.eos_token
        ),
        eos_token_ids=frozenset(checkpoint.eos_token_ids),
        max_model_len=engine.max_model_len(),
        vocab_size=runner.vocab_size,
        description=runner.description,
        facts=_facts(checkpoint, runner, engine, started_at),
    )
    return LoadedEngine(engine, model)


def _open(config: ServeConfig, report: Report, on_fetch: Callable[[Progress], None]) -> Checkpoint:
    if config.model_source is not None:

        def fetching(progress: Progress) -> None:
            on_fetch(progress)
            fraction = progress.bytes_done / progress.bytes_total if progress.bytes_total else None
            report(LoadProgress(LoadPhase.FETCHING, fraction, progress.phase))

        report(LoadProgress(LoadPhase.FETCHING, detail=config.model_source))
        pull(config.model_source, config.model_dir, report=fetching, cancelled=lambda: False)
    report(LoadProgress(LoadPhase.LOADING, 0.0))
    return open_checkpoint(config.model_dir)


def _load_runner(config: ServeConfig, checkpoint: Checkpoint, report: Report) -> ModelRunner:
    engine = config.engine
    limit = context_length(checkpoint)
    if engine.max_model_len is not None and engine.max_model_len > limit:
        raise ConfigError(
            f"engine.max_model_len = {engine.max_model_len} is above the {limit} tokens that this model was made for"
        )
    max_model_len = engine.max_model_len or limit
    return load_runner(
        checkpoint,
        kernels=engine.kernels,
        weights=engine.weights,
        num_blocks=_num_blocks(config, checkpoint, max_model_len),
        block_size=engine.block_size,
        max_model_len=max_model_len,
        threads=engine.threads or available_cpus(),
        report=lambda fraction: report(LoadProgress(LoadPhase.LOADING, fraction)),
        report_compile=lambda name, number, total: report(
            LoadProgress(LoadPhase.WARMING, (number - 1) / total, f"kernel {name}, {number} of {total}")
        ),
    )


def _num_blocks(config: ServeConfig, checkpoint: Checkpoint, max_model_len: int) -> int:
    """As many KV blocks as were asked for, or as fit the memory that was, or what serves one context comfortably."""
    engine = config.engine
    if engine.num_blocks is not None:
        return engine.num_blocks
    block_bytes = kv_bytes_per_block(
        checkpoint, kernels=engine.kernels, weights=engine.weights, block_size=engine.block_size
    )
    enough = -(-max(max_model_len, DEFAULT_KV_TOKENS) // engine.block_size)
    if block_bytes == 0:
        return enough
    if engine.kv_memory is not None:
        fitting = engine.kv_memory // block_bytes
        if fitting == 0:
            raise ConfigError(
                f"engine.kv_memory = {engine.kv_memory} bytes holds no KV block; one takes {block_bytes} bytes"
            )
        return fitting
    return max(1, min(enough, int(available_memory() * KV_SHARE_OF_MEMORY) // block_bytes))


def _warm(runner: ModelRunner, report: Report) -> None:
    """Run one token through the model and draw one, so that the first request pays for nothing but itself."""
    report(LoadProgress(LoadPhase.WARMING, 1.0, "sampler"))
    row = SequenceRows(tokens=(0,), start=0, block_ids=(0,), num_logits=1)
    runner.forward(
        ForwardBatch.build(
            [row], vocab_size=runner.vocab_size, num_blocks=runner.num_blocks, block_size=runner.block_size
        )
    )
    warm_sampler(runner.vocab_size)


def _facts(checkpoint: Checkpoint, runner: ModelRunner, engine: Engine, started_at: float) -> dict[str, object]:
    """What the log says about a model that is ready."""
    return {
        "model_from": checkpoint.source,
        "runner": runner.description,
        "max_model_len": engine.max_model_len(),
        "kv_tokens": runner.num_blocks * runner.block_size,
        "kv_mib": round(runner.num_blocks * runner.kv_bytes_per_block / 2**20, 1),
        "load_s": round(time.monotonic() - started_at, 2),
    }
