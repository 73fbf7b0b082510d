"""tlserve: an OpenAI-compatible inference server for language models on the CPU."""
