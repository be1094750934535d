"""Why a fence cannot be built."""

from __future__ import annotations


class FenceError(Exception):
    """The program, or the tokenizer it is for, cannot be fenced; the message says where and why."""
