"""The training of the digits model: rectified flow over scikit-learn's handwritten digits, told apart by text.

Everything that is drawn is a function of the seed and the step. So a training that was interrupted continues from its
last kept state, and ends with the same weights as one that was not.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import diffusers
import torch
from sklearn.datasets import load_digits

from omni_actors.models.digits.network import CLASS_NAME, SIDE, new_transformer
from omni_actors.models.digits.text import PromptEncoder
from omni_actors.models.digits.wording import TEMPLATES, WORDS, prompt
from omni_actors.models.sd3.adapter import Embeddings

KEEP_EVERY = 100
"""Steps between two kept states, some 12 seconds apart."""

_STATE = "state.pt"
_UNTOLD = 0.1
"""Share of the pictures that are learnt without a text, for guidance."""
_ENCODE_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that the weights depend on, beside the text encoder and the data."""

    seed: int = 0
    steps: int = 2500
    batch: int = 64
    learning_rate: float = 2e-3
    templates: tuple[str, ...] = TEMPLATES


@dataclass(frozen=True, slots=True)
class Texts:
    """The embeddings of all prompts [digit, template, …], and of the empty prompt [1, …]."""

    sequence: torch.Tensor
    pooled: torch.Tensor
    untold: Embeddings

    @classmethod
    def of(cls, encoder: PromptEncoder, templates: tuple[str, ...]) -> Texts:
        """Encode the prompts of all templates for all digits."""
        prompts = [prompt(template, digit) for digit in range(len(WORDS)) for template in templates]
        found = [
            embeddings
            for first in range(0, len(prompts), _ENCODE_AT_ONCE)
            for embeddings in encoder.encode(prompts[first : first + _ENCODE_AT_ONCE])
        ]
        shape = (len(WORDS), len(templates))
        sequence = torch.cat([it.sequence for it in found]).unflatten(0, shape)
        pooled = torch.cat([it.pooled for it in found]).unflatten(0, shape)
        return cls(sequence, pooled, encoder.encode([""])[0])


class Training:
    """The state of a training: weights, their moving average (which is what is saved), and the optimizer."""

    def __init__(self, texts: Texts, recipe: Recipe) -> None:
        self.recipe = recipe
        self.step = 0
        self._texts = texts
        digits = load_digits()
        self._pictures = torch.tensor(digits.images / 8 - 1, dtype=torch.float32)[:, None]
        self._labels = torch.tensor(digits.target)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(recipe.seed)
            self.model = new_transformer(texts.pooled.shape[-1])
        self._average = {name: value.clone() for name, value in self.model.state_dict().items()}
        self._optimizer = torch.optim.AdamW(self.model.parameters(), recipe.learning_rate, weight_decay=1e-4)
        self._schedule = torch.optim.lr_scheduler.OneCycleLR(
            self._optimizer, recipe.learning_rate, total_steps=recipe.steps, pct_start=0.1
        )

    def advance(self) -> float:
        """Make one step and return its loss."""
        recipe, texts = self.recipe, self._texts
        draw = torch.Generator().manual_seed(recipe.seed * 1_000_003 + self.step)
        chosen = torch.randint(len(self._pictures), (recipe.batch,), generator=draw)
        template = torch.randint(len(recipe.templates), (recipe.batch,), generator=draw)
        untold = torch.rand(recipe.batch, generator=draw) < _UNTOLD
        pictures, labels = self._pictures[chosen], self._labels[chosen]
        noise = torch.randn(pictures.shape, generator=draw)
        share = torch.sigmoid(torch.randn(recipe.batch, generator=draw))
        mixed = share[:, None, None, None]
        velocity = self.model(
            hidden_states=(1 - mixed) * pictures + mixed * noise,
            encoder_hidden_states=torch.where(
                untold[:, None, None], texts.untold.sequence, texts.sequence[labels, template]
            ),
            pooled_projections=torch.where(untold[:, None], texts.untold.pooled, texts.pooled[labels, template]),
            timestep=share * 1000,
            return_dict=False,
        )[0]
        loss = ((velocity - (noise - pictures)) ** 2).mean()
        self._optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self._optimizer.step()
        self._schedule.step()
        self._take_average()
        self.step += 1
        return float(loss.detach())

    def _take_average(self) -> None:
        kept = min(0.995, (1 + self.step) / (10 + self.step))
        with torch.no_grad():
            for name, value in self.model.state_dict().items():
                if value.is_floating_point():
                    self._average[name].lerp_(value, 1 - kept)

    def keep(self, folder: Path) -> None:
        """Write the whole state into a folder, in place of an earlier one: the file is whole or the earlier one."""
        folder.mkdir(parents=True, exist_ok=True)
        state = {
            "recipe": json.dumps(asdict(self.recipe)),
            "step": self.step,
            "model": self.model.state_dict(),
            "average": self._average,
            "optimizer": self._optimizer.state_dict(),
            "schedule": self._schedule.state_dict(),
        }
        written = folder / f"{_STATE}.new"
        with open(written, "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(written, folder / _STATE)

    def restore(self, folder: Path) -> bool:
        """Take the state that a folder has for this recipe; return whether there is one. A file that cannot be read is
        ignored: the training begins anew."""
        try:
            state = torch.load(folder / _STATE, weights_only=True)
            if state["recipe"] != json.dumps(asdict(self.recipe)):
                return False
            self.model.load_state_dict(state["model"])
            self._optimizer.load_state_dict(state["optimizer"])
            self._schedule.load_state_dict(state["schedule"])
        except Exception:  # whatever an unpickler makes of a damaged file
            return False
        self._average = state["average"]
        self.step = state["step"]
        return True

    def save(self, folder: Path) -> None:
        """Write the model: a folder in diffusers' layout, with the averaged weights."""
        (folder / "transformer").mkdir(parents=True, exist_ok=True)
        trained = new_transformer(self._texts.pooled.shape[-1])
        trained.load_state_dict(self._average)
        trained.save_pretrained(folder / "transformer")
        diffusers.FlowMatchEulerDiscreteScheduler().save_pretrained(folder / "scheduler")
        index = {
            "_class_name": CLASS_NAME,
            "_diffusers_version": diffusers.__version__,
            "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
            "transformer": ["diffusers", "SD3Transformer2DModel"],
        }
        (folder / "model_index.json").write_text(json.dumps(index, indent=2) + "\n")
        made: dict[str, Any] = {"data": f"scikit-learn's digits, {SIDE} x {SIDE} pixels", **asdict(self.recipe)}
        (folder / "training.json").write_text(json.dumps(made, indent=2) + "\n")
        for path in folder.rglob("*.safetensors"):
            path.chmod(0o644)  # they are written for their owner alone; a cache may be shared


def train(
    encoder: Path,
    folder: Path,
    recipe: Recipe,
    *,
    state: Path | None = None,
    told: Callable[[int, float], None] = lambda step, loss: None,
) -> None:
    """Train the model and write it into a folder.

    Args:
        encoder: The folder of the language model that encodes the prompts.
        folder: The folder of the trained model.
        recipe: What to train.
        state: Where states are kept; a state of the same recipe in it is continued, and nothing else is in it.
        told: Called after each step with the number of steps that are done and the step's loss.
    """
    training = Training(Texts.of(PromptEncoder(encoder), recipe.templates), recipe)
    if state is not None:
        training.restore(state)
    while training.step < recipe.steps:
        loss = training.advance()
        if state is not None and training.step % KEEP_EVERY == 0:
            training.keep(state)
        told(training.step, loss)
    training.save(folder)
