"""Voxtral: a Whisper encoder and a Llama decoder that answers about what it hears, and writes it down."""
