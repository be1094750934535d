"""Which model a client means: the models behind the tokenizers, and patterns of other names for them.

Agents ask for their vendor's models by name, also beside the one that their user has configured; patterns such as
``claude-*`` let them run unchanged.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from fnmatch import fnmatchcase

from fencepost.tokenizer.v1 import tokenizer_pb2

from services.gateway.errors import ModelNotFoundError
from services.gateway.model_aliases import ModelAlias
from services.gateway.upstream import Tokenizers

_FRESH_S = 5.0


class ServedModels:
    """All models; asked for at most every few seconds."""

    def __init__(self, tokenizers: Tokenizers, aliases: Sequence[ModelAlias]) -> None:
        self._tokenizers = tokenizers
        self._aliases = aliases
        self._models: Sequence[tokenizer_pb2.Model] = ()
        self._asked_s = float("-inf")

    async def all(self) -> Sequence[tokenizer_pb2.Model]:
        """With the patterns that mean a model among its aliases. Raises GatewayError when no tokenizer answers."""
        if time.monotonic() - self._asked_s > _FRESH_S:
            found = await self._tokenizers.list_models()
            self._models = [self._with_patterns(model, is_first=index == 0) for index, model in enumerate(found)]
            self._asked_s = time.monotonic()
        return self._models

    async def named(self, name: str) -> tokenizer_pb2.Model:
        """The model with this id or alias, else the one whose pattern is the first to fit. Raises GatewayError."""
        models = await self.all()
        for model in models:
            if name == model.id or name in model.aliases:
                return model
        for alias in self._aliases:
            if fnmatchcase(name, alias.pattern):
                for model in models:
                    if alias.model in (None, model.id) or alias.model in model.aliases:
                        return model
        served = ", ".join(model.id for model in models)
        raise ModelNotFoundError(f"The model '{name[:200]}' does not exist; served: {served}.", param="model")

    def _with_patterns(self, model: tokenizer_pb2.Model, *, is_first: bool) -> tokenizer_pb2.Model:
        patterns = [
            alias.pattern
            for alias in self._aliases
            if alias.model == model.id or alias.model in model.aliases or (alias.model is None and is_first)
        ]
        copy = tokenizer_pb2.Model()
        copy.CopyFrom(model)
        copy.aliases.extend(patterns)
        return copy
