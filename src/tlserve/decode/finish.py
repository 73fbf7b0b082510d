"""Why a generation came to its end."""

from __future__ import annotations

from enum import Enum


class FinishReason(Enum):
    """The values are the words of the API."""

    STOP = "stop"
    """The model chose one of the request's stop ids. (Stop strings are found later, in the text.)"""

    LENGTH = "length"
    """The request has as many tokens as it asked for."""
