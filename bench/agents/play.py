"""Plays sessions to an engine: a fixed number at a time, each one's next turn some seconds behind its last answer."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass

from fencepost.engine.v1 import engine_pb2 as pb

from bench.agents.served import Served
from bench.agents.session import Session, Turn
from tests.contract.engine_client import EngineClient

_SCOPE = "bench"


@dataclass(frozen=True, slots=True)
class Plan:
    """How many, and how long in seconds."""

    num_sessions: int
    ramp_s: float
    warm_up_s: float
    measured_s: float
    between_sessions_s: float
    seed: int
    joins_late: bool
    """The first sessions begin at any of their turns, as if they had been there for long."""


@dataclass(frozen=True, slots=True)
class Played:
    """All requests, in order of arrival, and the measured time on their clock, with whose end they end."""

    requests: list[Served]
    from_s: float
    to_s: float

    def finished(self) -> list[Served]:
        """Those that ended within the measured time."""
        return [r for r in self.requests if r.finished_s is not None and r.finished_s >= self.from_s]


async def play(engine: EngineClient, sessions: Iterator[Session], plan: Plan) -> Played:
    """Play them; what is not done at the end of the measured time is cancelled."""
    began_s = time.monotonic()
    from_s = began_s + plan.warm_up_s
    to_s = from_s + plan.measured_s
    players = [_Player(engine, sessions, plan) for _ in range(plan.num_sessions)]
    rng = random.Random(f"{plan.seed} start")
    tasks: list[asyncio.Task[None]] = []
    for player in players:
        session, delay_s = next(sessions), rng.random() * plan.ramp_s
        if plan.joins_late:
            session = session.from_turn(rng.randrange(len(session.turns)))
        tasks.append(asyncio.create_task(player.run(session, delay_s)))
    await asyncio.wait(tasks, timeout=to_s - time.monotonic(), return_when=asyncio.FIRST_EXCEPTION)
    for task in tasks:
        task.cancel()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(result, Exception):
            raise result
    requests = sorted((r for player in players for r in player.requests), key=lambda r: r.arrived_s)
    return Played(requests, from_s, to_s)


class _Player:
    """One client: session after session."""

    def __init__(self, engine: EngineClient, sessions: Iterator[Session], plan: Plan) -> None:
        self.requests: list[Served] = []
        self._engine = engine
        self._sessions = sessions
        self._plan = plan

    async def run(self, session: Session, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        while True:
            await self._play(session)
            await asyncio.sleep(self._plan.between_sessions_s)
            session = next(self._sessions)

    async def _play(self, session: Session) -> None:
        key = session.name
        before: list[int] = []
        for turn in session.turns:
            prompt = turn.prompt(before)
            before = prompt + await self._ask(prompt, turn, key)
            if turn is session.turns[-1]:
                break
            await self._engine.stub.Annotate(
                pb.AnnotateRequest(cache_scope=_SCOPE, conversation_key=key, wait_classes=turn.wait_classes)
            )
            await asyncio.sleep(turn.wait_s)
        await self._engine.stub.Release(pb.ReleaseRequest(cache_scope=_SCOPE, conversation_key=key))

    async def _ask(self, prompt: list[int], turn: Turn, key: str) -> list[int]:
        request = Served(time.monotonic(), len(prompt))
        self.requests.append(request)
        output: list[int] = []
        async for message in self._engine.start(prompt, turn.output_tokens, _SCOPE, conversation_key=key):
            now_s = time.monotonic()
            match message.WhichOneof("event"):
                case "admitted":
                    request.admitted_s = now_s
                case "tokens":
                    request.first_token_s = request.first_token_s or now_s
                    output += message.tokens.ids
                case "finished":
                    request.finished_s = now_s
                    by_tier = message.finished.usage.cached.by_tier
                    request.cached_by_tier = {entry.tier: entry.tokens for entry in by_tier}
                case _:
                    pass
        return output
