"""The links of one worker in its loop: open links, the events to watch for, and links that are still opening."""

from __future__ import annotations

import logging
import select
import socket
import time
from collections.abc import Callable, Iterable, Iterator

from omni_actors.connectors.link import Link, LinkClosed
from omni_actors.connectors.listener import Listener
from omni_actors.connectors.shared_memory import Arena
from omni_actors.connectors.tcp import TcpLink
from omni_actors.connectors.unix import UnixLink
from omni_actors.protocol.codec import ProtocolError
from omni_actors.protocol.frames import Wire

log = logging.getLogger("omni_actors.worker")


class Links:
    """All links of one worker, by id, registered in its loop's ``epoll``."""

    def __init__(
        self,
        epoll: select.epoll,
        listener: Listener | None,
        made: Callable[[Wire, socket.socket], Link] = lambda message, sock: UnixLink(message.link, message.peer, sock),
    ) -> None:
        """Register links in ``epoll``. ``made`` makes a link, by its connector, over the connected Unix socket behind a
        Wire frame."""
        self.inbox = Arena()
        """Memory of payloads that arrived by TCP and are not acknowledged. The producers' budgets bound it; its own
        budget only says how much memory stays for reuse."""
        self._epoll = epoll
        self._listener = listener
        self._made = made
        self._links: dict[int, Link] = {}
        self._by_fd: dict[int, Link] = {}
        self._called: dict[int, str] = {}
        """The peers that are going to call, by link id."""
        self._opening: set[Link] = set()
        if listener is not None:
            epoll.register(listener.fileno(), select.EPOLLIN)

    def __len__(self) -> int:
        return len(self._links)

    def __iter__(self) -> Iterator[Link]:
        return iter(self._links.values())

    def get(self, id: int) -> Link | None:
        return self._links.get(id)

    def known(self, id: int) -> bool:
        """Whether this link exists or can still be opened."""
        return id in self._links or id in self._called

    def wire(self, message: Wire, take_fd: Callable[[], socket.socket]) -> bool:
        """Open this end of a link; return ``False`` if that is impossible. Raises :class:`ProtocolError`."""
        end = message.tcp
        if end is None:
            sock = take_fd()
            self._add(self._made(message, sock))
        elif end.address is not None:
            try:
                self._add(TcpLink.open(message.link, message.peer, end.address, end.secret, self.inbox))
            except OSError as error:
                log.error("link %d to %s at %s cannot be opened: %s", message.link, message.peer, end.address, error)
                return False
        elif self._listener is None:
            raise ProtocolError("a call by TCP is announced to a worker without such inputs")
        else:
            self._called[message.link] = message.peer
            self._listener.expect(message.link, end.secret)
        return True

    def readable(self, events: Iterable[tuple[int, int]]) -> Iterator[Link]:
        """Write and accept as the events allow, and yield the links with input."""
        for fd, event in events:
            link = self._by_fd.get(fd)
            if link is not None:
                if event & select.EPOLLOUT:
                    self.flush(link)
                if event & ~select.EPOLLOUT:
                    yield link
            elif self._listener is not None and fd == self._listener.fileno():
                for id, sock in self._listener.serve():
                    self._add(TcpLink(id, self._called.pop(id), sock, self.inbox))

    def flush(self, link: Link) -> None:
        """Write as much as the socket takes, and watch for more room if output remains."""
        try:
            link.flush()
        except LinkClosed:
            link.mute()  # messages from before the end are still to be read; the end itself drops the link
        if link.pending is not link.watched:
            link.watched = link.pending
            self._epoll.modify(link.fileno(), select.EPOLLIN | (select.EPOLLOUT if link.pending else 0))

    def drop(self, link: Link) -> bool:
        """Close a link, and return whether the link was still open."""
        if self._links.pop(link.id, None) is None:
            return False
        del self._by_fd[link.fileno()]
        self._epoll.unregister(link.fileno())
        self._opening.discard(link)
        link.close()
        return True

    @property
    def deadline(self) -> float | None:
        """The time at which :meth:`overdue` may have links to return, by :func:`time.monotonic`."""
        listener = self._listener
        if not self._opening and (listener is None or listener.deadline is None):
            return None  # the usual case
        self._opening = {link for link in self._opening if link.deadline is not None}
        times = [link.deadline for link in self._opening if link.deadline is not None]
        if listener is not None and listener.deadline is not None:
            times.append(listener.deadline)
        return min(times, default=None)

    def overdue(self) -> list[int]:
        """Return the links that did not open in time. Links opened by this end stay until they are dropped."""
        now = time.monotonic()
        late = [link.id for link in self._opening if link.deadline is not None and link.deadline <= now]
        if self._listener is not None:
            called = self._listener.overdue()
            for id in called:
                del self._called[id]
            late += called
        return late

    def close(self) -> None:
        for link in self._links.values():
            link.close()
        if self._listener is not None:
            self._listener.close()
        self.inbox.close()

    def _add(self, link: Link) -> None:
        self._links[link.id] = link
        self._by_fd[link.fileno()] = link
        self._epoll.register(link.fileno(), select.EPOLLIN)
        if link.deadline is not None:
            self._opening.add(link)
        self.flush(link)
