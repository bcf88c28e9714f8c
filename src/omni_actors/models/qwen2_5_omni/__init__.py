"""Qwen2.5-Omni: thinker, talker and token2wav (https://arxiv.org/abs/2503.20215)."""
