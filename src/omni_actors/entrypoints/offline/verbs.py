"""The verbs of the Python API, written once for every way of calling them.

:class:`Verbs` has the signatures. Its type parameter is the result of a call: the output itself
(:class:`~omni_actors.Omni`), an awaitable (:class:`~omni_actors.AsyncOmni` under trio,
:class:`~omni_actors.AsyncioOmni` under asyncio), a future (``omni.submit``), or a stream of events (``omni.stream``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from omni_actors.entrypoints.offline.calls import (
    Batch,
    Call,
    ChatCall,
    CompletionCall,
    RequestCall,
    SpeechCall,
    Terms,
    Timestamps,
    TranscriptionCall,
)
from omni_actors.entrypoints.offline.output import Output
from omni_actors.entrypoints.offline.pictures import ImagesCall, Size, Source, Watcher
from omni_actors.entrypoints.offline.prompts import Messages
from omni_actors.protocol.params import Sampling
from omni_actors.protocol.request import Request

R = TypeVar("R", covariant=True)
L = TypeVar("L", covariant=True)


class Verbs(ABC, Generic[R]):
    """The verbs by which a program asks a deployment. Each call is one request.

    Every verb takes ``deadline_s`` (seconds for the whole request, decoding of media included; by default the
    deployment's ``limits.deadline_s``), ``priority`` (a whole number, lower is more urgent) and ``id`` (a label for the
    logs).

    Raises:
        OmniError: 400 for a wrong argument or a task that the model cannot do, with the argument's name in
            ``error.info.param``; 408 after the deadline; 429 if the deployment is full; 503, naming the stage, if a
            stage has no live worker.
        OSError: A file cannot be read.

    Cancelling a call (or its future, or leaving a stream's block) ends its work in every worker.
    """

    @abstractmethod
    def _ask(self, call: Call) -> R:
        """Make the request and return the result of this class's verbs."""

    def chat(
        self,
        messages: Messages,
        sampling: Sampling | None = None,
        *,
        modalities: Sequence[str] = ("text",),
        voice: str = "default",
        language: str | None = None,
        instructions: str | None = None,
        use_audio_in_video: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        deadline_s: float | None = None,
        priority: int = 0,
        id: str | None = None,
    ) -> R:
        """Answer a chat.

        Args:
            messages: One text (a single user message), or a list of messages in OpenAI's format. A content may have
                parts with media: OpenAI's (``input_audio``, ``image_url``, ``audio_url``, ``video_url``), or
                ``{"type": "image", "image": SOURCE}`` and likewise ``audio`` and ``video``, where the source is a
                :class:`pathlib.Path`, the file's ``bytes``, or a text with a URL (http, https or data).
            sampling: Sampling parameters; by default the model's own.
            modalities: The answer's modalities: ``("text",)``, or ``("text", "audio")`` for a spoken answer as well.
            voice: Voice of a spoken answer.
            language: Language of a spoken answer, for models that take one.
            instructions: Description of the sound of a spoken answer, for models that take instructions.
            use_audio_in_video: Whether the sound of videos belongs to the prompt.
            chat_template_kwargs: Variables for the model's chat template.
            deadline_s: Seconds for the whole request.
            priority: The lower, the earlier the request is admitted.
            id: A label for the logs.

        Returns:
            The output with its text and, for a spoken answer, its audio.

        Raises:
            OmniError: See :class:`Verbs`, also for cancellation.
        """
        terms = Terms(deadline_s, priority, id)
        return self._ask(
            ChatCall(
                terms,
                messages,
                sampling,
                modalities,
                voice,
                language,
                instructions,
                use_audio_in_video,
                chat_template_kwargs,
            )
        )

    def complete(
        self,
        prompt: str | Sequence[int],
        sampling: Sampling | None = None,
        *,
        deadline_s: float | None = None,
        priority: int = 0,
        id: str | None = None,
    ) -> R:
        """Continue a text.

        Args:
            prompt: The text as it is, without a chat template, or its token ids.
            sampling: Sampling parameters; by default the model's own.
            deadline_s: Seconds for the whole request.
            priority: The lower, the earlier the request is admitted.
            id: A label for the logs.

        Returns:
            The output with one choice for each of ``sampling.n``.

        Raises:
            OmniError: See :class:`Verbs`, also for cancellation.
        """
        return self._ask(CompletionCall(Terms(deadline_s, priority, id), prompt, sampling))

    def speak(
        self,
        text: str,
        *,
        voice: str = "default",
        speed: float = 1.0,
        reference: bytes | Path | None = None,
        deadline_s: float | None = None,
        priority: int = 0,
        id: str | None = None,
        **fields: Any,
    ) -> R:
        """Speak a text.

        Args:
            text: The text to speak; it needs a letter or a digit.
            voice: One of the model's voices.
            speed: Speed of the speech; 1.0 is the model's own.
            reference: An audio file (its bytes, or its path) whose voice is cloned, for models that can.
            deadline_s: Seconds for the whole request.
            priority: The lower, the earlier the request is admitted.
            id: A label for the logs.
            fields: Further fields of :class:`~omni_actors.protocol.params.Speech`, such as ``language``,
                ``instructions``, ``seed`` or ``ref_text``. A field that the model does not honour is refused by name.

        Returns:
            The output with ``pcm``, ``sample_rate`` (Hz) and ``channels``.

        Raises:
            OmniError: See :class:`Verbs`, also for cancellation.
        """
        return self._ask(SpeechCall(Terms(deadline_s, priority, id), text, voice, speed, reference, fields))

    def transcribe(
        self,
        audio: bytes | Path,
        *,
        language: str | None = None,
        prompt: str | None = None,
        temperature: float = 0.0,
        timestamps: Timestamps = "none",
        translate: bool = False,
        max_tokens: int | None = None,
        deadline_s: float | None = None,
        priority: int = 0,
        id: str | None = None,
    ) -> R:
        """Transcribe a recording.

        Args:
            audio: An audio file: its bytes, or its path.
            language: Language of the recording, as a code or an English name; by default the model detects it.
            prompt: Preceding text, for names and spelling.
            temperature: Sampling temperature; 0 takes the most likely token.
            timestamps: ``segment`` or ``word`` gives times in ``Output.segments`` and ``Output.words``.
            translate: Write English for speech in any language.
            max_tokens: Most tokens of the transcript, at least 1; by default the model's own bound.
            deadline_s: Seconds for the whole request.
            priority: The lower, the earlier the request is admitted.
            id: A label for the logs.

        Returns:
            The output with the transcript in ``text``.

        Raises:
            OmniError: See :class:`Verbs`, also for cancellation.
        """
        terms = Terms(deadline_s, priority, id)
        return self._ask(
            TranscriptionCall(terms, audio, language, prompt, temperature, timestamps, translate, max_tokens)
        )

    def images(
        self,
        prompt: str,
        *,
        n: int = 1,
        size: Size | None = None,
        steps: int | None = None,
        guidance: float | None = None,
        seed: int | None = None,
        format: str = "png",
        pictures: Sequence[Source] | Source = (),
        mask: Source | None = None,
        previews: int = 0,
        on_event: Watcher | None = None,
        deadline_s: float | None = None,
        priority: int = 0,
        id: str | None = None,
        **fields: Any,
    ) -> R:
        """Make pictures from a text, or edit pictures.

        Args:
            prompt: What the pictures show, or what is to be changed.
            n: How many pictures to make. Picture ``i`` is made from ``seed + i``.
            size: Width and height in pixels, as ``"512x768"`` or as a pair; by default the model's own size.
            steps: Number of denoising steps; by default the model's own.
            guidance: Guidance scale; by default the model's own.
            seed: The same seed makes the same pictures; by default one is drawn.
            format: ``png``, ``webp`` or ``jpeg``.
            pictures: Pictures to edit (each the bytes of a file, or its path), for models that can.
            mask: A picture whose transparent pixels are the part of the first picture to be changed.
            previews: Make a preview after every so many steps; 0 for none.
            on_event: Called in the deployment's thread with a :class:`~omni_actors.protocol.request.StepProgress` after
                each step, and with each preview (a :class:`~omni_actors.protocol.request.MediaChunk`). A stream gives
                these events itself.
            deadline_s: Seconds for the whole request.
            priority: The lower, the earlier the request is admitted, and the earlier its steps are made.
            id: A label for the logs.
            fields: Further fields that only some models honour: ``negative_prompt``, ``true_guidance``, ``strength``,
                ``layers``, ``loras``, ``cache``, ``compression`` and ``background``. A field that the model does not
                honour is refused by name.

        Returns:
            The output with the pictures in ``images``.

        Raises:
            OmniError: See :class:`Verbs`, also for cancellation.
        """
        return self._ask(
            ImagesCall(
                Terms(deadline_s, priority, id),
                prompt,
                n,
                size,
                steps,
                guidance,
                seed,
                format,
                pictures,
                mask,
                previews,
                on_event,
                fields,
            )
        )

    def run(self, request: Request) -> R:
        """Make a request that was put together by hand, for tasks and sections that the other verbs do not know.

        Args:
            request: The request, with terms of its own.

        Returns:
            The output, whatever its task produces.

        Raises:
            OmniError: See :class:`Verbs`, also for cancellation.
        """
        return self._ask(RequestCall(Terms(), request))


class Batches(ABC, Generic[L]):
    """The verb that asks for many chats at once. The type parameter is the result of a call, as in :class:`Verbs`."""

    @abstractmethod
    def _ask_all(self, batch: Batch) -> L:
        """Make the requests of a batch and return the result of this class's ``generate``."""

    def generate(
        self,
        prompts: Messages | Sequence[Messages],
        sampling: Sampling | None = None,
        *,
        modalities: Sequence[str] = ("text",),
        voice: str = "default",
        deadline_s: float | None = None,
        priority: int = 0,
        progress: bool = False,
        on_done: Callable[[int, Output], None] | None = None,
    ) -> L:
        """Answer several chats and return their outputs in the order of the prompts.

        As many requests run at once as the deployment admits; the others wait.

        Args:
            prompts: A list of chats, each as :meth:`Verbs.chat` takes it. A single chat need not be in a list.
            sampling: Sampling parameters of all chats.
            modalities: The answers' modalities.
            voice: Voice of spoken answers.
            deadline_s: Seconds for each request, from its start.
            priority: The lower, the earlier the requests are admitted.
            progress: Show a progress bar on standard error, if that is a terminal.
            on_done: Called in the deployment's thread with the prompt's place and its output as each finishes.

        Returns:
            The outputs, in the order of the prompts.

        Raises:
            OmniError: The first failure, which cancels the other requests.

        Cancellation ends all requests.
        """
        terms = Terms(deadline_s, priority)
        return self._ask_all(Batch(terms, prompts, sampling, modalities, voice, progress, on_done))
