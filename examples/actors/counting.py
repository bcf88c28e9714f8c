"""The actor that counts words, in a process of its own."""

import os
import signal

from omni_actors.actors import Actor


class Counter(Actor[str]):
    """Counts the words of a text."""

    message_type = str

    async def receive(self, text: str) -> int:
        if "crash" in text:
            os.kill(os.getpid(), signal.SIGKILL)  # as a bug in C code would end the process
        return len(text.split())
