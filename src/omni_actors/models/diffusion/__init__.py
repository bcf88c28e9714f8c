"""What the families of diffusion models share: one adapter over diffusers' components, and their pipelines."""
