"""Behaviours that users of multimodal servers reported as broken, one module per behaviour."""
