"""Stable Diffusion 1, 2 and XL: a UNet, and a scheduler of the Karras family."""
