"""The adapter over diffusers' components: what the step-batched families share.

A family says how it embeds prompts, what its latents look like, and how one forward computes rows of several cursors.
The transformer (or UNet), the schedulers and the VAE are diffusers'.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch

from omni_actors.connectors.payload import Payload
from omni_actors.models.diffusion.acceleration.adapter import AcceleratedAdapter
from omni_actors.models.diffusion.components import load_pipeline
from omni_actors.models.diffusion.payloads import pack, unpack
from omni_actors.models.diffusion.pixels import Pixels, shrunk, to_pixels
from omni_actors.models.diffusion.rows import Conditioning, Row, branch_pairs
from omni_actors.models.diffusion.sizes import check_size
from omni_actors.models.diffusion.slicing import last_of, one_by_one
from omni_actors.protocol.errors import invalid_request
from omni_actors.protocol.params import ImageGeneration
from omni_actors.worker.checks import WarmUpError
from omni_actors.worker.engine import Work
from omni_actors.worker.engines.diffusion.adapter import DECODE, DENOISE, ENCODE
from omni_actors.worker.engines.diffusion.cursor import Cursor, Footprint

SPECIAL: Mapping[str, tuple[str, str]] = {
    "pictures": ("image", "This model makes pictures from text alone."),
    "mask": ("mask", "This model takes no mask."),
    "layers": ("layers", "This model makes pictures of one layer."),
    "strength": ("strength", "This model has no 'strength': it does not begin with a picture."),
    "true_guidance": ("true_cfg_scale", "This model has one guidance scale, 'guidance_scale'."),
}
"""Fields of the section ``image`` that only some families read → the client's name for the field, and the refusal."""


class DiffusersAdapter(AcceleratedAdapter):
    """A family over the components of one diffusers pipeline, ``self.pipe``.

    The pipeline object is never called: it holds the components and their helpers (``encode_prompt``,
    ``prepare_latents``). ``hello.model`` is the folder with ``model_index.json``.
    """

    pipeline_class: ClassVar[str]
    """Name of diffusers' pipeline class."""
    encoders: ClassVar[tuple[str, ...]] = ()
    """Names of the components that only :meth:`encode` uses."""
    encodes_pictures: ClassVar[bool] = False
    """Whether :meth:`encode` uses the VAE too."""
    structures: ClassVar[tuple[type, ...]] = ()
    """The data classes that the family's conditioning is made of, beside :class:`Conditioning`."""
    accepts: ClassVar[frozenset[str]] = frozenset()
    """Fields of the section ``image`` that the family reads, of :data:`SPECIAL`."""
    default_steps: ClassVar[int] = 28
    default_guidance: ClassVar[float] = 5.0

    # ---- loading

    def load(self, progress: Callable[[str, float | None], None]) -> dict[str, Any]:
        progress("loading the weights", None)
        with self.runtime.host():
            self.pipe = self.load_pipe()
        self.prepare()
        self.accelerate()
        progress("warming up", None)
        self.prove()
        return self.facts()

    def load_pipe(self) -> Any:
        """Return diffusers' pipeline object with the components that :attr:`parts` need."""
        device = self.runtime.host_device
        folder = self.hello.model or ""
        return load_pipeline(folder, self.pipeline_class, self.dtype, device, self.needs, self.given())

    def given(self) -> Mapping[str, Any]:
        """Return components that are not diffusers' to load, by name."""
        return {}

    def needs(self, component: str) -> bool:
        """Return whether a stage with these :attr:`parts` needs a component of the folder."""
        if component in self.encoders:
            return ENCODE in self.parts
        if component == self.denoiser:
            return DENOISE in self.parts
        if component == "vae":
            return DECODE in self.parts or (self.encodes_pictures and ENCODE in self.parts)
        return True

    def prepare(self) -> None:
        """Set up what the family needs beside the components, after loading."""

    def facts(self) -> dict[str, Any]:
        """Return the facts of the loaded model for the serving process."""
        width, height = self.size
        return {
            "width": width,
            "height": height,
            "multiple": self.multiple,
            "max_pixels": self.max_pixels,
            "max_side": self.max_side,
            "steps": self.options["steps"] or self.default_steps,
            "guidance": self.default_guidance if self.options["guidance"] is None else self.options["guidance"],
            "step_batched": True,
        }

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of a picture whose size the client leaves open."""
        side = self.options["size"]
        return self.default_size if side is None else (side, side)

    @property
    def default_size(self) -> tuple[int, int]:
        """The size that the model itself prefers."""
        side = self.model.config.sample_size * self.pipe.vae_scale_factor
        return side, side

    @property
    def multiple(self) -> int:
        """The number that width and height must divide by."""
        patch = getattr(self.model.config, "patch_size", None) or 1
        return int(self.pipe.vae_scale_factor * patch)

    @property
    def max_pixels(self) -> int:
        """The most pixels of a picture."""
        width, height = self.size
        return int(self.options["max_pixels"] or 4 * width * height)

    @property
    def max_side(self) -> int | None:
        """The longest side of a picture in pixels, if the model's positions end somewhere."""
        return None

    def prove(self) -> None:
        if ENCODE not in self.parts:
            return
        (cursor,) = self.open(Work(-1, "warm-up", {}), self.trial())
        self.feed_trial(cursor)
        with torch.inference_mode():
            (cursor.conditioning,) = last_of(self.encode([cursor]))
            if DENOISE in self.parts:
                self.begin(cursor)
                (prediction,) = self.predict([cursor])
                if not torch.isfinite(prediction).all():
                    raise WarmUpError("The numbers of a step")
        self.close(cursor)

    def trial(self) -> ImageGeneration:
        """Return a request for the warm-up: a small picture."""
        width, height = (min(side, 16 * self.multiple) for side in self.size)
        return ImageGeneration(prompt="a picture", seed=0, steps=2, width=width, height=height)

    def feed_trial(self, cursor: Cursor) -> None:
        """Give the warm-up's request its pictures, if the family needs some."""

    # ---- a request

    def open(self, work: Work, image: ImageGeneration) -> Sequence[Cursor]:
        image = self.completed(image)
        assert image.width is not None
        assert image.height is not None
        assert image.steps is not None
        assert image.seed is not None
        most = self.max_side
        check_size(image.width, image.height, multiple=self.multiple, max_pixels=self.max_pixels, max_side=most)
        if not 1 <= image.steps <= self.options["max_steps"]:
            raise invalid_request(f"'steps' must be from 1 to {self.options['max_steps']}.", "steps")
        if image.prompt is None and "text" not in work.ports and ENCODE in self.parts:
            raise invalid_request("A prompt is needed.", "prompt")
        self.check(work, image)
        footprint, weight = self.footprint(image), self.tokens(image) * self.branch_count(image)
        cursors = [
            Cursor(work, image, index, image.seed + index, image.width, image.height, image.steps, footprint, weight)
            for index in range(image.n)
        ]
        if DENOISE in self.parts:
            self.acceleration.open(image, cursors)
        return cursors

    def completed(self, image: ImageGeneration) -> ImageGeneration:
        """Return the section with the stage's defaults filled in."""
        width, height = self.size
        copied = copy.copy(image)
        copied.width = width if image.width is None else image.width
        copied.height = height if image.height is None else image.height
        copied.steps = image.steps if image.steps is not None else self.options["steps"] or self.default_steps
        if image.guidance is None:
            copied.guidance = self.default_guidance if self.options["guidance"] is None else self.options["guidance"]
        copied.seed = image.seed or 0
        return copied

    def check(self, work: Work, image: ImageGeneration) -> None:
        """Raise 400 for what this family cannot do. By default: the special fields that it does not accept."""
        for name, (param, message) in SPECIAL.items():
            if getattr(image, name) and name not in self.accepts:
                raise invalid_request(message, param)

    def check_prompt(self, tokenizer: Any, text: str | None, most: int, param: str) -> None:
        """Raise 400 for a text of more than ``most`` tokens, the end's included: the model would not read the rest."""
        count = 0 if not text else len(tokenizer(text, truncation=False)["input_ids"])
        if count > most:
            raise invalid_request(f"The text has {count} tokens, and this model reads {most} at most.", param)

    def branch_count(self, image: ImageGeneration) -> int:
        """Return how many branches a step of this request has."""
        return 2 if image.guidance is not None and image.guidance > 1 else 1

    def tokens(self, image: ImageGeneration) -> int:
        """Return the latent tokens of one picture."""
        assert image.width is not None
        assert image.height is not None
        return max(1, (image.width // self.multiple) * (image.height // self.multiple))

    def footprint(self, image: ImageGeneration) -> Footprint:
        """Estimate the memory of one picture from sizes alone."""
        assert image.width is not None
        assert image.height is not None
        size = torch.empty((), dtype=self.dtype).element_size()
        config = self.model.config
        channels = getattr(config, "in_channels", 4)
        scale = self.pipe.vae_scale_factor
        latents = channels * (image.width // scale) * (image.height // scale) * size
        hidden = getattr(config, "num_attention_heads", 8) * getattr(config, "attention_head_dim", 64) or 512
        tokens = self.tokens(image) * self.branch_count(image)
        return Footprint(
            state=4 * latents + 2 * 512 * hidden * size,
            encode=4 << 20,
            step=8 * tokens * hidden * size,
            decode=image.width * image.height * 64 * size,
        )

    # ---- encoding, denoising

    def encode(self, cursors: Sequence[Cursor]) -> Iterator[Sequence[Any] | None]:
        return one_by_one(cursors, self.condition)

    def condition(self, cursor: Cursor) -> Any:
        """Return the conditioning of one request. A family that encodes several at once overrides :meth:`encode`."""
        raise NotImplementedError(f"{type(self).__name__} overrides neither 'encode' nor 'condition'")

    def begin(self, cursor: Cursor) -> None:
        with torch.inference_mode():
            cursor.generator = torch.Generator("cpu").manual_seed(cursor.seed)
            cursor.latents = self.noise(cursor)
            cursor.scheduler = copy.deepcopy(self.pipe.scheduler)
            self.schedule(cursor)

    @abstractmethod
    def noise(self, cursor: Cursor) -> torch.Tensor:
        """Draw the first latents [1, …] with ``cursor.generator``, in diffusers' order of draws."""

    def schedule(self, cursor: Cursor) -> None:
        """Set the timesteps of the cursor's scheduler, and :attr:`Cursor.timesteps`."""
        cursor.scheduler.set_timesteps(cursor.steps, device=self.device)
        self.use_timesteps(cursor)

    @staticmethod
    def use_timesteps(cursor: Cursor) -> None:
        """Take the scheduler's timesteps; a scheduler of a higher order has more of them than steps."""
        cursor.timesteps = list(cursor.scheduler.timesteps)
        cursor.steps = len(cursor.timesteps)

    def batch_key(self, cursor: Cursor) -> Hashable:
        return tuple(cursor.latents.shape)

    def rows(self, cursor: Cursor) -> int:
        return len(self.branches(cursor))

    def branches(self, cursor: Cursor) -> Sequence[Any]:
        """Return the embeddings of the cursor's branches for its next step, the negative one first if there are
        two."""
        conditioning: Conditioning = cursor.conditioning
        if self.branch_count(cursor.image) == 1 or conditioning.negative is None:
            return (conditioning.positive,)
        return (conditioning.negative, conditioning.positive)

    def predict(self, cursors: Sequence[Cursor]) -> Sequence[Any]:
        rows = [
            Row(cursor, embeddings, branch)
            for cursor in cursors
            for branch, embeddings in enumerate(self.branches(cursor))
        ]
        with torch.inference_mode():
            with self.acceleration.forward(rows):
                output = self.forward(rows)
            return self._guided(cursors, rows, output)

    def _guided(self, cursors: Sequence[Cursor], rows: Sequence[Row], output: Any) -> Sequence[torch.Tensor]:
        plain = type(self).guide is DiffusersAdapter.guide
        if plain and len(rows) == 2 * len(cursors) > 2 and isinstance(output, torch.Tensor):  # all at once
            return list(self.combine(*branch_pairs(output, map(self.scale, cursors))).split(1))
        predictions, first = [], 0
        for cursor in cursors:
            count = self.rows(cursor)
            predictions.append(self.guide(cursor, output[first : first + count]))
            first += count
        return predictions

    @abstractmethod
    def forward(self, rows: Sequence[Row]) -> torch.Tensor | Sequence[torch.Tensor]:
        """Run the denoiser once for these rows, and return its output row by row."""

    def guide(self, cursor: Cursor, branches: Any) -> torch.Tensor:
        """Return the guided prediction [1, …] of a cursor from the output of its branches."""
        if len(branches) == 1:
            return branches[0][None]
        return self.combine(branches[0][None], branches[1][None], self.scale(cursor))

    def scale(self, cursor: Cursor) -> float:
        """Return the guidance scale between a cursor's two branches."""
        return float(cursor.image.guidance or 0)

    def combine(self, negative: torch.Tensor, positive: torch.Tensor, scale: Any) -> torch.Tensor:
        """Return the guided predictions of cursors, whose branches are stacked. ``scale`` is a number, or has one for
        each cursor."""
        return negative + scale * (positive - negative)

    def advance(self, cursor: Cursor, prediction: Any) -> None:
        with torch.inference_mode():
            timestep = cursor.timesteps[cursor.step]
            cursor.latents = cursor.scheduler.step(
                prediction, timestep, cursor.latents, return_dict=False, **self.step_arguments(cursor)
            )[0]
        self.acceleration.commit(cursor)

    def step_arguments(self, cursor: Cursor) -> Mapping[str, Any]:
        """Return further arguments of the scheduler's ``step``, such as ``generator`` and ``eta``."""
        return {}

    def finite(self, cursor: Cursor) -> bool:
        return bool(torch.isfinite(cursor.latents).all())

    # ---- pixels

    def clean(self, cursor: Cursor, prediction: torch.Tensor) -> torch.Tensor:
        """Return the clean latents that a prediction points at: of a flow (velocity = noise - clean)."""
        scheduler = cursor.scheduler
        index = (scheduler.begin_index or 0) if scheduler.step_index is None else scheduler.step_index
        sigma = scheduler.sigmas[index]
        latents: torch.Tensor = cursor.latents - sigma * prediction
        return latents

    def preview(self, cursor: Cursor, prediction: Any) -> Pixels | None:
        side = max(1, self.options["preview_side"] // self.pipe.vae_scale_factor)
        with torch.inference_mode():
            latents = self.spatial(cursor, self.clean(cursor, prediction))
            return to_pixels(self.decoded(shrunk(latents, side)))

    def decode_key(self, cursor: Cursor) -> Hashable:
        return id(cursor)  # each picture leaves as soon as it is decoded

    def decode(self, cursors: Sequence[Cursor]) -> Iterator[Sequence[Any] | None]:
        return one_by_one(cursors, lambda cursor: self.pixels(cursor, cursor.latents))

    def pixels(self, cursor: Cursor, latents: torch.Tensor) -> Any:
        """Return the pixels [height, width, channels] of a cursor's latents; for several layers a list."""
        return to_pixels(self.decoded(self.spatial(cursor, latents)))

    def spatial(self, cursor: Cursor, latents: torch.Tensor) -> torch.Tensor:
        """Return a cursor's latents as the VAE takes them, [1, channels, …, height, width], not yet scaled."""
        return latents

    def decoded(self, latents: torch.Tensor) -> torch.Tensor:
        """Decode spatial latents of one picture to [1, channels, height, width], from -1 to 1."""
        vae = self.pipe.vae
        latents = latents / vae.config.scaling_factor + (getattr(vae.config, "shift_factor", None) or 0.0)
        picture: torch.Tensor = vae.decode(latents.to(vae.dtype), return_dict=False)[0]
        return picture

    # ---- stages of their own

    def conditioning_payload(self, cursor: Cursor) -> Payload:
        return pack("conditioning", _size(cursor), cursor.conditioning)

    def latent_payload(self, cursor: Cursor) -> Payload:
        state = {"latents": cursor.latents, "kept": self.kept(cursor)}
        return pack("latent", {"index": cursor.index, **_size(cursor)}, state)

    def kept(self, cursor: Cursor) -> dict[str, Any]:
        """Return the part of :attr:`Cursor.state` that decoding needs."""
        return {}

    def restore(self, cursor: Cursor, payload: Payload) -> None:
        state = unpack(payload, (Conditioning, *self.structures), self.device)
        cursor.width, cursor.height = payload.meta["width"], payload.meta["height"]
        if payload.kind == "conditioning":
            cursor.conditioning = state
        else:
            cursor.latents = state["latents"]
            cursor.state.update(state["kept"])


def _size(cursor: Cursor) -> dict[str, Any]:
    return {"width": cursor.width, "height": cursor.height}
