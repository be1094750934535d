"""Find out what state a model keeps by watching it compute.

Configurations name their fields differently and not all of what a model caches is in them, so
one tiny forward is asked instead: it shows each layer's keys and values as attention gets them.
"""

import torch

from services.engine.runtime.errors import UnsupportedModelError
from services.engine.runtime.fused import FusedDecoder
from services.engine.runtime.layout import Channel, StateLayout
from services.engine.runtime.loader import LoadedModel


class _ProbeStep:
    """Records what layers would store; attends nothing."""

    def __init__(self) -> None:
        self.shapes_by_layer: dict[int, tuple[Channel, Channel]] = {}
        self.dtypes: set[torch.dtype] = set()

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scale: float,
    ) -> torch.Tensor:
        self.shapes_by_layer[layer] = (
            Channel("key", key.shape[1], key.shape[3]),
            Channel("value", value.shape[1], value.shape[3]),
        )
        self.dtypes |= {key.dtype, value.dtype}
        return torch.zeros_like(query.transpose(1, 2))


def probe(model: LoadedModel) -> tuple[StateLayout, int]:
    """The model's state layout and the width of its logits.

    Raises UnsupportedModelError if its layers differ or don't all go through paged attention.
    """
    if isinstance(model.network, FusedDecoder):
        return model.network.layout, model.network.vocab_size
    step = _ProbeStep()
    token = torch.zeros(1, 1, dtype=torch.int64, device=model.device)
    with torch.inference_mode():
        logits = model.network(
            input_ids=token,
            position_ids=token,
            use_cache=False,
            logits_to_keep=token[0],
            step=step,
        ).logits
    shapes = set(step.shapes_by_layer.values())
    num_layers = len(step.shapes_by_layer)
    if len(shapes) != 1 or len(step.dtypes) != 1 or set(step.shapes_by_layer) != set(range(num_layers)):
        raise UnsupportedModelError(f"the layers of this {model.model_type} model keep state of different kinds")
    dtype = str(step.dtypes.pop()).removeprefix("torch.")
    return StateLayout(num_layers, shapes.pop(), dtype), logits.shape[-1]
