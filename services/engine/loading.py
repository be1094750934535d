"""A model on its device, with as much memory for state as there is: what an engine must have before it can serve."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

import numpy as np
import torch

from services.engine.config import EngineConfig
from services.engine.errors import ModelUnusable
from services.engine.restore_cost import PrefillCost
from services.engine.runtime import (
    Batch,
    DeviceMissingError,
    LoadedModel,
    ModelLoadError,
    PagedRuntime,
    Row,
    StateLayout,
    load_model,
)
from services.engine.runtime.device import find_device
from services.engine.runtime.probe import probe
from services.engine.runtime.sizing import measured_state_bytes
from services.engine.ssd_tier import ModelIdentity
from services.identity import PAGE_TOKENS, tokenizer_fingerprint, weights_fingerprint
from services.vocabulary import Vocabulary, VocabularyError, load_vocabulary

_HOST_STATE_BYTES = 2 * 2**30
_BLOCK_TOKENS = {"cpu": 16, "cuda": 64}
_WARM_UP_TOKENS = 128
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Loaded:
    """``context_tokens``: what the model was made for and the pools hold."""

    runtime: PagedRuntime
    vocabulary: Vocabulary
    identity: ModelIdentity
    context_tokens: int
    prefill_cost: PrefillCost


def load(config: EngineConfig) -> Loaded:
    """Takes seconds to minutes. Raises ModelUnusable naming the file or setting."""
    started_s = time.monotonic()
    try:
        device = find_device(config.device)
    except DeviceMissingError as error:
        raise ModelUnusable(f"--device {config.device}: {error}") from None
    block_tokens = config.block_tokens or _BLOCK_TOKENS[device.type]
    if PAGE_TOKENS % block_tokens:
        raise ModelUnusable(f"--block-tokens must divide {PAGE_TOKENS}, got {block_tokens}")
    try:
        vocabulary = load_vocabulary(config.model)
        model = load_model(config.model, device, config.threads, config.weights)
        layout, _ = probe(model)
        identity = ModelIdentity(
            model_type=model.model_type,
            weights_fingerprint=weights_fingerprint(config.model),
            tokenizer_fingerprint=tokenizer_fingerprint(config.model),
            weight_format=model.weight_format,
        )
        runtime = _with_pools(config, model, layout, block_tokens)
    except (VocabularyError, ModelLoadError) as error:
        raise ModelUnusable(str(error)) from None
    except OSError as error:
        raise ModelUnusable(f"{error.filename}: {error.strerror}") from None
    except torch.OutOfMemoryError as error:
        raise ModelUnusable(f"{device} has too little memory: {str(error).partition('. ')[0]}") from None
    context_tokens = min(runtime.context_tokens, runtime.num_blocks * block_tokens)
    if context_tokens < runtime.context_tokens:
        _log.warning("the memory for state holds %d tokens, fewer than the model's context", context_tokens)
    prefill_cost = PrefillCost(_warm_up(runtime))
    _log.info(
        "loaded %s in %.1f s on %s in %s, attention %s: %d blocks of %d tokens, %.2f GiB of state",
        config.model.name,
        time.monotonic() - started_s,
        device,
        model.weight_format,
        runtime.attention_name,
        runtime.num_blocks,
        block_tokens,
        runtime.allocated_bytes / 2**30,
    )
    return Loaded(runtime, vocabulary, identity, context_tokens, prefill_cost)


def _with_pools(config: EngineConfig, model: LoadedModel, layout: StateLayout, block_tokens: int) -> PagedRuntime:
    block_bytes = layout.bytes_per_token * block_tokens
    if config.vram_bytes is not None:
        source, num_bytes = f"--vram-bytes {config.vram_bytes}", config.vram_bytes
    elif model.device.type == "cpu":
        source, num_bytes = "the default of --vram-bytes", _HOST_STATE_BYTES
    else:
        num_bytes = measured_state_bytes(
            model,
            utilisation=config.vram_utilisation,
            step_tokens=config.step_tokens,
            max_running=config.max_running,
            block_tokens=block_tokens,
        )
        source = f"--vram-utilisation {config.vram_utilisation:g} leaves {num_bytes} bytes, which"
    num_blocks = num_bytes // block_bytes
    if num_blocks < 2:
        raise ModelUnusable(f"{source} holds no two blocks of {block_bytes} bytes")
    return PagedRuntime(model, num_blocks=num_blocks, block_tokens=block_tokens)


def _warm_up(runtime: PagedRuntime) -> float:
    """Make the first request as fast as the second: libraries choose their kernels at first use.

    Seconds that a token of a prompt took, the second time.
    """
    blocks = range(min(runtime.num_blocks, max(1, _WARM_UP_TOKENS // runtime.block_tokens)))
    num_tokens = min(len(blocks) * runtime.block_tokens, runtime.context_tokens)
    row = Row(token_ids=np.zeros(num_tokens, dtype=np.int32), start=0, block_ids=blocks, num_logits=1)
    runtime.forward(Batch((row,)))
    started_s = time.monotonic()
    runtime.forward(Batch((row,)))
    return (time.monotonic() - started_s) / num_tokens
