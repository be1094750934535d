"""Data URLs: files inside a body."""

from __future__ import annotations

import base64
import binascii
import re

from services.gateway.errors import BadRequestError
from services.gateway.fields import Fields

_HEAD = re.compile(r"data:([\w.+-]+/[\w.+-]+)(?:;[^,;]*)*?;base64,", re.ASCII)


def read_data_url(fields: Fields, key: str, url: str) -> tuple[str, bytes]:
    """Media type and data of ``url``, which stands in the field ``key``. Raises BadRequestError naming the field."""
    head = _HEAD.match(url)
    try:
        if head is None:
            raise ValueError
        return head[1], base64.b64decode(url[head.end() :], validate=True)
    except (ValueError, binascii.Error):
        raise BadRequestError(
            f"'{fields.name(key)}' must be an address or a base64 data URL.", param=fields.name(key)
        ) from None
