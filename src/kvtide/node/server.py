"""The server: takes connections, answers hellos, hands frames on, closes what is bad. One thread; nothing blocks."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from kvtide.node.arenas import NodeArena
from kvtide.node.connection import Connection
from kvtide.node.credentials import Access, credentials_of
from kvtide.node.door import Door
from kvtide.node.errors import BadFrame, Gone, Refused
from kvtide.node.frames import BODY_BYTES_MAX, FIRST_OF_INDEX, Frame, Kind
from kvtide.node.handler import Handler
from kvtide.node.hello import HELLO_BYTES_MAX, Role, Welcome, read_hello, refusal
from kvtide.node.lines import PEERS_MAX, Bounded, News
from kvtide.node.listening import Listening
from kvtide.node.lives import Lives
from kvtide.node.loop import READ, WRITE, Loop
from kvtide.node.owners import Member, Owner, Owners
from kvtide.node.peers import Limits, Peer
from kvtide.node.turns import Turns, hear, may_say_more

_FOR_OPERATORS = 8
"""Connections beyond the limit, so that a node that is full can be looked at."""
_MEMORY_S = 0.002
"""Between looks whether memory has its first pages."""


class Server:
    """Serves whoever connects and may. `say` takes lines for the operator, `status` is what operators can ask for."""

    def __init__(
        self,
        loop: Loop,
        listening: Listening,
        handler: Handler,
        *,
        epoch: str,
        access: Access,
        limits: Limits,
        say: Callable[[str], None],
        status: Callable[[], Mapping[str, object]],
        owners: Owners | None = None,
    ) -> None:
        self.epoch = epoch
        self.limits = limits
        self.refused = 0
        self.last_refused: tuple[str, float] | None = None
        """Who, and why; and when."""
        self.closed = 0
        """Connections that the node has closed because of what they did."""
        self._loop = loop
        self._handler = handler
        self._access = access
        self._say = Bounded(say, PEERS_MAX)
        self._status = status
        self._news = News()
        self._peers: dict[int, Peer] = {}
        self._by_member: dict[int, Peer] = {}
        self.lives = Lives(loop, owners or Owners(), handler, self._hang_up)
        self._door = Door(loop, listening, self._enter, self._no_more)
        self._turns = Turns()
        loop.work = self._answer

    @property
    def connections(self) -> int:
        """How many there are."""
        return len(self._peers)

    def send(self, owner: Owner, frame: Frame) -> None:
        """Send something to a scheduler that did not ask. Nothing happens if its life is ending."""
        for member in list(owner.members.values()):  # who has gone is noticed here, and forgotten
            if member.role == Role.SCHEDULER.value and member.number in self._by_member:
                self._push(self._by_member[member.number], frame)

    def tick(self, now_s: float) -> None:
        """Look for those who are late, and for those who have had their time."""
        for peer in list(self._peers.values()):
            if why := peer.late(now_s, self.limits):
                self._close(peer, why)
        self.lives.tick(now_s)
        self._door.tick()

    def stop(self) -> None:
        """Take no more connections, and tell all members that the node is about to end. They close."""
        self._door.close()
        for peer in list(self._peers.values()):
            if peer.member is None:
                self._close(peer)
            else:
                self._push(peer, Frame(Kind.STOPPING))

    def close(self) -> None:
        """Close all connections at once, and the socket."""
        self._door.close()
        for peer in list(self._peers.values()):
            self._close(peer)
        self.lives.close()

    # ------------------------------------------------------------------ who comes

    def _enter(self, sock: socket.socket) -> None:
        connection = Connection(sock, body_bytes_max=HELLO_BYTES_MAX)
        peer = Peer(connection, credentials_of(sock), time.monotonic())
        self._peers[connection.fileno()] = peer
        self._loop.watch(connection.fileno(), READ, partial(self._ready, peer))
        try:
            self._access.check(peer.credentials)
            self._check_room(_FOR_OPERATORS)
        except Refused as refused:
            self._refuse(peer, refused)

    def _check_room(self, spare: int) -> None:
        if len(self._peers) + self.lives.waited_for > self.limits.connections + spare:
            why = f"this node has {self.limits.connections:,} connections and takes no more"
            raise Refused(f"{why}; {self.limits.for_more}".rstrip("; "), for_good=False)

    def _no_more(self, why: str) -> None:
        self._say(f"{why}; {self.limits.for_more}".rstrip("; "))

    def _greet(self, peer: Peer, frame: Frame) -> None:
        hello = read_hello(frame)
        peer.role = hello.role
        if hello.role is Role.OPERATOR:
            peer.connection.send(Welcome(self.epoch).frame())
            return
        if hello.role is Role.WORKER and hello.epoch != self.epoch:
            raise Refused("this is another life of the node than the scheduler knows", for_good=False)
        self._check_room(0)
        member = self.lives.enter(hello, peer.connection.socket, peer.credentials.pid)
        arenas: Sequence[NodeArena] = ()
        more: Mapping[str, object] = {}
        try:
            if hello.role is Role.SCHEDULER:
                more = self._handler.attach(member.owner, hello)
            else:
                arenas = self._handler.join(member.owner, hello)
                more = {"far": member.owner.far.get(hello.rank, "")}
        except BaseException:
            self.lives.dismiss(member)
            raise
        peer.member, self._by_member[member.number] = member, peer
        peer.connection.allow(BODY_BYTES_MAX)
        descriptions = tuple(arena.description for arena in arenas)
        self._welcome(peer, Welcome(self.epoch, member.owner.number, member.number, descriptions, more), arenas)

    def _welcome(self, peer: Peer, welcome: Welcome, arenas: Sequence[NodeArena]) -> None:
        """Answer a hello, once there is a slot: whoever has memory stores, and would lose that."""
        if peer.is_closed:
            return
        if all(arena.ready_slots or arena.failure for arena in arenas):
            self._push(peer, welcome.frame(tuple(arena.descriptor for arena in arenas)))
        else:
            self._loop.later(_MEMORY_S, partial(self._welcome, peer, welcome, arenas))

    # ------------------------------------------------------------------ what they say

    def _ready(self, peer: Peer, _: int) -> None:
        if peer.is_blocked:
            self._try(peer, peer.connection.flush)
        elif may_say_more(peer):
            self._try(peer, partial(self._listen, peer))

    def _listen(self, peer: Peer) -> None:
        try:
            hear(peer, peer.connection.receive())
        except Gone:
            if not peer.waiting:  # what it has said before is heard first
                raise

    def _answer(self) -> bool:
        """Answer those whose turn it is; return whether there is more to do. Who has to read first is not answered."""
        for peer in self._turns.take():
            if peer.waiting and not peer.is_blocked and not peer.is_closed:
                self._try(peer, partial(self._take, peer, peer.waiting.popleft()))
        return bool(self._turns) or self._handler.rest()

    def _try(self, peer: Peer, what: Callable[[], None]) -> None:
        """Do something with a connection, and see to what comes next. Close it if it is bad."""
        try:
            what()
            self._wait_for(peer)
        except Gone as error:
            self._lose(peer, error)
        except BadFrame as error:
            self._close(peer, str(error))
        except Refused as refused:
            self._refuse(peer, refused)

    def _take(self, peer: Peer, frame: Frame) -> None:
        if frame.kind >= FIRST_OF_INDEX and peer.role is Role.SCHEDULER and peer.member is not None:
            for answer in self._handler.handle(peer.member.owner, frame):
                peer.connection.send(answer)
        elif peer.role is None:
            self._greet(peer, frame)
        elif frame.kind == Kind.DRAINED and peer.member is not None:
            self.lives.drained(peer.member)
        elif frame.kind == Kind.STATUS and peer.role is Role.OPERATOR:
            peer.connection.send(Frame(Kind.STATUS, self._status_body(), frame.tag))
        elif frame.kind == Kind.CLEAR and peer.role is Role.OPERATOR:
            peer.connection.send(Frame(Kind.CLEAR, self._cleared(frame.body), frame.tag))
        else:
            raise BadFrame(f"a frame of kind {frame.kind}, which is not for it to send")

    def _status_body(self) -> bytes:
        body = json.dumps(self._status()).encode()
        return body if len(body) <= BODY_BYTES_MAX else json.dumps({"too_long_bytes": len(body)}).encode()

    def _cleared(self, body: bytes) -> bytes:
        try:
            answer: dict[str, object] = {"blocks": self._handler.clear(body.decode(errors="replace"))}
        except Refused as refused:
            answer = {"why": refused.why}
        return json.dumps(answer).encode()

    def _push(self, peer: Peer, frame: Frame) -> None:
        try:
            peer.connection.send(frame)
            self._wait_for(peer)
        except Gone as error:
            self._lose(peer, error)

    def _wait_for(self, peer: Peer) -> None:
        """Wait until it reads, for its turn, or for what it says next."""
        if peer.is_closed:
            return
        is_blocked = peer.connection.unsent_bytes > 0
        if is_blocked != peer.is_blocked:
            peer.is_blocked = is_blocked
            self._loop.change(peer.connection.fileno(), WRITE if is_blocked else READ)
        if peer.waiting and not is_blocked:
            self._turns.add(peer)

    # ------------------------------------------------------------------ who goes

    def _refuse(self, peer: Peer, refused: Refused) -> None:
        self.refused += 1
        who_and_why = f"{peer}: {refused.why}"
        self.last_refused = who_and_why, time.monotonic()
        if self._news.is_new(who_and_why):
            self._say(f"refused {who_and_why}")
        self._push(peer, refusal(refused))
        self._close(peer)

    def _hang_up(self, member: Member) -> None:
        """Close the connection of a member. What it has said to the index before is heard."""
        peer = self._by_member.get(member.number)
        if peer is None:
            return
        self._ready(peer, READ)
        while peer.waiting and peer.waiting[0].kind >= FIRST_OF_INDEX and not peer.is_closed:
            self._try(peer, partial(self._take, peer, peer.waiting.popleft()))
        self._close(peer)

    def _lose(self, peer: Peer, error: Gone) -> None:
        """Close the connection of one that has left. It has done nothing wrong, unless it has not read what waits."""
        self._close(peer, str(error) if peer.connection.unsent_bytes else "")

    def _close(self, peer: Peer, why: str = "") -> None:
        """Close a connection; `why` is what it did wrong."""
        if peer.is_closed:
            return
        peer.is_closed = True
        if why:
            self.closed += 1
            self._say(f"closed the connection of {peer}: {why}")
        self._loop.forget(peer.connection.fileno())
        del self._peers[peer.connection.fileno()]
        peer.connection.close()
        if peer.member is not None:
            del self._by_member[peer.member.number]
            self.lives.closed(peer.member)
