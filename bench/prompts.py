"""Prompts that no server has seen before: words drawn from a seed, so that a prefix cache finds nothing."""

from __future__ import annotations

import random

WORDS = """
anchor autumn barrel beacon blanket bottle branch bronze canyon carpet castle cherry circle copper corner cradle desert
dinner dragon engine falcon feather finger flower forest garlic glacier granite hammer harvest hollow island jacket
jungle kettle ladder lantern marble meadow mirror mustard needle oyster pebble pencil pillow pocket rabbit ribbon saddle
shadow silver spider spring stable summer temple thunder ticket tunnel valley velvet violet walnut window winter yellow
"""


def words(count: int, seed: object) -> str:
    """So many words; another seed, other words from the first on."""
    chosen = random.Random(str(seed)).choices(WORDS.split(), k=count)
    return " ".join(chosen)
