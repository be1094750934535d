"""The attention of AMD's zentorch, where it is installed and the processor is theirs.

torch leaves the products of one or a few query rows to MKL, which on AMD processors takes its kernels for the oldest
ones: 12 GB/s of keys and values where memory gives 37. Only the library's operators are loaded, not its Python package,
which is made for torch.compile and takes a second to import.
"""

import functools
import importlib.metadata
import logging
import os
from pathlib import Path
from typing import Any, cast

import torch

VERSION = "2.13.0.0"
"""The only one that is used: 2.13.0.1 and 2.13.0.2 keep 80 bytes of every call for ever (their operators go through
torch's stable interface), 2.4 KB a token with 30 layers."""
_TORCH = "2.13."
_PACKAGE = "zentorch"
_log = logging.getLogger(__name__)


class ZenKernel(torch.nn.Module):
    """torch's kernel for processors (run_attention.FlashKernel) with products by ZenDNN; float32."""

    name = _PACKAGE

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, is_causal: bool, scale: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As FlashKernel."""
        return torch.ops.zentorch.zentorch_sdpa(query, key, value, 0.0, is_causal, attn_mask=None, scale=scale)


def find_zen() -> ZenKernel | None:
    """None where it cannot be used, or the processor is not AMD's."""
    return ZenKernel() if _is_amd() and loads_zen() else None


@functools.cache
def loads_zen() -> bool:
    """Load the operators. False where they are not installed, are for another torch, or cannot run: without AVX-512."""
    try:
        package = importlib.metadata.distribution(_PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return False
    if package.version != VERSION or not torch.__version__.startswith(_TORCH):
        _log.info("%s %s with torch %s is not used", _PACKAGE, package.version, torch.__version__)
        return False
    if torch.backends.cpu.get_cpu_capability() != "AVX512":
        return False
    # The library's other kernel, which it takes by default, leaves the log-sum-exps unset.
    os.environ["ZENTORCH_USE_ZENDNN_SDPA"] = "0"
    try:
        cast(Any, torch.ops).load_library(str(package.locate_file(f"{_PACKAGE}/lib{_PACKAGE}.so")))
    except OSError as error:
        _log.warning("%s %s cannot be loaded: %s", _PACKAGE, package.version, error)
        return False
    return _is_right()


def _is_right() -> bool:
    """Whether it gives outputs and log-sum-exps at all: what it computes depends on its environment."""
    query, key = torch.linspace(-1, 1, 48).view(1, 1, 3, 16), torch.linspace(-2, 2, 80).view(1, 1, 5, 16)
    output, weight = ZenKernel()(query, key, key, False, 0.25)
    scores = query @ key.transpose(2, 3) * 0.25
    is_right = torch.allclose(output, scores.softmax(-1) @ key, atol=1e-4)
    if not (is_right and torch.allclose(weight, scores.logsumexp(-1), atol=1e-4)):
        _log.warning("%s computes something else than attention: not used", _PACKAGE)
        return False
    return True


def _is_amd() -> bool:
    try:
        return "AuthenticAMD" in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
