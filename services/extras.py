"""Which of the distribution's extras are installed: one package brings all services, but not what they need."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

SERVICES: Final = ("kvstore", "engine", "tokenizer", "gateway")

MODULES_BY_EXTRA: Final = {
    "kvstore": ("rocksdict", "crc32c"),
    "engine": (
        *("torch", "transformers", "safetensors", "huggingface_hub", "numpy", "crc32c"),
        *("llguidance", "tokenizers"),
    ),
    "tokenizer": ("tokenizers", "jinja2", "numpy", "cryptography", "jsonschema_rs"),
    "gateway": ("fastapi", "uvicorn", "orjson", "websockets", "zstandard"),
    "models": ("numpy", "huggingface_hub"),
    "connect": ("tomlkit",),
}


class MissingExtraError(Exception):
    """Something to install first; the message is one line and says how."""


def require(*extras: str) -> None:
    """Raise MissingExtraError unless all that ``extras`` bring can be found; imports none of it."""
    missing_by_extra = {extra: _missing(extra) for extra in extras}
    incomplete = [extra for extra, modules in missing_by_extra.items() if modules]
    if incomplete:
        modules = sorted({module for modules in missing_by_extra.values() for module in modules})
        raise MissingExtraError(
            f'not installed: {", ".join(modules)}; run: pip install "fencepost[{",".join(incomplete)}]"'
        )


def _missing(extra: str) -> list[str]:
    # An image holds only its own service's folder, so the folder itself is looked for too.
    return [name for name in (f"services.{extra}", *MODULES_BY_EXTRA[extra]) if find_spec(name) is None]
