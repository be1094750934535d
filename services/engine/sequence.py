"""A request inside the engine: its tokens, its blocks, and how far it has come.

A request for several choices is one sequence until its prompt is computed. Then the other choices begin as sequences
of their own, which find the prompt's blocks in the prefix tree and share them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from services.engine.choosing import TokenChooser, new_chooser
from services.engine.draft.drafter import Drafter
from services.engine.node import TOKEN_BYTES, Node
from services.engine.owner import EVERYONE, Owner
from services.engine.request import CacheUse, Event, FinishReason, MissReason, Request, Tier, Timings
from services.engine.runtime.gate import LayerGate
from services.engine.stop import StopHit, StopScanner


class State(Enum):
    """Where a sequence stands."""

    WAITING = auto()
    RESTORING = auto()
    RUNNING = auto()
    FINISHED = auto()


class Outbox:
    """Events of one request, on their way from the step loop to the call that serves it.

    ``is_closed`` says that nobody reads them any more: all choices of the request are to end.
    """

    def __init__(self) -> None:
        self.is_closed = False
        self._events: list[Event] = []
        self._ready = asyncio.Event()

    def put(self, event: Event) -> None:
        """Add an event; never blocks. What can pile up is bounded by the request's own max_tokens."""
        self._events.append(event)
        self._ready.set()

    async def get_all(self) -> list[Event]:
        """Wait for events and take all that are pending, in order."""
        await self._ready.wait()
        self._ready.clear()
        events, self._events = self._events, []
        return events


@dataclass(slots=True)
class Times:
    """Monotonic seconds at which a sequence reached its stations."""

    arrived_s: float
    admitted_s: float | None = None
    restored_s: float | None = None
    first_token_s: float | None = None

    def timings(self, now_s: float) -> Timings:
        """The stations as durations; what was not reached counts as now."""
        admitted = now_s if self.admitted_s is None else self.admitted_s
        restored = admitted if self.restored_s is None else self.restored_s
        first = now_s if self.first_token_s is None else self.first_token_s
        spans = (admitted - self.arrived_s, restored - admitted, first - restored, now_s - first)
        return Timings(*(max(0.0, span) * 1000 for span in spans))


@dataclass(slots=True, eq=False)
class Sequence:
    """Owned by the step loop's task.

    Invariant: ``block_ids`` cover ``num_computed`` tokens; the first ``num_published`` of them (whole blocks) are in
    the prefix tree, ending at ``cursor``, which this sequence pins. ``owned`` are the blocks that belong to nobody
    else: they go back to the pool when the sequence ends, the others stay cached.
    """

    request: Request
    root: Node
    outbox: Outbox
    chooser: TokenChooser
    stop: StopScanner
    max_tokens: int
    times: Times
    token_ids: bytearray
    new_chooser: Callable[[Request, int], TokenChooser] = new_chooser
    choice: int = 0
    owner: Owner = EVERYONE  # whose its blocks are
    num_to_follow: int = 0  # further choices, which begin when this one's prompt is computed
    state: State = State.WAITING
    num_computed: int = 0
    block_ids: list[int] = field(default_factory=list[int])
    owned: set[int] = field(default_factory=set[int])
    cursor: Node | None = None
    num_published: int = 0
    tail: Node | None = None  # a cached tail that this sequence extends in place, pinned
    stored_tokens: int = 0  # leading tokens whose state the disk tier could give
    stored_is_short: bool = False  # the disk tier has more than is resident, too little to be worth a read
    gate: LayerGate | None = (
        None  # of the restore that fills its blocks; None once it may not be computed along with it
    )
    num_output: int = 0
    drafter: Drafter = field(default_factory=Drafter)
    num_drafted: int = 0
    num_accepted: int = 0  # of those drafted: right, and part of the output
    cached_by_tier: dict[Tier, int] = field(default_factory=dict[Tier, int])
    miss: MissReason | None = None
    miss_at_token: int | None = None
    was_admitted: bool = False
    finish_reason: FinishReason | None = None
    is_broken: bool = False  # its fence could not be kept
    stop_hit: StopHit | None = None

    @classmethod
    def of(
        cls,
        request: Request,
        root: Node,
        max_tokens: int,
        clock: Callable[[], float] = time.monotonic,
        new_chooser: Callable[[Request, int], TokenChooser] = new_chooser,
    ) -> Sequence:
        """A new sequence, waiting: the first choice of its request."""
        return cls(
            request=request,
            root=root,
            outbox=Outbox(),
            chooser=new_chooser(request, 0),
            new_chooser=new_chooser,
            stop=StopScanner(request.sampling.stop_texts),
            max_tokens=max_tokens,
            times=Times(clock()),
            token_ids=bytearray(request.token_ids),
            num_to_follow=request.sampling.choices - 1,
        )

    def followers(self) -> list[Sequence]:
        """The further choices, waiting; once only, when the prompt is computed.

        What the prompt took is the request's and the same for all of them: admission, cached tokens, times.
        """
        sampling = self.request.sampling
        self.num_to_follow = 0
        return [
            Sequence(
                request=self.request,
                root=self.root,
                outbox=self.outbox,
                chooser=self.new_chooser(self.request, choice),
                new_chooser=self.new_chooser,
                stop=StopScanner(sampling.stop_texts),
                max_tokens=self.max_tokens,
                times=replace(self.times, first_token_s=None),
                token_ids=bytearray(self.request.token_ids),
                choice=choice,
                owner=self.owner,
                cached_by_tier=self.cached_by_tier,
                miss=self.miss,
                miss_at_token=self.miss_at_token,
                was_admitted=True,
            )
            for choice in range(1, sampling.choices)
        ]

    @property
    def is_cancelled(self) -> bool:
        """Nobody waits for the request any more."""
        return self.outbox.is_closed

    def cancel(self) -> None:
        """End all choices of the request at the next step."""
        self.outbox.is_closed = True

    @property
    def num_tokens(self) -> int:
        """Prompt and output so far."""
        return len(self.token_ids) // TOKEN_BYTES

    @property
    def num_prompt(self) -> int:
        """Tokens of the prompt."""
        return self.request.num_tokens

    @property
    def num_pending(self) -> int:
        """Tokens that must be computed before the next one can be sampled."""
        return self.num_tokens - self.num_computed

    def ids(self, first: int, last: int) -> bytes:
        """Token ids [first, last) as bytes."""
        return bytes(self.token_ids[first * TOKEN_BYTES : last * TOKEN_BYTES])

    def append(self, token_id: int) -> None:
        """Add a sampled token."""
        self.token_ids += token_id.to_bytes(TOKEN_BYTES, "little")
        self.num_output += 1

    def cache_use(self) -> CacheUse:
        """What was reused of the prompt."""
        reused = sum(self.cached_by_tier.values())
        return CacheUse(dict(self.cached_by_tier), self.num_prompt - reused, self.miss, self.miss_at_token)
