"""No case is forgotten: each has a test here that is named after it, or one elsewhere, or a reason why it has none."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
import tomli

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
TITLES: dict[str, str] = tomli.loads((ROOT / "tests" / "data" / "cases" / "titles.toml").read_text("utf-8"))
ELSEWHERE: dict[str, list[str]] = tomli.loads((HERE / "elsewhere.toml").read_text("utf-8"))
NOT_APPLICABLE: dict[str, str] = tomli.loads((HERE / "not_applicable.toml").read_text("utf-8"))


def names_in(path: Path) -> set[str]:
    """The names of the test functions of a file."""
    nodes: list[Any] = [node for node in ast.parse(path.read_text("utf-8")).body if hasattr(node, "name")]
    return {node.name for node in nodes if node.name.startswith("test_")}


def cases_of(name: str) -> list[str]:
    """The cases that a test is named after: ``test_str_01_str_02_the_role_comes_first`` shows STR-01 and STR-02."""
    match = re.match(r"test_((?:[a-z]+_\d\d_)*)", name)
    found = re.findall(r"([a-z]+)_(\d\d)_", match[1] if match else "")
    return [f"{area.upper()}-{number}" for area, number in found]


NAMED = {case for path in HERE.glob("test_*.py") for name in names_in(path) for case in cases_of(name)}


def test_there_are_all_of_them() -> None:
    """136 from reports and 25 from specifications."""
    from_specifications = [case for case in TITLES if case.startswith("SPC-")]
    assert (len(TITLES) - len(from_specifications), len(from_specifications)) == (136, 25)


@pytest.mark.parametrize("case", TITLES)
def test_each_is_shown_or_set_aside(case: str) -> None:
    """And not both."""
    assert (case in NAMED or case in ELSEWHERE) != (case in NOT_APPLICABLE), TITLES[case]


def test_no_name_is_made_up() -> None:
    """What tests and tables name are cases."""
    assert NAMED | set(ELSEWHERE) | set(NOT_APPLICABLE) <= set(TITLES)
    assert all(len(reason) > 20 for reason in NOT_APPLICABLE.values())


@pytest.mark.parametrize("case", ELSEWHERE)
def test_tests_elsewhere_are_there(case: str) -> None:
    """Under the name that the table has."""
    for node in ELSEWHERE[case]:
        path, _, name = node.partition("::")
        assert name in names_in(ROOT / path), node
