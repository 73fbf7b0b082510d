"""What one step computes, and what came of it: the values between the scheduler and whoever executes its plans."""

from __future__ import annotations

from attrs import frozen

from tlserve.decode.finish import FinishReason
from tlserve.schedule.sequence import Sequence


@frozen(eq=False)
class Chunk:
    """The rows of one sequence in a step.

    Attributes:
        sequence: whose rows; only the scheduler changes it.
        start: position of the first row; everything before is computed.
        num_known: how many known tokens are computed, >= 1.
        samples: whether the last known token is among them, so that its logits yield the next one.
        drafts: guesses for the tokens after the last known one, computed along; only when it ``samples``.

    """

    sequence: Sequence
    start: int
    num_known: int
    samples: bool
    drafts: tuple[int, ...] = ()

    @property
    def num_rows(self) -> int:
        """Tokens that the forward pass computes for this sequence."""
        return self.num_known + len(self.drafts)

    @property
    def num_logits(self) -> int:
        """Last rows whose logits are wanted: none within a prefill, else one and one for each draft."""
        return 1 + len(self.drafts) if self.samples else 0


@frozen(eq=False)
class Plan:
    """One step.

    Attributes:
        chunks: a chunk per sequence that takes part, decodes first; empty when there is nothing to do.
        started: sequences that left the waiting queue for the first time.

    """

    chunks: tuple[Chunk, ...]
    started: tuple[Sequence, ...]

    @property
    def num_rows(self) -> int:
        """Tokens that the forward pass computes."""
        return sum(chunk.num_rows for chunk in self.chunks)


@frozen(eq=False)
class Outcome:
    """What a chunk led to.

    Attributes:
        chunk: the executed chunk.
        tokens: the new tokens: none within a prefill; else one, and one for each accepted draft before it.
        finish: set when the last of them ends the answer.

    """

    chunk: Chunk
    tokens: tuple[int, ...] = ()
    finish: FinishReason | None = None

    @property
    def num_accepted(self) -> int:
        """Drafts that turned out right."""
        return max(0, len(self.tokens) - 1)
