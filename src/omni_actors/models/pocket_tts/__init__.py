"""Kyutai's Pocket TTS: a transformer and a flow head generate latents, and a Mimi codec decodes the latents."""
