"""Load a causal language model from a model directory, ready for paged attention.

Safetensors only, no code from the directory, nothing from the network. Whatever the runtime
would compute wrongly is refused here or by the runtime's probe, by name.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers.utils import logging as transformers_logging

from services.engine.runtime.attention import ATTENTION_NAME, AttentionStep
from services.engine.runtime.errors import ModelLoadError, UnsupportedModelError
from services.engine.runtime.fused import FusedDecoder, can_fuse
from services.engine.runtime.linears import can_pack, not_half, pack_linears
from services.engine.runtime.weights import check_weight_files, read_json

SUPPORTED_MODEL_TYPES = frozenset({"llama", "mistral", "qwen2", "qwen3"})

# These recompute the rotary frequencies from the longest position in the batch, so a token's
# state would depend on its neighbours: nothing computed so could be shared.
_BATCH_DEPENDENT_ROPE = frozenset({"dynamic", "longrope"})

_DTYPES = {"auto": "auto", "fp16": "float16", "fp32": "float32"}


class CausalOutput(Protocol):
    """logits: [1, kept tokens, vocabulary]."""

    logits: torch.Tensor


class CausalNetwork(Protocol):
    """A transformers causal language model, as far as it is used here."""

    def __call__(
        self,
        *,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        use_cache: bool,
        logits_to_keep: torch.Tensor,
        step: AttentionStep,
    ) -> CausalOutput: ...


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model in evaluation mode on one device.

    dtype: of what is computed and kept. weight_format: "fp32", "fp16" (matrices rounded, arithmetic in float32), or
    off CPU the dtype's name.
    context_tokens: positions it was made for. eos_token_ids: any of them ends a turn.
    """

    network: CausalNetwork | FusedDecoder
    model_type: str
    device: torch.device
    dtype: torch.dtype
    weight_format: str
    context_tokens: int
    eos_token_ids: frozenset[int]


class _Factory(Protocol):
    def from_pretrained(self, pretrained_model_name_or_path: Path, **options: object) -> object: ...


class _Config(Protocol):
    model_type: str
    max_position_embeddings: int


class _GenerationConfig(Protocol):
    eos_token_id: int | list[int] | None


class _Network(CausalNetwork, Protocol):
    config: _Config
    generation_config: _GenerationConfig

    @property
    def dtype(self) -> torch.dtype: ...
    def to(self, device: torch.device) -> "_Network": ...
    def eval(self) -> "_Network": ...
    def requires_grad_(self, requires_grad: bool) -> "_Network": ...


def load_model(
    model_dir: Path, device: str | torch.device = "cpu", num_threads: int | None = None, weights: str = "auto"
) -> LoadedModel:
    """Load the model; on CPU it computes in float32, elsewhere in the dtype of its weights.

    num_threads: threads of torch's operators in this process; None keeps torch's choice.
    weights: on CPU how matrices are held, "fp32" or "fp16"; "auto" is fp16 where that costs no more than rounding.
    Elsewhere the dtype of weights, arithmetic and state; "auto" is the one that the config names.
    Raises ModelLoadError naming the file that is missing, truncated or does not fit, and
    UnsupportedModelError for models that need another runtime.
    """
    device = torch.device(device)
    if num_threads is not None:
        torch.set_num_threads(num_threads)
    # Its warnings address people who write model code; what matters here becomes an error.
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    config_path = model_dir / "config.json"
    _check_raw_config(config_path)
    check_weight_files(model_dir)
    try:
        config = cast(
            _Config,
            cast(_Factory, transformers.AutoConfig).from_pretrained(
                model_dir, local_files_only=True, trust_remote_code=False
            ),
        )
    except (OSError, ValueError, TypeError, KeyError, StrictDataclassError) as error:
        raise ModelLoadError(f"{config_path} cannot be used: {_first_line(error)}") from error
    _check_config(config_path, config)
    network = _load_network(model_dir, config, "float32" if device.type == "cpu" else _DTYPES[weights])
    network = network.to(device).eval().requires_grad_(False)
    dtype, eos_token_ids = network.dtype, _as_ids(network.generation_config.eos_token_id)
    weight_format = str(dtype).removeprefix("torch.")
    fused = None
    if device.type == "cpu":
        weight_format = _weight_format(model_dir, cast(torch.nn.Module, network), weights)
        if can_pack(weight_format):
            if can_fuse(network):
                fused = FusedDecoder(network, weight_format)
            else:
                pack_linears(cast(torch.nn.Module, network), weight_format)
    return LoadedModel(
        network=fused or network,
        model_type=config.model_type,
        device=device,
        dtype=dtype,
        weight_format=weight_format,
        context_tokens=config.max_position_embeddings,
        eos_token_ids=eos_token_ids,
    )


def _weight_format(model_dir: Path, network: torch.nn.Module, asked: str) -> str:
    if asked == "fp32":
        return "fp32"
    problem = None
    if not can_pack("fp16"):
        problem = "torch has no fp16 layers on this processor"
    elif (name := not_half(network)) is not None:
        problem = f"{name} has numbers that fp16 cannot hold"
    if problem is None:
        return "fp16"
    if asked == "fp16":
        raise UnsupportedModelError(f"{model_dir}: no weights in fp16: {problem}")
    return "fp32"


def _check_raw_config(config_path: Path) -> None:
    """Refuse by the file alone, before transformers looks for classes that suit it."""
    raw = read_json(config_path)
    model_type = raw.get("model_type")
    if model_type not in SUPPORTED_MODEL_TYPES:
        raise UnsupportedModelError(
            f"{config_path}: model_type {model_type!r} is not supported "
            f"(supported: {', '.join(sorted(SUPPORTED_MODEL_TYPES))})"
        )
    if raw.get("quantization_config") is not None:
        raise UnsupportedModelError(f"{config_path}: quantized weights are not supported")


def _check_config(config_path: Path, config: _Config) -> None:
    layer_types = cast(list[str] | None, getattr(config, "layer_types", None))
    sliding_window = cast(int | None, getattr(config, "sliding_window", None))
    if layer_types is None:
        layer_types = [] if sliding_window is None else ["sliding_attention"]
    other_types = set(layer_types) - {"full_attention"}
    if other_types:
        raise UnsupportedModelError(
            f"{config_path}: layers of type {', '.join(sorted(other_types))} are not supported "
            f"(sliding_window is {sliding_window})"
        )
    rope = cast(dict[str, object], getattr(config, "rope_parameters", None) or {})
    if rope.get("rope_type") in _BATCH_DEPENDENT_ROPE:
        raise UnsupportedModelError(
            f"{config_path}: rope type {rope['rope_type']!r} depends on the whole batch and is not supported"
        )


def _load_network(model_dir: Path, config: _Config, dtype: str) -> _Network:
    try:
        network, report = cast(
            tuple[_Network, dict[str, set[str]]],
            cast(_Factory, transformers.AutoModelForCausalLM).from_pretrained(
                model_dir,
                config=config,
                dtype=dtype,
                attn_implementation=ATTENTION_NAME,
                use_safetensors=True,
                local_files_only=True,
                trust_remote_code=False,
                output_loading_info=True,
            ),
        )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise ModelLoadError(f"{model_dir} cannot be loaded: {_first_line(error)}") from error
    missing = sorted(report["missing_keys"])
    if missing:
        # transformers would fill them with random numbers and a warning.
        raise ModelLoadError(f"the weight files in {model_dir} lack {len(missing)} tensors, such as {missing[0]}")
    return network


def _as_ids(value: int | list[int] | None) -> frozenset[int]:
    if value is None:
        return frozenset()
    return frozenset([value] if isinstance(value, int) else value)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0].rstrip(":")
