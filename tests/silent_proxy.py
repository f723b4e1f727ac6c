"""A proxy on loopback before a server's Unix socket. Once silent, it keeps connections and forwards nothing."""

from __future__ import annotations

import selectors
import socket
import threading
from contextlib import suppress
from pathlib import Path

_LOOK_S = 0.02
_CHUNK = 1 << 16


class SilentProxy:
    """Forwards between its ``port`` and the socket at ``target``. What it had when it fell silent stays so."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._looks = selectors.DefaultSelector()
        self._looks.register(self._listener, selectors.EVENT_READ)
        self._pairs: dict[socket.socket, socket.socket] = {}
        self._opened: list[socket.socket] = [self._listener]
        self._fatal: bytes | None = None
        self._is_closed = False
        self.silent = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def fall_silent(self, after: bytes | None = None) -> None:
        """Forwards nothing any more; ``after``: from when it has forwarded this word of a client."""
        self._fatal = after
        if after is None:
            self.silent.set()

    def recover(self) -> None:
        """Serves new connections."""
        self.silent.clear()

    def close(self) -> None:
        """Ends it, and all connections."""
        self._is_closed = True
        self._thread.join()
        for one in self._opened:
            one.close()

    def _work(self) -> None:
        while not self._is_closed:
            for key, _ in self._looks.select(_LOOK_S):
                one = key.fileobj
                assert isinstance(one, socket.socket)
                if one is self._listener:
                    self._accept()
                elif one in self._pairs and not self.silent.is_set():  # else it was closed a moment ago
                    self._forward(one)
            if self.silent.is_set():
                for one in self._pairs:
                    with suppress(KeyError):
                        self._looks.unregister(one)
                self._pairs.clear()

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        self._opened.append(client)
        if self.silent.is_set():
            return
        server = socket.socket(socket.AF_UNIX)
        self._opened.append(server)
        server.connect(str(self._target))
        self._pairs |= {client: server, server: client}
        for one in (client, server):
            self._looks.register(one, selectors.EVENT_READ)

    def _forward(self, one: socket.socket) -> None:
        other = self._pairs[one]
        try:
            read = one.recv(_CHUNK)
            other.sendall(read)
        except OSError:
            read = b""
        if not read:
            for end in (one, other):
                self._looks.unregister(end)
                del self._pairs[end]
                end.close()
        elif self._fatal and self._fatal in read:
            self._fatal = None
            self.silent.set()
