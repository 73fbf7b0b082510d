"""``python -m tlserve``."""

from __future__ import annotations

import sys

from tlserve.cli import main

sys.exit(main())
