"""Bytes on disk to named tensors: GGUF, safetensors, downloads."""
