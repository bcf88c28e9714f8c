"""Kyutai's Pocket TTS: a transformer and a flow head that make latents, and Mimi's architecture around those."""
