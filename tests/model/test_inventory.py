"""Which tensors a model must have."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tlserve.errors import CheckpointError
from tlserve.model.hparams import HParams, read_hparams
from tlserve.model.inventory import Shape, check_tensors
from tlserve.weights.contents import Checkpoint

Inventory = tuple[HParams, dict[str, Shape]]


@pytest.fixture(params=["llama", "llama3", "mistral", "qwen2", "qwen3", "gemma3"])
def inventory(request: pytest.FixtureRequest, open_tiny: Callable[[str], Checkpoint]) -> Inventory:
    checkpoint = open_tiny(request.param)
    hparams = read_hparams(checkpoint.architecture, checkpoint.config)
    return hparams, {name: tensor.shape for name, tensor in checkpoint.tensors.items()}


def test_real_files_fit(inventory: Inventory) -> None:
    """What transformers saves for each architecture is exactly what is asked for."""
    check_tensors(*inventory)


def test_each_tensor_is_needed(inventory: Inventory) -> None:
    """Whichever tensor is left out, the message names it and the shape it should have."""
    hparams, shapes = inventory
    for name, shape in shapes.items():
        rest = {other: shapes[other] for other in shapes if other != name}
        with pytest.raises(CheckpointError) as caught:
            check_tensors(hparams, rest)
        assert name in str(caught.value)
        assert str(shape) in str(caught.value)


def test_each_shape_counts(inventory: Inventory) -> None:
    """Whichever tensor has one row too many, the message names it and both shapes."""
    hparams, shapes = inventory
    for name, shape in shapes.items():
        wrong = (shape[0] + 1, *shape[1:])
        with pytest.raises(CheckpointError) as caught:
            check_tensors(hparams, {**shapes, name: wrong})
        assert f"{name} has shape {wrong}" in str(caught.value)
        assert str(shape) in str(caught.value)


def test_a_tensor_that_nobody_reads_is_refused(inventory: Inventory) -> None:
    """A weight left out of the arithmetic would change the answer in silence."""
    hparams, shapes = inventory
    stranger = "model.layers.0.self_attn.sinks"
    with pytest.raises(CheckpointError, match=stranger):
        check_tensors(hparams, {**shapes, stranger: (4,)})
