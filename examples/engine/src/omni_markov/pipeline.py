"""A pipeline of one stage, which the engine of this package computes. The serving process imports this file."""

from __future__ import annotations

from omni_actors.author import Option, Pipeline, Stage, Task

PIPELINE = Pipeline(
    name="markov",
    stages=(
        Stage(
            name="writer",
            engine="omni_markov.engine:MarkovEngine",  # or "markov", once the package is installed
            sections=("prompt", "sampling"),
            emits="text",
            recovery="prefix",  # after a death the engine gets back what it wrote, and goes on
            options={"max_batch": Option(64, "Requests that one step advances.", least=1)},
            doc="Writes one character of each request in a step.",
        ),
    ),
    edges=(),
    tasks=(
        Task("chat", entries={"text": "writer"}, outputs={"text": "writer"}),
        Task("completion", entries={"text": "writer"}, outputs={"text": "writer"}),
    ),
    doc="A Markov chain of characters.",
)
