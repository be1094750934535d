"""Model runtimes: from packed rows of tokens to logits, with state in paged pools."""

from services.engine.runtime.batch import Batch, Row
from services.engine.runtime.errors import DeviceMissingError, ModelLoadError, UnsupportedModelError
from services.engine.runtime.layout import Channel, StateLayout
from services.engine.runtime.loader import LoadedModel, load_model
from services.engine.runtime.paged import PagedRuntime

__all__ = [
    "Batch",
    "Channel",
    "DeviceMissingError",
    "LoadedModel",
    "ModelLoadError",
    "PagedRuntime",
    "Row",
    "StateLayout",
    "UnsupportedModelError",
    "load_model",
]
