"""``tojson`` as chat templates need it: nothing a client sent is sorted, escaped for HTML or spelt anew.

transformers dumps with ``json.dumps``, so models were trained on its spacing: ``", "`` and ``": "``. Values that a
client sent as JSON text come as ``JsonText`` and are re-spaced, their order, numbers and strings staying as they were.
"""

from __future__ import annotations

import json
from functools import cached_property
from typing import Any

from services.tokenizer.dialects.json_text import respace
from services.tokenizer.prompt.marked import Marked


class JsonText(dict[str, Any]):
    """An object that a template can look into, with the text that it came as.

    ``mark`` names what is written out, None for no marks.
    """

    def __init__(self, value: dict[str, Any], text: str, mark: str | None = None) -> None:
        super().__init__(value)
        self.text = text
        self.mark = mark

    @cached_property
    def spaced(self) -> str:
        """The text as it is written out, without marks."""
        return respace(self.text)


def tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """The filter. Only a value that is no client's, or that is to be written otherwise, is dumped."""
    is_changed = ensure_ascii or sort_keys or indent is not None or separators is not None
    if isinstance(value, JsonText) and not is_changed:
        return value.spaced if value.mark is None else Marked.of(value.spaced, value.mark)
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
