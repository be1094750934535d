"""What OpenAI's completion endpoints share on the way in: model, sampling, streaming and routing."""

from __future__ import annotations

from dataclasses import dataclass

from fencepost.tokenizer.v1 import conversation_pb2, tokenizer_pb2

from services.gateway import sampling
from services.gateway.asking import ask
from services.gateway.errors import BadRequestError
from services.gateway.exchange import Exchange
from services.gateway.fields import Fields


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """A valid request, for the model as the client names it. ``replica_key`` is that of ``asking.Asked``."""

    generate: tokenizer_pb2.GenerateRequest
    replica_key: str
    is_stream: bool
    include_usage: bool


def assemble(
    exchange: Exchange, source: conversation_pb2.Conversation | str, *, logprobs: int | None, response_id: str
) -> ClientRequest:
    """A request for the answer to ``source``. Raises BadRequestError or UnsupportedError naming the field.

    ``logprobs`` is how many alternatives are wanted beside each token's log-probability; None for neither.
    """
    body = exchange.body
    model = body.required_text("model")
    if not model:
        raise BadRequestError("'model' must not be empty.", param="model")
    is_stream = bool(body.flag("stream"))
    chosen = sampling.parse(body)
    if logprobs is not None:
        chosen.logprobs = logprobs
    asked = ask(
        exchange,
        source,
        model=model,
        sampling=chosen,
        response_id=response_id,
        cache_key=body.text("prompt_cache_key"),
        user=body.text("user"),
    )
    return ClientRequest(asked.generate, asked.replica_key, is_stream, _include_usage(body, is_stream))


def _include_usage(body: Fields, is_stream: bool) -> bool:
    options = body.object("stream_options")
    if options is None:
        return False
    if not is_stream:
        raise BadRequestError("'stream_options' is only allowed with 'stream': true.", param="stream_options")
    return bool(options.flag("include_usage"))
