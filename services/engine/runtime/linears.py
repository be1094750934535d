"""Linear layers with weights laid out for the processor, once, at load.

The library that torch multiplies with by default falls off for 2 to 16 rows: two rows take twice as long as one. oneDNN
with weights in its own blocked layout does not. The operators are those that torch's compiler emits for frozen weights.
"""

from typing import cast

import torch

_EACH_UP_TO = 8
_STEP_ROWS = 16


class PackedLinear(torch.nn.Module):
    """A float32 linear layer on CPU; the same product as the layer it stands for, summed in another order."""

    def __init__(self, linear: torch.nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self._weight: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach())
        bias = cast("torch.Tensor | None", linear.bias)
        self._bias = None if bias is None else bias.detach()

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """[…, rows, in] to […, rows, out]."""
        num_rows = rows.shape[-2]
        # oneDNN generates code for each number of rows and keeps it: a few hundred numbers would take hundreds of MiB.
        surplus = 0 if num_rows < _EACH_UP_TO else -num_rows % _STEP_ROWS
        if surplus:
            rows = torch.nn.functional.pad(rows, (0, 0, 0, surplus))
        product = torch.ops.mkldnn._linear_pointwise(rows, self._weight, self._bias, "none", [], "")
        return product.narrow(-2, 0, num_rows) if surplus else product


def pack_linears(network: torch.nn.Module) -> None:
    """Replace every linear layer of a float32 network on CPU; leaves it alone where torch has no oneDNN.

    Embeddings keep weights that they share with a layer, so such a layer's are there twice.
    """
    if not torch.backends.mkldnn.is_available():
        return
    for name, module in list(network.named_children()):
        if type(module) is torch.nn.Linear and module.weight.dtype is torch.float32:
            setattr(network, name, PackedLinear(module))
        else:
            pack_linears(module)
