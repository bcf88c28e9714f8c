"""The picture of an edit and its mask, as Stable Diffusion's VAE and UNet read them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from diffusers.image_processor import VaeImageProcessor
from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution
from PIL import Image

from omni_actors.models.diffusion.editing import Kept


@dataclass(frozen=True, slots=True)
class Source:
    """The client's picture. Moments are the parameters of the VAE's distribution, of which each cursor draws.

    Args:
        picture: The moments of the picture's latents.
        mask: 1 where the picture is to change, in the size of the latents [1, 1, height, width]; ``None`` without mask.
        outside: The moments of the latents of the picture without its masked part.
        kept: The pixels that the mask protects (:class:`~omni_actors.models.diffusion.editing.Kept`).
    """

    picture: torch.Tensor
    mask: torch.Tensor | None = None
    outside: torch.Tensor | None = None
    kept: dict[str, torch.Tensor] | None = None


class SourceEncoder:
    """The encoder of the picture of an edit.

    Args:
        pipe: diffusers' pipeline, with the VAE.
        device: The device that computes, also while offloaded weights lie on the host.
    """

    def __init__(self, pipe: Any, device: torch.device) -> None:
        self.vae = pipe.vae
        self.device = device
        self.scale: int = pipe.vae_scale_factor
        self.pictures = VaeImageProcessor(vae_scale_factor=self.scale)
        self.masks = VaeImageProcessor(
            vae_scale_factor=self.scale, do_normalize=False, do_binarize=True, do_convert_grayscale=True
        )

    def encode(self, picture: Image.Image, mask: Image.Image | None, width: int, height: int) -> Source:
        """Return the source of an edit.

        Args:
            picture: The client's picture.
            mask: White where the picture is to change.
            width: The width of the picture to make.
            height: Its height.
        """
        pixels = self.pictures.preprocess(picture, height=height, width=width).to(torch.float32)
        moments = self._moments(pixels)
        if mask is None:
            return Source(moments)
        changing = self.masks.preprocess(mask, height=height, width=width)
        small = torch.nn.functional.interpolate(changing, size=(height // self.scale, width // self.scale))
        outside = self._moments(pixels * (changing < 0.5))
        return Source(moments, small.to(moments.device), outside, Kept.state(picture, mask, width, height))

    def _moments(self, pixels: torch.Tensor) -> torch.Tensor:
        moments: torch.Tensor = self.vae.encode(pixels.to(self.device, self.vae.dtype)).latent_dist.parameters
        return moments.contiguous()

    def sample(self, moments: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Draw latents, scaled as the UNet takes them."""
        drawn: torch.Tensor = DiagonalGaussianDistribution(moments).sample(generator)
        return drawn * self.vae.config.scaling_factor
