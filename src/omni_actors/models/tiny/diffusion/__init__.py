"""Tiny checkpoints of diffusion models: folders as diffusers' ``save_pretrained`` writes them."""
