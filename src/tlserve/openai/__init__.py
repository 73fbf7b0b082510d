"""The v1 documents: bytes to validated requests, results to responses and chunks."""
