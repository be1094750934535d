"""What the tokenizer counts."""

from prometheus_client import Counter, Histogram

ENCODE_SECONDS = Histogram(
    "fencepost_tokenizer_encode_seconds",
    "Wall time of rendering and encoding a prompt, without waiting for a thread.",
    buckets=(0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3),
)
PROMPT_TOKENS = Counter("fencepost_tokenizer_prompt_tokens", "Tokens of prompts that were answered.")
CACHED_TOKENS = Counter(
    "fencepost_tokenizer_cached_tokens", "Prompt tokens that an engine did not compute again, by tier.", ["tier"]
)
