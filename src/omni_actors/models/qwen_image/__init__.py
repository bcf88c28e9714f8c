"""Qwen-Image: text to image, edits of one and of several pictures, pictures in layers."""
