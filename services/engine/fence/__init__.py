"""Fences: sampling constrained to the generic grammar of the contract, in this engine's own tokens.

``program`` is the grammar as it came, ``compile`` turns it into a ``CompiledFence`` for a tokenizer's ``FenceTokens``,
and ``machine`` is one answer's state. Nothing here knows a dialect.
"""
