"""JSON configuration that belongs to somebody else."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast


def merged(text: str, changes: Mapping[str, Any]) -> str:
    """The JSON object ``text`` (empty: none) with ``changes`` in it, object by object. Raises ValueError."""
    present: object = json.loads(text) if text.strip() else {}
    if not isinstance(present, dict):
        raise ValueError("it holds no JSON object")
    return json.dumps(_merged(cast(dict[str, Any], present), changes), indent=2, ensure_ascii=False) + "\n"


def _merged(present: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(present)
    for key, value in changes.items():
        if isinstance(value, Mapping):
            old: object = result.get(key, {})
            if not isinstance(old, dict):
                raise ValueError(f'"{key}" in it is no object')
            result[key] = _merged(cast(dict[str, Any], old), cast(Mapping[str, Any], value))
        else:
            result[key] = value
    return result
