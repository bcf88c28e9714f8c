"""Qwen3-TTS (12 Hz): a talker that writes codec frames, and the codec that sounds them."""
