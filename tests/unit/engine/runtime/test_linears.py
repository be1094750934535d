"""Packed linear layers give what the layers they stand for give."""

import pytest
import torch

from services.engine.runtime.linears import HalfEmbedding, PackedLinear, not_half, pack_linears


def _rounded(linear: torch.nn.Linear) -> torch.nn.Linear:
    linear.weight.copy_(linear.weight.to(torch.float16))
    return linear


@pytest.mark.parametrize("weight_format", ["fp32", "fp16"])
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("num_rows", [1, 2, 3, 7, 8, 16, 130])
def test_a_packed_layer_gives_the_product_of_the_weights_it_holds(num_rows: int, has_bias: bool, weight_format: str):
    torch.manual_seed(num_rows)
    linear = torch.nn.Linear(96, 65, bias=has_bias).requires_grad_(False)
    rows = torch.randn(1, num_rows, 96)
    with torch.inference_mode():
        product = PackedLinear(linear, weight_format)(rows)
        expected = (_rounded(linear) if weight_format == "fp16" else linear)(rows)
        torch.testing.assert_close(product, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("weight_format", ["fp32", "fp16"])
def test_every_float32_layer_is_packed_and_an_embedding_keeps_its_weights(weight_format: str):
    embedding, head = torch.nn.Embedding(10, 8), torch.nn.Linear(8, 10, bias=False)
    head.weight = embedding.weight
    half = torch.nn.Linear(8, 8).to(torch.float16)
    network = torch.nn.ModuleDict(
        {"inner": torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()), "embedding": embedding, "head": head}
    ).requires_grad_(False)
    network["small"] = half
    weight = embedding.weight.clone()
    pack_linears(network, weight_format)
    kinds = {name: type(network.get_submodule(name)) for name in ("inner.0", "inner.1", "embedding", "head", "small")}
    assert kinds == {
        "inner.0": PackedLinear,
        "inner.1": torch.nn.ReLU,
        "embedding": HalfEmbedding if weight_format == "fp16" else torch.nn.Embedding,
        "head": PackedLinear,
        "small": torch.nn.Linear,
    }
    expected = weight.to(torch.float16).to(torch.float32) if weight_format == "fp16" else weight
    found = network["embedding"](torch.arange(10))
    assert found.dtype is torch.float32
    assert torch.equal(found, expected)


@pytest.mark.parametrize("number", [70_000.0, float("nan"), float("inf"), 1e-7])
def test_a_matrix_that_fp16_would_change_by_more_than_rounding_is_named(number: float):
    last = torch.nn.Linear(8, 8)
    network = torch.nn.Sequential(torch.nn.Linear(8, 8), last).requires_grad_(False)
    assert not_half(network) is None
    torch.nn.init.constant_(last.bias, 1e6)
    torch.nn.init.constant_(last.weight, number)
    assert not_half(network) == "1.weight"


def test_a_matrix_of_zeros_fits():
    network = torch.nn.Linear(8, 8).requires_grad_(False)
    network.weight.zero_()
    assert not_half(network) is None
