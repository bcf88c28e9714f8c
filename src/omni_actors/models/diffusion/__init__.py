"""The base of the families of diffusion models: one adapter over diffusers' components, and their pipelines."""
