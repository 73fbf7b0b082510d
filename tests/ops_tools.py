"""Tools of operators that tests run: found on the PATH, or said to be missing."""

from __future__ import annotations

import os
import shutil
from typing import NoReturn

import pytest

_REQUIRED = "TLSERVE_REQUIRE_OPS_TOOLS"


def required_tool(name: str, *, package: str) -> str:
    """Where the program is.

    A machine without it skips the test, saying what to install; one that sets TLSERVE_REQUIRE_OPS_TOOLS=1, as CI does, fails it.
    """
    path = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    if path is None:
        missing(f"{name} is not installed; install the Debian package {package}")
    return path


def missing(what: str) -> NoReturn:
    """Skip the test, or fail it where nothing may be missing."""
    if os.environ.get(_REQUIRED):
        pytest.fail(f"{what} ({_REQUIRED} is set)")
    # Only where nobody asked for it: who changes a kernel need not install a balancer. CI sets the variable, and nothing is skipped there.
    pytest.skip(what)
