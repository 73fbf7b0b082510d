"""The bigram table: a model that answers each byte with a distribution over the next one.

Its folder holds ``config.json`` with ``{"model_type": "bigram"}`` and ``model.safetensors`` with ``logits``, float32
(256, 256): row b are the logits of what follows byte b. The rest of the folder is read like any other.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tlserve.errors import CheckpointError
from tlserve.weights.tensor import Tensor

MODEL_TYPE: Final = "bigram"
LOGITS: Final = "logits"
SHAPE: Final = (256, 256)


def check_table(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Refuse a folder without the table.

    Raises:
        CheckpointError: the table is missing or has another shape or type.
    """
    table = tensors.get(LOGITS)
    if table is None or table.shape != SHAPE or table.type_name != "F32":
        found = "missing" if table is None else f"{table.shape} {table.type_name}"
        raise CheckpointError(f"{folder}: a bigram's tensor {LOGITS!r} must be {SHAPE} F32; it is {found}")
