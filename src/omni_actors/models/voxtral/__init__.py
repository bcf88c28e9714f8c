"""Voxtral: a Whisper encoder, and a Llama decoder that answers questions about sound and transcribes sound."""
