"""Progress is a bar on a terminal and a line now and then in a log."""

from __future__ import annotations

import io

import pytest

from tlserve.weights.progress import Progress, ProgressPrinter, describe


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("progress", "text"),
    [
        (Progress("waiting", 0, None), "model: waiting"),
        (Progress("downloading", 1_250_000, None), "model: downloading  1.2 MB"),
        (
            Progress("unpacking", 5_000_000, 10_000_000),
            f"model: unpacking  5.0 MB of 10.0 MB  [{'#' * 15}{' ' * 15}]  50%",
        ),
        (Progress("verifying", 3, 2), f"model: verifying  0.0 MB of 0.0 MB  [{'#' * 30}] 100%"),
    ],
)
def test_words(progress: Progress, text: str) -> None:
    """A share is shown where the total is known, and never above all."""
    assert describe(progress) == text


def test_log_has_few_lines() -> None:
    """In a log: the start and the end of a phase, and one line every ten seconds."""
    stream, clock = io.StringIO(), Clock()
    printer = ProgressPrinter(stream, clock)
    for second in range(26):
        clock.now = second
        printer(Progress("downloading", second * 1_000_000, 25_000_000))
    printer(Progress("verifying", 0, 25_000_000))
    printer.finish()
    lines = stream.getvalue().splitlines()
    assert [line.split("  ")[1] for line in lines] == [
        "0.0 MB of 25.0 MB",
        "10.0 MB of 25.0 MB",
        "20.0 MB of 25.0 MB",
        "25.0 MB of 25.0 MB",
        "0.0 MB of 25.0 MB",
    ]


def test_end_is_told_once() -> None:
    """Repeating the last observation adds nothing."""
    stream = io.StringIO()
    printer = ProgressPrinter(stream, Clock())
    for _ in range(3):
        printer(Progress("copying", 8, 8))
    assert len(stream.getvalue().splitlines()) == 1


def test_bar_redraws_one_line() -> None:
    """On a terminal: the same line over and over, ten times a second at most, blanked where it gets shorter."""
    stream, clock = Terminal(), Clock()
    printer = ProgressPrinter(stream, clock)
    printer(Progress("downloading", 1_000_000, 8_000_000))
    clock.now = 0.05
    printer(Progress("downloading", 2_000_000, 8_000_000))
    clock.now = 0.11
    printer(Progress("waiting", 0, None))
    printer.finish()
    first, last = stream.getvalue().split("\r")[1:]
    assert "1.0 MB" in first
    assert last == "model: waiting".ljust(len(first)) + "\n"


def test_nothing_shown_needs_no_line_end() -> None:
    """A fetch that had nothing to do leaves the terminal alone."""
    stream = Terminal()
    ProgressPrinter(stream).finish()
    assert not stream.getvalue()
