"""KV blocks by id: the pool, the radix prefix tree, the manager."""
