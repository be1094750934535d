"""Completions, OpenAI's older protocol: one text goes in, what follows it comes out.

Chunks: each choice's pieces of text and one with the finish reason, those of different choices in any order; one with
the usage of all where asked for; ``[DONE]``.
"""

from __future__ import annotations

import re
import time
import uuid
from collections import defaultdict
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fencepost.tokenizer.v1 import tokenizer_pb2
from starlette.requests import Request
from starlette.responses import Response

from services.gateway import outcome
from services.gateway.client_request import ClientRequest, assemble
from services.gateway.delivery import DONE, deliver
from services.gateway.errors import BadRequestError, GatewayError, UnsupportedError
from services.gateway.exchange import Exchange
from services.gateway.fields import Fields, wrong
from services.gateway.logprobs import CompletionLogprobs
from services.gateway.sampling import completion_logprobs
from services.gateway.stream import sse
from services.gateway.upstream import Generation


async def respond(request: Request, exchange: Exchange) -> Response:
    """Answer one request. Raises GatewayError before anything is sent, ClientGoneError when nobody waits any more."""
    gateway = exchange.gateway
    response_id = f"cmpl-{uuid.uuid4().hex}"
    asked = parse(exchange, response_id=response_id)
    asked.generate.model = (await gateway.models.named(asked.generate.model)).id
    return await deliver(
        request,
        gateway.tokenizers.generate(asked.generate, asked.replica_key, exchange.trace),
        _Answer(response_id, asked.generate, int(time.time()), asked.include_usage),
        is_stream=asked.is_stream,
        keep_alive_s=gateway.config.keep_alive_s,
    )


def parse(exchange: Exchange, *, response_id: str) -> ClientRequest:
    """Raises BadRequestError or UnsupportedError naming the field."""
    body = exchange.body
    body.refuse("echo", False)
    body.refuse("suffix", "")
    # As many as are returned is no selection.
    body.refuse("best_of", 1, body.values.get("n"))
    return assemble(exchange, _prompt(body), logprobs=completion_logprobs(body), response_id=response_id)


def client_field(contract_field: str) -> str:
    """How the body spells a field of the contract: ``text`` → ``prompt``."""
    field = re.sub(r"^choices$", "n", contract_field.removeprefix("sampling."))
    return re.sub(r"^stop_texts\b", "stop", re.sub(r"^(text|input)$", "prompt", field))


def _prompt(body: Fields) -> str:
    value = body.required("prompt")
    if isinstance(value, list):
        raise UnsupportedError("'prompt' as a list is not supported yet; send one string.", param="prompt")
    if not isinstance(value, str):
        raise wrong("prompt", "a string", value)
    if not value:
        raise BadRequestError("'prompt' must not be empty.", param="prompt")
    return value


class _Answer:
    """The identity that all chunks of an answer share, and how they look."""

    def __init__(
        self, response_id: str, request: tokenizer_pb2.GenerateRequest, created_s: int, include_usage: bool
    ) -> None:
        self._head = {
            "id": response_id,
            "object": "text_completion",
            "created": created_s,
            "model": request.model,
            "system_fingerprint": None,
        }
        self._include_usage = include_usage
        # Where the usage comes at the end, every chunk before has a null one.
        self._tail: dict[str, Any] = {"usage": None} if include_usage else {}
        self._num_choices = request.sampling.choices or 1
        self._has_logprobs = request.sampling.HasField("logprobs")
        self._finished: set[int] = set()

    def keep_alive(self) -> bytes:
        """An empty piece of text, of a choice that is not finished where there is one."""
        open_choices = (index for index in range(self._num_choices) if index not in self._finished)
        return self._chunk(_choice(next(open_choices, 0), ""))

    def frame_of_error(self, error: GatewayError) -> bytes:
        """The error; no ``[DONE]`` follows."""
        return sse(error.openai_body())

    def client_field(self, contract_field: str) -> str:
        """In the spelling of this protocol."""
        return client_field(contract_field)

    async def frames(self, generation: Generation) -> AsyncGenerator[bytes, None]:
        """The whole stream. Its end waits for the tokenizer's, so that the next request finds everything in place."""
        logprobs: defaultdict[int, CompletionLogprobs] = defaultdict(CompletionLogprobs)
        usages: list[tokenizer_pb2.Usage] = []
        async with aclosing(generation.events()) as events:
            async for event in events:
                delta = event.text_delta
                if event.HasField("finished"):
                    index = event.finished.choice
                    usages.append(event.finished.usage)
                    self._finished.add(index)
                    choice = _choice(index, "", finish_reason=outcome.finish_reason(event.finished))
                    yield self._chunk(choice, **outcome.warnings([event.finished]))
                elif delta.text or delta.logprobs:
                    found = logprobs[delta.choice].of(delta.logprobs) if delta.logprobs else None
                    yield self._chunk(_choice(delta.choice, delta.text, found))
        if self._include_usage:
            yield sse({**self._head, "choices": [], "usage": outcome.usage(usages)})
        yield DONE

    async def whole(self, generation: Generation) -> dict[str, Any]:
        """The object with all of the text."""
        choices: defaultdict[int, _Text] = defaultdict(_Text)
        async with aclosing(generation.events()) as events:
            async for event in events:
                if event.HasField("finished"):
                    choices[event.finished.choice].finished = event.finished
                elif event.HasField("text_delta"):
                    choices[event.text_delta.choice].add(event.text_delta)
        return {
            **self._head,
            "choices": [choice.whole(index, self._has_logprobs) for index, choice in sorted(choices.items())],
            "usage": outcome.usage([choice.finished.usage for choice in choices.values()]),
            **outcome.warnings(choice.finished for choice in choices.values()),
        }

    def _chunk(self, choice: dict[str, Any], **more: Any) -> bytes:
        return sse({**self._head, "choices": [choice], **self._tail, **more})


class _Text:
    """A choice in one piece."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._logprobs: list[tokenizer_pb2.TokenLogprobs] = []
        self.finished = tokenizer_pb2.Finished()

    def add(self, delta: tokenizer_pb2.TextDelta) -> None:
        """More of its text."""
        self._texts.append(delta.text)
        self._logprobs += delta.logprobs

    def whole(self, index: int, has_logprobs: bool) -> dict[str, Any]:
        """The choice object."""
        logprobs = CompletionLogprobs().of(self._logprobs) if has_logprobs else None
        return _choice(index, "".join(self._texts), logprobs, finish_reason=outcome.finish_reason(self.finished))


def _choice(
    index: int, text: str, logprobs: dict[str, Any] | None = None, *, finish_reason: str | None = None
) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}
