"""Kyutai's speech-to-text: Mimi's codes, frame by frame, to one text token per frame."""
