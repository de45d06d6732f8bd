"""One connection: frames in, frames out, over a Unix stream socket that never blocks."""

from __future__ import annotations

import os
import socket
from array import array
from collections import deque

from kvtide.node.errors import BadFrame, Gone
from kvtide.node.frames import BODY_BYTES_MAX, DESCRIPTORS_MAX, Decoder, Frame, header

UNSENT_BYTES_MAX = 2 * BODY_BYTES_MAX
"""Who lets more than this wait does not read any more."""
_READ_BYTES = 1 << 16
_INT_BYTES = array("i").itemsize
_ROOM_FOR_DESCRIPTORS = socket.CMSG_SPACE(DESCRIPTORS_MAX * _INT_BYTES)


class Connection:
    """Sends what can be sent at once and keeps the rest, within a bound. `close` it when it raises.

    Without `takes_descriptors` the kernel closes those that come; no process ever sees them.
    """

    def __init__(
        self, sock: socket.socket, *, takes_descriptors: bool = False, body_bytes_max: int = BODY_BYTES_MAX
    ) -> None:
        sock.setblocking(False)
        self._socket = sock
        self.takes_descriptors = takes_descriptors
        self._decoder = Decoder(body_bytes_max)
        self._unsent: deque[tuple[memoryview, tuple[int, ...]]] = deque()
        self.unsent_bytes = 0
        self.frames = 0
        """How many have come."""

    def fileno(self) -> int:
        """For selectors."""
        return self._socket.fileno()

    @property
    def socket(self) -> socket.socket:
        """What it goes over."""
        return self._socket

    @property
    def is_half(self) -> bool:
        """A frame has begun to come in and has not ended."""
        return self._decoder.is_half

    def allow(self, body_bytes_max: int) -> None:
        """Let frames be of another size from now on."""
        self._decoder.body_bytes_max = body_bytes_max

    def receive(self) -> list[Frame]:
        """Return the frames that have come, perhaps none. Reads once: whoever sends much does not keep others waiting.

        Raises:
            Gone: the other side has closed.
            BadFrame: it sent something that is no frame.

        """
        try:
            if self.takes_descriptors:
                return self._receive_with_descriptors()
            data = self._socket.recv(_READ_BYTES)
        except BlockingIOError:
            return []
        except OSError as error:
            raise Gone(f"the connection broke ({error.strerror})") from error
        if not data:
            raise Gone("the connection was closed")
        frames = self._decoder.feed(data)
        self.frames += len(frames)
        return frames

    def send(self, frame: Frame) -> None:
        """Send a frame, after all that was sent before.

        Raises:
            Gone: the other side has closed, or does not read.

        """
        self._unsent.append((memoryview(header(frame) + frame.body), frame.descriptors))
        self.unsent_bytes += len(self._unsent[-1][0])
        if len(self._unsent) == 1:
            self.flush()
        if self.unsent_bytes > UNSENT_BYTES_MAX:
            raise Gone(f"it does not read: {self.unsent_bytes} bytes wait for it")

    def flush(self) -> None:
        """Send what can be sent of what waits."""
        while self._unsent:
            data, descriptors = self._unsent[0]
            try:
                sent = self._send(data, descriptors)
            except BlockingIOError:
                return
            except OSError as error:
                self._forget_unsent()  # what has come before can still be received
                raise Gone(f"the connection broke ({error.strerror})") from error
            self.unsent_bytes -= sent
            if sent == len(data):
                self._unsent.popleft()
            else:
                self._unsent[0] = (data[sent:], ())

    def close(self) -> None:
        """Close it, and the descriptors that came for frames which did not. May be called again."""
        self._socket.close()
        self._forget_unsent()
        for descriptor in self._decoder.left():
            os.close(descriptor)

    def _forget_unsent(self) -> None:
        self._unsent.clear()
        self.unsent_bytes = 0

    def _send(self, data: memoryview, descriptors: tuple[int, ...]) -> int:
        if not descriptors:
            return self._socket.send(data)
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", descriptors))
        return self._socket.sendmsg([data], [rights])

    def _receive_with_descriptors(self) -> list[Frame]:
        data, messages, flags, _ = self._socket.recvmsg(_READ_BYTES, _ROOM_FOR_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
        descriptors = array("i")
        for level, kind, content in messages:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                descriptors.frombytes(content[: len(content) - len(content) % _INT_BYTES])
        if flags & socket.MSG_CTRUNC:  # the kernel has closed the rest
            for descriptor in descriptors:
                os.close(descriptor)
            raise BadFrame(f"descriptors that were lost: more than {DESCRIPTORS_MAX}, or too many are open here")
        if not data:
            raise Gone("the connection was closed")
        frames = self._decoder.feed(data, descriptors)
        self.frames += len(frames)
        return frames
