"""Logits to tokens: sampling parameters, the sampler, draft proposals."""
