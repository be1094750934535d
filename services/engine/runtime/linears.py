"""Linear layers with weights laid out for the processor, once, at load.

Two formats. "fp32": oneDNN with weights in its own blocked layout; the library that torch multiplies with by default
falls off for 2 to 16 rows, where two rows take twice as long as one. "fp16": FBGEMM with weights rounded to fp16, half
the bytes to read; every product and sum is fp32. The operators are those that torch's compiler and its quantized layers
emit. Both modules can be compiled with torch.jit.script.
"""

from collections.abc import Iterable
from typing import Any, cast

import torch

# fp16 rounds to 11 bits: the error of a matrix is 3e-4 of it where no number is too large or too small for fp16.
_MAX_ROUNDING = 2**-10

Dense = tuple[torch.Tensor, torch.Tensor | None]
"""A weight [out, in] in float32 and its bias."""


def multiply_packed(rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """[…, rows, in] to […, rows, out] with a weight that oneDNN has laid out."""
    num_rows = rows.shape[-2]
    # oneDNN generates code for each number of rows and keeps it: a few hundred numbers would take hundreds of MiB.
    # So there are those up to 8 and the multiples of 16.
    surplus = 0 if num_rows < 8 else -num_rows % 16
    if surplus > 0:
        rows = torch.constant_pad_nd(rows, [0, 0, 0, surplus])
    product = torch.ops.mkldnn._linear_pointwise(rows, weight, bias, "none", [], "")
    return product.narrow(-2, 0, num_rows) if surplus > 0 else product


class FloatLinears(torch.nn.Module):
    """Linear layers of float32 weights: the same products as the layers they stand for, summed in another order."""

    weights: list[torch.Tensor]
    biases: list[torch.Tensor | None]

    def __init__(self, layers: Iterable[Dense]) -> None:
        super().__init__()
        self.weights, self.biases = [], []
        for weight, bias in layers:
            self.weights.append(torch.ops.mkldnn._reorder_linear_weight(weight))
            self.biases.append(bias)

    def forward(self, layer: int, rows: torch.Tensor) -> torch.Tensor:
        """[…, rows, in] to […, rows, out]."""
        return multiply_packed(rows, self.weights[layer], self.biases[layer])


class HalfLinears(torch.nn.Module):
    """Linear layers of fp16 weights: the products of the rounded weights, in float32."""

    def __init__(self, layers: Iterable[Dense]) -> None:
        super().__init__()
        self.packed: list[Any] = [torch.ops.quantized.linear_prepack_fp16(weight, bias) for weight, bias in layers]

    def forward(self, layer: int, rows: torch.Tensor) -> torch.Tensor:
        """[…, rows, in] to […, rows, out]."""
        return torch.ops.quantized.linear_dynamic_fp16(rows, self.packed[layer])


class PackedLinear(torch.nn.Module):
    """One linear layer in a format, for modules that are not fused."""

    def __init__(self, linear: torch.nn.Linear, weight_format: str) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self._layers = packed((dense(linear),), weight_format)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """[…, rows, in] to […, rows, out]."""
        return self._layers(0, rows)


class HalfEmbedding(torch.nn.Module):
    """An embedding of fp16 weights that gives float32."""

    weight: torch.Tensor

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", weight.detach().to(torch.float16), persistent=False)

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Ids of any shape to […, hidden]."""
        return torch.nn.functional.embedding(token_ids, self.weight).to(torch.float32)


def packed(layers: Iterable[Dense], weight_format: str) -> FloatLinears | HalfLinears:
    """Lay out layers of one shape in "fp32" or "fp16"; takes one at a time, so that what it stands for can go."""
    return HalfLinears(layers) if weight_format == "fp16" else FloatLinears(layers)


def dense(linear: torch.nn.Linear) -> Dense:
    """What a layer computes with."""
    bias = cast("torch.Tensor | None", linear.bias)
    return linear.weight.detach(), None if bias is None else bias.detach()


def can_pack(weight_format: str) -> bool:
    """Whether this torch has the library of a format."""
    if weight_format == "fp16":
        return "fbgemm" in torch.backends.quantized.supported_engines
    return torch.backends.mkldnn.is_available()


def not_half(network: torch.nn.Module) -> str | None:
    """The name of a matrix that fp16 would change by more than rounding: numbers above 65,504 or mostly below 6e-5."""
    seen: set[int] = set()
    for name, weight in network.named_parameters():
        if weight.dim() < 2 or weight.data_ptr() in seen:
            continue
        seen.add(weight.data_ptr())
        error = size = 0.0
        for first in range(0, len(weight), 1024):
            rows = weight[first : first + 1024]
            error += float((rows.to(torch.float16).to(torch.float32) - rows).square().sum())
            size += float(rows.square().sum())
        if not error <= _MAX_ROUNDING**2 * size:
            return name
    return None


def pack_linears(network: torch.nn.Module, weight_format: str) -> None:
    """Replace every linear layer of a float32 network on CPU, and in fp16 every embedding.

    Embeddings keep weights that they share with a layer, so such a layer's are there twice.
    """
    for name, module in list(network.named_children()):
        if type(module) is torch.nn.Linear and module.weight.dtype is torch.float32:
            setattr(network, name, PackedLinear(module, weight_format))
        elif type(module) is torch.nn.Embedding and weight_format == "fp16":
            setattr(network, name, HalfEmbedding(module.weight))
        else:
            pack_linears(module, weight_format)
