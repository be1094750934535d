"""Builds the tokenizer from its settings: model, rope cache, history, engines, servicer."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

import grpc.aio
from fencepost.tokenizer.v1 import tokenizer_pb2_grpc

from services import replicas
from services.health import IsReady
from services.tokenizer.answering import Answering
from services.tokenizer.checks.schema_checker import SchemaChecker
from services.tokenizer.config import LITERAL, TokenizerSettings
from services.tokenizer.engines import Engine, Engines
from services.tokenizer.errors import ModelFileError
from services.tokenizer.fence.fence import Fences
from services.tokenizer.history import record_store
from services.tokenizer.history.capsule_keys import load_ring
from services.tokenizer.history.capsules import Capsules
from services.tokenizer.history.history import History
from services.tokenizer.history.memory import Transcripts
from services.tokenizer.models import ServedModel, added_tokens, load_model
from services.tokenizer.pool import EncodePool
from services.tokenizer.prompt.appending import AppendLimits
from services.tokenizer.prompt.builder import PromptBuilder
from services.tokenizer.prompt.footprints import Footprints
from services.tokenizer.rope.encoder import RopeEncoder, RopeLimits
from services.tokenizer.servicer import TokenizerServicer


@asynccontextmanager
async def build(config: TokenizerSettings, server: grpc.aio.Server) -> AsyncGenerator[Mapping[str, IsReady]]:
    """Raises ModelFileError and KeyFileError."""
    model = load_model(config.model, config.model_name, config.aliases, config.dialect)
    async with AsyncExitStack() as stack:
        history = None
        if config.transcript_mode == "faithful":
            capsules = Capsules(load_ring(config.capsule_keys), model.fingerprint)
            store = None
            if config.records:
                store = await stack.enter_async_context(record_store.connect(config.records, config.record_ttl_s))
            history = History(Transcripts(config.record_memory_bytes), store, capsules, model.vocabulary)
        rope = RopeEncoder(model.tokenizer, _limits(config))
        if config.content_policy == LITERAL:
            _check_literal(rope, model)
        builder = PromptBuilder(
            rope,
            model.writer,
            model.dialect,
            history,
            fingerprint=model.fingerprint,
            spellings=model.spellings,
            content_policy=config.content_policy,
            max_prompt_bytes=config.max_prompt_bytes,
            has_reasoning=model.has_reasoning,
            fences=Fences(model.dialect, added_tokens(model)) if config.fences else None,
            append_limits=_append_limits(config),
        )
        pool = EncodePool(config.encode_threads, config.encode_queue)
        stack.callback(pool.close)
        make = partial(Engine, fingerprint=model.fingerprint)
        engines = Engines(
            await stack.enter_async_context(replicas.connect(config.engines, make, grace_s=config.request_timeout_s))
        )
        footprints = Footprints(config.footprint_bytes)
        checker = SchemaChecker()
        stack.push_async_callback(checker.close)
        answering = Answering(model, builder, history, footprints, pool, engines, checker)
        servicer = TokenizerServicer(config, model, answering, pool, is_certified=builder.is_certified)
        tokenizer_pb2_grpc.add_TokenizerServiceServicer_to_server(servicer, server)
        yield {"fencepost.tokenizer.v1.TokenizerService": engines.any_answers}


def _append_limits(config: TokenizerSettings) -> AppendLimits:
    return AppendLimits(
        enabled=config.prefix_token_cache,
        entries=config.prefix_token_cache_entries,
        max_chars=config.prefix_token_cache_max_chars,
        min_chars=config.prefix_token_cache_min_chars,
        verify_rate=config.prefix_token_cache_verify_rate,
    )


def _check_literal(rope: RopeEncoder, model: ServedModel) -> None:
    """Raise ModelFileError where text that a client sends could become a control token in spite of the policy."""
    control = [text for text in rope.unspeakable() if model.spellings is not None and model.spellings.fullmatch(text)]
    if control:
        raise ModelFileError(
            f"{model.name}: the text {control[0]!r} encodes to the control token that it spells, so content cannot be "
            "kept literal; choose --content-policy parse or reject"
        )


def _limits(config: TokenizerSettings) -> RopeLimits:
    return RopeLimits(
        enabled=config.prefix_token_cache,
        entries=config.prefix_token_cache_entries,
        max_chars=config.prefix_token_cache_max_chars,
        min_chars=config.prefix_token_cache_min_chars,
        chunk_bytes=config.prefix_token_cache_bytes,
        overlap_tokens=config.prefix_token_cache_overlap_tokens,
        resync_tokens=config.prefix_token_cache_resync_tokens,
        verify_rate=config.prefix_token_cache_verify_rate,
    )
