"""Reads the small files of a model directory; every failure is one line that names the file."""

import json
from pathlib import Path
from typing import cast

from services.tokenizer.errors import ModelFileError


def read_text(path: Path) -> str:
    """Raises ModelFileError."""
    try:
        return path.read_bytes().decode()
    except OSError as error:
        raise ModelFileError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ModelFileError(f"{path}: not UTF-8") from None


def read_json_object(path: Path) -> dict[str, object]:
    """Raises ModelFileError."""
    try:
        value: object = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{path}: not JSON ({error})") from None
    if not isinstance(value, dict):
        raise ModelFileError(f"{path}: not a JSON object")
    return cast("dict[str, object]", value)
