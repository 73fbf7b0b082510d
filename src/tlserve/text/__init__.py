"""Text to token ids and back: tokenizers, chat templates, streamed text."""
