"""Architectures and the runner: a batch of tokens to logits."""
