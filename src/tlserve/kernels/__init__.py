"""The arithmetic: pure functions over arrays."""
