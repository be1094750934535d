"""What can go wrong between a model's name and a directory that a service can read.

    ModelError
    ├── ModelNameError           the name is no known model, path or hub id
    ├── ModelFileError           a file is missing, truncated or malformed
    ├── UnsupportedModelError    the files are well-formed, but no runtime serves them
    ├── ModelDownloadError       a package or hub repository could not be fetched
    └── ModelCacheError          the cache folder could not be written

Each message is one line for a person: what is wrong with which file, and what to do.
"""

from pathlib import Path
from typing import ClassVar

from services.errors import ServiceError


class ModelError(ServiceError):
    """Any failure to provide a model directory."""

    status: ClassVar[str] = "FAILED_PRECONDITION"
    reason: ClassVar[str] = "MODEL_UNAVAILABLE"

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


class ModelNameError(ModelError):
    """The name stands for nothing that can be loaded."""

    status = "NOT_FOUND"
    reason = "MODEL_NAME_UNKNOWN"


class ModelFileError(ModelError):
    """A model file is missing, truncated or malformed."""

    reason = "MODEL_FILE_INVALID"

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = path
        self.problem = problem


class UnsupportedModelError(ModelError):
    """The model is intact but of a kind that is not served."""

    reason = "MODEL_UNSUPPORTED"

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = path


class ModelDownloadError(ModelError):
    """A package or repository could not be fetched."""

    status = "UNAVAILABLE"
    reason = "MODEL_DOWNLOAD_FAILED"


class ModelCacheError(ModelError):
    """The cache folder cannot be written."""

    reason = "MODEL_CACHE_UNWRITABLE"

    def __init__(self, path: Path, error: OSError) -> None:
        super().__init__(f"{path}: cannot write the model cache: {error.strerror or error}")
        self.path = path
