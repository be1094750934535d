"""Ids of tool calls, as clients echo them."""

import secrets

_RANDOM_BYTES = 16


def mint_call_id() -> str:
    """``call_`` and 128 random bits in 22 characters of ``[A-Za-z0-9_-]``.

    Never derived from what is called: an id that could be guessed, or made twice, would point to another call's record.
    """
    return "call_" + secrets.token_urlsafe(_RANDOM_BYTES)
