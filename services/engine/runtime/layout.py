"""How a model's state is laid out, in the terms that pages and byte budgets use."""

from dataclasses import dataclass

_ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True)
class Channel:
    """One tensor per token and layer, of shape [num_heads, head_dim]: "key" or "value"."""

    name: str
    num_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class StateLayout:
    """The state of one token: every channel in every layer, all of one dtype."""

    num_layers: int
    channels: tuple[Channel, ...]
    dtype: str

    @property
    def item_bytes(self) -> int:
        """Bytes of one number."""
        return _ITEM_BYTES[self.dtype]

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one token's state over all layers and channels."""
        return self.num_layers * self.layer_bytes(1)

    def layer_bytes(self, num_tokens: int) -> int:
        """Bytes of num_tokens tokens in one layer, over all channels."""
        return sum(self.span_bytes(i, num_tokens) for i in range(len(self.channels)))

    def span_bytes(self, channel: int, num_tokens: int) -> int:
        """Bytes of num_tokens tokens in one layer of one channel."""
        shape = self.channels[channel]
        return shape.num_heads * num_tokens * shape.head_dim * self.item_bytes
