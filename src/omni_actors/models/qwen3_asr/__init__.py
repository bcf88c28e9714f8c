"""Qwen3-ASR: speech recognition by an audio tower and a Qwen3 decoder."""
