"""What the fused decoder covers, what it leaves to transformers' own layers, and its waiting for layers."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from services.engine.runtime import Batch, Row, UnsupportedModelError, load_model
from services.engine.runtime.fused import FusedDecoder
from services.engine.runtime.gate import LayerGate, LayersMissing
from tests.unit.engine.runtime.scenarios import chunked, greedy_decode, mixed_batch
from tests.unit.engine.runtime.subject import Subject
from tests.unit.engine.runtime.tiny_models import save_tiny

_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "rope_theta": 10000.0}
_VARIANTS: dict[str, tuple[str, dict[str, Any], bool]] = {
    "biases everywhere": ("llama", {"attention_bias": True, "mlp_bias": True}, True),
    "scaled rotary": ("qwen3", {"rope_parameters": _YARN}, True),
    "tied embeddings": ("llama", {"tie_word_embeddings": True}, True),
    "another activation": ("llama", {"hidden_act": "gelu"}, False),
    "another activation and head norms": ("qwen3", {"hidden_act": "relu"}, False),
}


@pytest.mark.parametrize("variant", _VARIANTS)
@pytest.mark.parametrize("weights", ["fp32", "fp16"])
def test_what_is_not_covered_is_computed_by_its_own_layers(tmp_path: Path, variant: str, weights: str) -> None:
    kind, changes, is_fused = _VARIANTS[variant]
    save_tiny(kind, tmp_path, **changes)
    subject = Subject.load(tmp_path, num_blocks=40, tolerance=2e-4, weights=weights)
    network = subject.runtime._model.network
    assert isinstance(network, FusedDecoder) == is_fused
    scenarios: tuple[Callable[[Subject], None], ...] = (chunked, mixed_batch, greedy_decode)
    for scenario in scenarios:
        subject.reset()
        scenario(subject)


@pytest.fixture(scope="module")
def loaded(tiny_dirs: dict[str, Path]) -> Subject:
    return Subject.load(tiny_dirs["qwen2"], num_blocks=24, tolerance=2e-4, weights="fp16")


@pytest.fixture
def subject(loaded: Subject) -> Subject:
    loaded.reset()
    return loaded


def _stored(subject: Subject) -> tuple[Batch, list[list[bytes]], torch.Tensor]:
    """A step after 40 stored tokens: the step, the stored spans by layer, and its logits. The pools are empty again."""
    prompt, blocks = subject.tokens(43), subject.blocks(43)
    subject.prefill(prompt[:40], blocks)
    state = subject.state(blocks, 40)
    num_channels = len(subject.runtime.layout.channels)
    by_layer = [state[first : first + num_channels] for first in range(0, len(state), num_channels)]
    logits = subject.prefill(prompt[40:], blocks, 40)
    subject.reset()
    return Batch((Row(prompt[40:], 40, blocks, True),)), by_layer, logits


def _fill(subject: Subject, batch: Batch, layer: int, spans: list[bytes]) -> None:
    for channel, span in enumerate(spans):
        subject.runtime.write_span(batch.rows[0].block_ids, 0, 40, layer, channel, span)


def test_each_layer_waits_for_its_own_state(subject: Subject) -> None:
    batch, by_layer, expected = _stored(subject)
    gate, found = LayerGate(), []
    thread = threading.Thread(target=lambda: found.append(subject.runtime.forward(Batch(batch.rows, gate))))
    thread.start()
    for layer, spans in enumerate(by_layer):
        assert not found
        _fill(subject, batch, layer, spans)
        gate.open(layer + 1)
    thread.join()
    assert torch.equal(found[0][0], expected)


def test_a_step_that_a_layer_fails_is_without_effect(subject: Subject) -> None:
    batch, by_layer, expected = _stored(subject)
    gate = LayerGate()
    _fill(subject, batch, 0, by_layer[0])
    gate.open(1)
    gate.fail()
    with pytest.raises(LayersMissing, match="layer 1 of a failed restore"):
        subject.runtime.forward(Batch(batch.rows, gate))
    _fill(subject, batch, 1, by_layer[1])
    assert torch.equal(subject.runtime.forward(batch)[0], expected)


def test_auto_means_fp16_where_that_only_rounds(tmp_path: Path) -> None:
    save_tiny("llama", tmp_path)
    assert load_model(tmp_path).weight_format == "fp16"
    assert load_model(tmp_path, weights="fp32").weight_format == "fp32"
    for path in tmp_path.glob("*.safetensors"):
        tensors = load_file(path)
        save_file({name: 1e6 * tensor for name, tensor in tensors.items()}, path, {"format": "pt"})
    assert load_model(tmp_path).weight_format == "fp32"
    with pytest.raises(UnsupportedModelError, match=r"no weights in fp16: model\.embed_tokens\.weight has numbers"):
        load_model(tmp_path, weights="fp16")
