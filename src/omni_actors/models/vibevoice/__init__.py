"""Microsoft's VibeVoice: a language model says when to speak, a diffusion head makes sound, and the model hears it."""
