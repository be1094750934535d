"""Conversations that load an engine, and what a store says from outside that it has committed of them."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from fencepost.kvstore.v1 import snapshot_pb2, snapshot_pb2_grpc

from services import rpc
from services.identity import PAGE_TOKENS, page_key_secret, page_keys, tokenizer_fingerprint
from tests.contract.engine_client import EngineClient, run_engine
from tests.contract.kvstore_client import Client, State

SCOPE = "scope"
BYTES_PER_TOKEN = 512
"""Of the tiny model: keys and values of two heads of sixteen floats in each of two layers."""
_CONTEXT_TOKENS = 1_500
_SURVEY_S = 60.0


@dataclass(frozen=True)
class Turn:
    """One answered prompt."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]

    @property
    def num_tokens(self) -> int:
        """Tokens of its terminal state: the last one sampled has not been computed."""
        return len(self.prompt) + len(self.answer) - 1

    @property
    def token_ids(self) -> bytes:
        return np.array((self.prompt + self.answer)[: self.num_tokens], dtype="<i4").tobytes()


@dataclass
class Conversation:
    """Grows turn by turn, and starts anew when it is long; ``turns`` are those that an engine has finished."""

    rng: random.Random
    ids: list[int] = field(default_factory=list[int])
    turns: list[Turn] = field(default_factory=list[Turn])

    async def go_on(self, engine: EngineClient, end: asyncio.Event) -> None:
        while not end.is_set():
            new = random_ids(self.rng, self.rng.randrange(20, 400))
            prompt = [*(self.ids if len(self.ids) + len(new) < _CONTEXT_TOKENS else ()), *new]
            answer = await engine.generate(prompt, 6, scope=SCOPE, conversation_key=str(prompt[:4]))
            self.turns.append(Turn(tuple(prompt), answer.ids))
            self.ids = [*prompt, *answer.ids]


@asynccontextmanager
async def load(conversations_by_engine: Mapping[EngineClient, Sequence[Conversation]]) -> AsyncGenerator[None]:
    """Several turns at a time until the end; then what is under way is awaited."""
    end = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        for engine, conversations in conversations_by_engine.items():
            for conversation in conversations:
                tasks.create_task(conversation.go_on(engine, end))
        yield
        end.set()


@dataclass(frozen=True)
class _State(State):
    """A state whose page keys an engine has made."""

    keys: tuple[bytes, ...] = ()

    @property
    def page_keys(self) -> list[bytes]:
        return list(self.keys)


@dataclass(frozen=True)
class Holding:
    """Terminal states, the pages that they name, and the bytes of those and of the tails.

    Of states that end with a page it cannot be seen from outside whether the store has a manifest of their own, or the
    pages from a later turn: ``manifests`` are the least and the most there may be.
    """

    manifests: range
    pages: int
    num_bytes: int


class Survey:
    """What the store has committed of some conversations."""

    def __init__(self, namespace: bytes, model: Path, conversations: Sequence[Conversation]) -> None:
        self.committed: dict[bytes, Turn] = {}
        self._namespace = namespace
        self._secret = page_key_secret(SCOPE, tokenizer_fingerprint(model))
        self._conversations = conversations

    async def look(self, client: Client) -> int:
        """Ask for every turn that wasn't there yet; how many now are."""
        turns = {turn.token_ids: turn for found in self._conversations for turn in found.turns}
        new = {ids: turn for ids, turn in turns.items() if ids not in self.committed and await self._has(client, turn)}
        self.committed |= new
        return len(new)

    async def look_until_more(self, client: Client) -> None:
        """Ask until something new is there."""
        async with asyncio.timeout(_SURVEY_S):
            while True:
                if await self.look(client):
                    return
                await asyncio.sleep(0.02)

    async def check(self, client: Client) -> Holding:
        """Every committed turn is found whole, and the store can read every byte of it; what they take together."""
        pages: set[bytes] = set()
        tail_tokens = num_without_tail = 0
        for ids, turn in self.committed.items():
            assert await self._has(client, turn)
            found = await self._match(client, turn)
            state = _State(ids, found.boundary.manifest_id, namespace=self._namespace, keys=self._keys(turn))
            read = await client.read(state, tail=found.HasField("boundary"), lease_id=found.lease_id)
            await client.lease(lease_id=found.lease_id, release=True)
            assert not read.skipped
            assert b"".join(read.token_ids.values()) == ids
            sizes: Counter[bytes] = Counter()
            for (owner, _, _), data in read.channels.items():
                sizes[owner] += len(data)
            assert sizes == {owner: BYTES_PER_TOKEN * len(part) // 4 for owner, part in read.token_ids.items()}
            tail_tokens += turn.num_tokens % PAGE_TOKENS
            num_without_tail += not turn.num_tokens % PAGE_TOKENS
            pages.update(state.keys)
        manifests = range(len(self.committed) - num_without_tail, len(self.committed) + 1)
        return Holding(manifests, len(pages), BYTES_PER_TOKEN * (PAGE_TOKENS * len(pages) + tail_tokens))

    async def _has(self, client: Client, turn: Turn) -> bool:
        found = await self._match(client, turn)
        await client.lease(lease_id=found.lease_id, release=True)
        return turn.num_tokens in (found.boundary.tokens, found.pages_present * PAGE_TOKENS)

    async def _match(self, client: Client, turn: Turn) -> snapshot_pb2.MatchResponse:
        tail = snapshot_pb2.TailQuery(first_page=0, token_ids=turn.token_ids)
        request = snapshot_pb2.MatchRequest(namespace=self._namespace, page_keys=self._keys(turn), tail=tail)
        return await client.snapshots.Match(request)

    def _keys(self, turn: Turn) -> tuple[bytes, ...]:
        return tuple(page_keys(self._secret, turn.token_ids))


async def namespace_of(model: Path) -> bytes:
    """The namespace in which an engine of this model looks things up, heard at the place of a store."""
    heard = asyncio.Queue[bytes]()

    class Listener(snapshot_pb2_grpc.SnapshotServiceServicer):
        async def Match(self, request: snapshot_pb2.MatchRequest, context: object) -> snapshot_pb2.MatchResponse:
            heard.put_nowait(request.namespace)
            return snapshot_pb2.MatchResponse()

    server = rpc.new_server()
    # The stubs call methods abstract that the generated base answers with UNIMPLEMENTED.
    listener = Listener()  # pyright: ignore[reportAbstractUsage]
    snapshot_pb2_grpc.add_SnapshotServiceServicer_to_server(listener, server)
    address = f"127.0.0.1:{rpc.bind(server, '127.0.0.1:0')}"
    await server.start()
    async with run_engine(model, address) as engine:
        await engine.generate([3] * 50, 1, scope=SCOPE, persist=False)
    await server.stop(None)
    return heard.get_nowait()


def random_ids(rng: random.Random, count: int) -> list[int]:
    return rng.choices(range(3, 500), k=count)
