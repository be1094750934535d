"""Builds an engine from its settings: model, pools, scheduler, disk tier, servicer."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import grpc.aio
from fencepost.engine.v1 import engine_pb2, engine_pb2_grpc

from services.engine.blocks import BlockPool
from services.engine.cache_manager import CacheManager
from services.engine.choosing import new_chooser
from services.engine.config import EngineConfig
from services.engine.core import EngineCore
from services.engine.end_rules import EndRules
from services.engine.errors import ModelUnusable
from services.engine.fencing import Fencing
from services.engine.guard.lexicon import Lexicon
from services.engine.loading import Loaded, load
from services.engine.prefix_tree import PrefixTree
from services.engine.scheduler import Scheduler
from services.engine.seen_pages import SeenPages
from services.engine.sequence import Sequence
from services.engine.servicer import EngineServicer, ModelFacts
from services.engine.snapshot_writer import SnapshotWriter
from services.engine.ssd_tier import SsdTier
from services.engine.staging import Staging
from services.engine.store_client import StoreClient
from services.engine.waiting import AdmissionPolicy
from services.health import IsReady, always
from services.identity import PAGE_TOKENS
from services.vocabulary import Vocabulary

_REST_PER_WORK = 6.0
"""While requests run, reading and writing state rests this long for each second of work, so that decoding goes on."""


@asynccontextmanager
async def build(config: EngineConfig, server: grpc.aio.Server) -> AsyncGenerator[Mapping[str, IsReady]]:
    """Load the model, start the step loop and register the servicer; drains pending writes on the way out.

    Raises ModelUnusable naming the file or setting.
    """
    async with AsyncExitStack() as stack:
        # The thread that computes also loads: OpenMP's threads belong to the thread that first used them, and once
        # there are more than cores, none spins.
        compute = stack.enter_context(ThreadPoolExecutor(1, "compute"))
        loaded = await asyncio.get_running_loop().run_in_executor(compute, load, config)
        runtime = loaded.runtime
        pool = BlockPool(runtime.num_blocks)
        tree = PrefixTree(
            runtime.block_tokens,
            clock=time.monotonic,
            free_block=lambda block_id: pool.put((block_id,)),
            is_lru=config.eviction == "lru",
        )
        rules = EndRules(runtime.eos_token_ids, loaded.context_tokens, _spelling(loaded.vocabulary))
        seen = SeenPages()
        keys = loaded.identity.keys_of
        tier, client, copying = None, None, stack.enter_context(ThreadPoolExecutor(1, "state"))
        if config.kvstore:
            client = StoreClient(config.kvstore)
            stack.push_async_callback(client.close)
            tier = _tier(config, loaded, client, copying, pause=lambda worked_s: pause(worked_s))
            stack.push_async_callback(tier.close)
        scheduler = Scheduler(
            CacheManager(pool, tree),
            rules,
            step_tokens=config.step_tokens,
            max_running=config.max_running,
            drafts=config.drafts == "on",
            policy=AdmissionPolicy(
                is_by_prefix=config.admission == "lpm",
                is_gated=config.working_set_gate,
                patience_s=config.patience_s,
                max_passes=config.max_passes,
            ),
            is_worth_restoring=(lambda resident, stored: True) if tier is None else tier.is_worth_restoring,
            was_cached=lambda sequence, at_token: _was_cached(seen, keys, sequence, at_token),
        )

        def pause(worked_s: float) -> float:
            return _REST_PER_WORK * worked_s if scheduler.running else 0.0

        writer = None
        if tier is not None and client is not None:
            writer = SnapshotWriter(
                tier,
                client,
                runtime,
                tree,
                copying,
                on_turn=config.write_policy == "turn",
                max_pending=config.max_pending_writes,
                pause=pause,
            )
        core = EngineCore(
            runtime,
            scheduler,
            tier,
            writer,
            compute,
            loaded.prefill_cost,
            new_chooser=partial(new_chooser, lexicon=Lexicon(loaded.vocabulary.token_bytes)),
            keys_of=keys,
            seen=seen,
            context_tokens=loaded.context_tokens,
            max_waiting=config.max_waiting,
        )
        fencing = Fencing(loaded.vocabulary, config.model, runtime.eos_token_ids, runtime.vocab_size)
        stack.callback(fencing.close)
        # The stubs call methods abstract that the generated base answers with UNIMPLEMENTED.
        servicer = EngineServicer(core, _facts(config, loaded), fencing, loop_guard=config.loop_guard == "on")  # pyright: ignore[reportAbstractUsage]
        engine_pb2_grpc.add_EngineServiceServicer_to_server(servicer, server)
        # Not beside the first requests, which it would slow down.
        await fencing.built()
        async with asyncio.TaskGroup() as tasks:
            loop = tasks.create_task(core.run())
            try:
                yield {engine_pb2.DESCRIPTOR.services_by_name["EngineService"].full_name: always}
                await core.drain(config.grace_s)
            finally:
                loop.cancel()


def _tier(
    config: EngineConfig,
    loaded: Loaded,
    client: StoreClient,
    executor: ThreadPoolExecutor,
    pause: Callable[[float], float],
) -> SsdTier:
    """Raises ModelUnusable where the folder of shared memory cannot be used."""
    staging = None
    if config.shared_memory_dir:
        try:
            staging = Staging(Path(config.shared_memory_dir), config.staging_bytes)
        except OSError as error:
            raise ModelUnusable(f"--shared-memory-dir {config.shared_memory_dir}: {error.strerror}") from None
    return SsdTier(
        client,
        loaded.runtime,
        loaded.identity,
        executor,
        loaded.prefill_cost,
        staging=staging,
        min_restore_tokens=config.min_restore_tokens,
        restore_timeout_s=config.restore_timeout_s,
        always_restore=config.restore == "always",
        pause=pause,
    )


def _was_cached(seen: SeenPages, keys: Callable[[str, bytes], list[bytes]], sequence: Sequence, at_token: int) -> bool:
    """Whether the page that token ``at_token`` lies in, or one behind it, was cached once."""
    request = sequence.request
    return any(key in seen for key in keys(request.cache_scope, request.token_ids)[at_token // PAGE_TOKENS :])


def _spelling(vocabulary: Vocabulary) -> Callable[[int], bytes]:
    special = vocabulary.special_ids
    return lambda token_id: b"" if token_id in special else vocabulary.spell(token_id)


def _facts(config: EngineConfig, loaded: Loaded) -> ModelFacts:
    layout = loaded.runtime.layout
    return ModelFacts(
        name=config.model.name,
        engine_id=secrets.token_hex(8),
        tokenizer_fingerprint=loaded.identity.tokenizer_fingerprint,
        weights_fingerprint=loaded.identity.weights_fingerprint,
        vocabulary_size=loaded.runtime.vocab_size,
        block_tokens=loaded.runtime.block_tokens,
        page_tokens=PAGE_TOKENS,
        context_tokens=loaded.context_tokens,
        bytes_per_token=layout.bytes_per_token,
        block_bytes=layout.bytes_per_token * loaded.runtime.block_tokens,
        end_token_ids=tuple(sorted(loaded.runtime.eos_token_ids)),
    )
