"""What ``import tlserve`` costs and offers."""

from __future__ import annotations

import subprocess
import sys

import tlserve


def test_import_is_cheap() -> None:
    """Importing the package loads neither numba nor numpy nor the server."""
    code = "import sys, tlserve; print(sorted({'numba', 'numpy', 'trio', 'quart'} & set(sys.modules)))"

    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert result.stdout.strip() == "[]"


def test_every_public_name_is_there() -> None:
    """Each name of the interface resolves, and is listed."""
    for name in tlserve.__all__:
        assert getattr(tlserve, name) is not None
    assert set(tlserve.__all__) <= set(dir(tlserve))
