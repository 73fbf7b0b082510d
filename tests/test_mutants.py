"""The list of faults stays true to the source: each still has its place, and the test that is to find it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.mutants import Mutant, read_mutants

ROOT = Path(__file__).resolve().parents[1]
MUTANTS = read_mutants()


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.id for mutant in MUTANTS])
def test_a_fault_fits_the_source(mutant: Mutant) -> None:
    """``make mutants`` can apply it, and the test that it names exists."""
    source = (ROOT / mutant.file).read_text()
    assert mutant.applied(source) != source
    for test in mutant.killed_by:
        file, _, name = test.partition("::")
        assert f"def {name}(" in (ROOT / file).read_text()


def test_a_fault_that_fits_no_more_is_named() -> None:
    """After a change of the source the tool says which entry must follow, and does not pass in silence."""
    mutant = MUTANTS[0]
    with pytest.raises(ValueError, match=rf"{mutant.id}: .* has 0 places"):
        mutant.applied("something else")
    with pytest.raises(ValueError, match="has 2 places"):
        mutant.applied(mutant.old * 2)
