from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["tlserve.decode.params", "tlserve.decode.finish", "tlserve.engine.messages"])
def test_what_the_http_side_imports_needs_no_numpy(module: str) -> None:
    """The words that cross the wall are importable without the machinery below it."""
    code = f"import sys, {module}; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
