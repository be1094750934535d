"""Prompt text → token ids."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from services.tokenizer.errors import InvalidRequestError, ModelFileError, PromptTooLargeError

TokenIds = NDArray[np.int32]
"""Ids of a prompt, little-endian, one dimension."""


class Encoder:
    """One immutable tokenizer; safe to use from several threads."""

    def __init__(self, tokenizer: Tokenizer, max_prompt_bytes: int) -> None:
        """Takes ``tokenizer`` over: truncation and padding, which some files switch on, are switched off."""
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self._max_prompt_bytes = max_prompt_bytes

    def encode(self, text: str, field: str) -> TokenIds:
        """All ids of ``text``, in which the spellings of special tokens are special tokens; none is added.

        Blocks, and releases the GIL meanwhile. Raises PromptTooLargeError and InvalidRequestError, which
        name ``field``.
        """
        try:
            num_bytes = len(text.encode())
        except UnicodeEncodeError:
            raise InvalidRequestError(field, "the prompt is not valid Unicode (a lone surrogate)") from None
        if num_bytes > self._max_prompt_bytes:
            raise PromptTooLargeError(
                field, f"the prompt has {num_bytes} bytes; at most {self._max_prompt_bytes} are taken"
            )
        # encode() would hold the GIL and compute offsets.
        encoding = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)[0]
        return np.array(encoding.ids, dtype="<i4")


def load_encoder(model_dir: Path, max_prompt_bytes: int) -> Encoder:
    """Raises ModelFileError."""
    path = model_dir / "tokenizer.json"
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # noqa: BLE001 - tokenizers raises nothing narrower
        raise ModelFileError(f"{path}: {error}") from None
    return Encoder(tokenizer, max_prompt_bytes)
