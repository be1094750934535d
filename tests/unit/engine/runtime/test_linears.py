"""Packed linear layers give what the layers they stand for give."""

import pytest
import torch

from services.engine.runtime.linears import PackedLinear, pack_linears


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("num_rows", [1, 2, 3, 7, 16, 130])
def test_a_packed_layer_gives_the_same_product(num_rows: int, has_bias: bool):
    torch.manual_seed(num_rows)
    linear = torch.nn.Linear(96, 65, bias=has_bias).requires_grad_(False)
    rows = torch.randn(1, num_rows, 96)
    with torch.inference_mode():
        torch.testing.assert_close(PackedLinear(linear)(rows), linear(rows), rtol=1e-5, atol=1e-5)


def test_every_float32_layer_is_packed_and_shared_weights_stay_with_their_embedding():
    embedding, head = torch.nn.Embedding(10, 8), torch.nn.Linear(8, 10, bias=False)
    head.weight = embedding.weight
    half = torch.nn.Linear(8, 8).to(torch.float16)
    network = torch.nn.ModuleDict(
        {"inner": torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()), "embedding": embedding, "head": head}
    ).requires_grad_(False)
    network["small"] = half
    weight = embedding.weight.clone()
    pack_linears(network)
    kinds = {name: type(module) for name, module in network.named_modules() if not list(module.children())}
    assert kinds == {
        "inner.0": PackedLinear,
        "inner.1": torch.nn.ReLU,
        "embedding": torch.nn.Embedding,
        "head": PackedLinear,
        "small": torch.nn.Linear,
    }
    assert torch.equal(embedding.weight, weight)


def test_without_onednn_layers_stay_as_they_are(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    network = torch.nn.Sequential(torch.nn.Linear(8, 8))
    pack_linears(network)
    assert type(network[0]) is torch.nn.Linear
