"""The way from a conversation to ids, without a server."""

from services.tokenizer.config import LITERAL
from services.tokenizer.history.history import History
from services.tokenizer.models import ServedModel
from services.tokenizer.prompt.builder import PromptBuilder
from services.tokenizer.rope.encoder import RopeEncoder, RopeLimits
from services.tokenizer.routing import Routing

ROUTING = Routing(tenant="t", cache_scope="t", conversation_key="k")


def prompt_builder(
    model: ServedModel,
    history: History | None = None,
    *,
    content_policy: str = LITERAL,
    max_prompt_bytes: int = 100_000,
) -> PromptBuilder:
    return PromptBuilder(
        RopeEncoder(model.tokenizer, RopeLimits()),
        model.writer,
        model.dialect,
        history,
        fingerprint=model.fingerprint,
        spellings=model.spellings,
        content_policy=content_policy,
        max_prompt_bytes=max_prompt_bytes,
        has_reasoning=model.has_reasoning,
    )
