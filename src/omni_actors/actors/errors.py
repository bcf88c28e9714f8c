"""What an actor's callers and owners may catch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from omni_actors.actors.process import Death


class ActorError(Exception):
    """Base of what this package raises to callers of an actor."""


class MailboxFull(ActorError):
    """The mailbox holds as many messages as it may; this one was not taken. Try later, or shed the load."""

    def __init__(self, name: str, capacity: int) -> None:
        super().__init__(f"the mailbox of {name!r} holds its {capacity} messages")
        self.name = name
        self.capacity = capacity


class ActorStopped(ActorError):
    """The actor is stopped, or was stopped before it answered. A message that it had not begun had no effect."""

    def __init__(self, name: str) -> None:
        super().__init__(f"actor {name!r} is stopped")
        self.name = name


class ActorCrashed(ActorError):
    """The actor failed while it held this message. The message is not delivered again; the next one may find the actor
    restarted. ``__cause__`` is the failure."""

    def __init__(self, name: str, cause: BaseException) -> None:
        super().__init__(f"actor {name!r} crashed: {type(cause).__name__}: {cause}")
        self.name = name
        self.__cause__ = cause


class AskCycle(ActorError):
    """This ask could only end by its deadline: the actor that would answer waits, perhaps through others, for the one
    that asks. Asks go downward in the tree; upward goes ``tell``."""

    def __init__(self, names: list[str]) -> None:
        super().__init__(f"asks in a circle: {' → '.join(names)}")
        self.names = names


class Refusal(ActorError):
    """Raised by :meth:`Actor.receive <omni_actors.actors.actor.Actor.receive>` to answer an ask with an error. It is an
    answer, not a crash: the actor goes on, and the asker gets it as it is. ``value`` says why, for a program to read;
    it crosses process boundaries, so it is made of what the messages are made of."""

    def __init__(self, value: object) -> None:
        super().__init__(str(value))
        self.value = value


class Escalation(Exception):
    """A supervisor gave up: a child failed too often in a row. ``__cause__`` is its last failure."""

    def __init__(self, name: str, failures: int, cause: BaseException) -> None:
        super().__init__(f"{name!r} failed {failures} times in a row; last: {type(cause).__name__}: {cause}")
        self.name = name
        self.failures = failures
        self.__cause__ = cause


class Renewed(Exception):
    """Raised in a life to end it for another one to begin at once: a restart that was wished for, not a failure. It is
    not counted, and there is no pause."""


class ProcessDied(Exception):
    """An actor's process ended by itself. ``death`` says how."""

    def __init__(self, death: Death) -> None:
        super().__init__(str(death))
        self.death = death


class RemoteFailure(Exception):
    """An actor failed in its process. ``kind`` is the name of the exception there; the traceback from there is a note
    on this one, so that it shows in the log."""

    def __init__(self, kind: str, text: str, remote_traceback: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind
        self.remote_traceback = remote_traceback
        self.add_note(f"In the actor's process:\n{remote_traceback}")


class ProtocolError(Exception):
    """The other end of a channel sent what this version does not understand, or too much of it."""
