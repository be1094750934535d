"""What the tokenizer counts."""

from prometheus_client import Counter, Gauge, Histogram

ENCODE_SECONDS = Histogram(
    "fencepost_tokenizer_encode_seconds",
    "Wall time of rendering and encoding a prompt, without waiting for a thread.",
    buckets=(0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3),
)
RENDERINGS = Counter(
    "fencepost_tokenizer_renderings",
    "Conversations rendered by templates that only append: whole, or appended to what was remembered of them.",
    ["outcome"],
)
PROMPT_TOKENS = Counter("fencepost_tokenizer_prompt_tokens", "Tokens of prompts that were answered.")
CACHED_TOKENS = Counter(
    "fencepost_tokenizer_cached_tokens", "Prompt tokens that an engine did not compute again, by tier.", ["tier"]
)
SEGMENTS = Counter(
    "fencepost_tokenizer_segments",
    "Assistant segments of prompts: spliced (from memory or store), thinking (only that, from a capsule), rendered "
    "(nothing is known of them) or diverged (something is, but the client sent other text, thinking, calls or "
    "history).",
    ["outcome", "reason"],
)
TRANSCRIPT_RECORDS = Gauge("fencepost_tokenizer_transcript_records", "Assistant segments remembered in memory.")
TRANSCRIPT_BYTES = Gauge("fencepost_tokenizer_transcript_bytes", "Memory of the remembered assistant segments.")
TRANSCRIPT_EVICTIONS = Counter(
    "fencepost_tokenizer_transcript_evictions", "Assistant segments forgotten for want of memory."
)
RECORD_CALLS = Counter(
    "fencepost_tokenizer_record_calls",
    "Uses of the kvstore's records, by what became of them.",
    ["call", "outcome"],
)
RECORD_BACKLOG = Gauge("fencepost_tokenizer_record_backlog", "Assistant segments that wait to be stored.")
CAPSULES = Counter("fencepost_tokenizer_capsules", "Capsules sealed and opened, by outcome.", ["call", "outcome"])
NEAR_MISSES = Counter(
    "fencepost_tokenizer_near_misses", "Requests that shared nearly all of an earlier state of 1,024 tokens or more."
)
RELAXED_KEYWORDS = Counter(
    "fencepost_tokenizer_relaxed_keywords",
    "Constraints that an answer's fence did not enforce, by keyword of JSON Schema.",
    ["keyword"],
)
CHECKED_VALUES = Counter(
    "fencepost_tokenizer_checked_values",
    "Arguments and structured outputs that were validated, as their fence did not enforce all: valid, invalid or "
    "unchecked (the schema cannot be used, or takes too long).",
    ["outcome"],
)
BROKEN_KEYWORDS = Counter(
    "fencepost_tokenizer_broken_keywords", "What invalid values broke, by keyword of JSON Schema.", ["keyword"]
)

_KEYWORDS = frozenset(
    (
        *("$anchor", "$dynamicRef", "$id", "$ref", "$schema", "additionalItems", "additionalProperties", "allOf"),
        *("anyOf", "const", "contains", "contentEncoding", "contentMediaType", "contentSchema", "dependencies"),
        *("dependentRequired", "dependentSchemas", "else", "enum", "exclusiveMaximum", "exclusiveMinimum"),
        *("falseSchema", "format", "grammar", "if", "items", "maxContains", "maxItems", "maxLength", "maxProperties"),
        *("maximum", "minContains", "minItems", "minLength", "minProperties", "minimum", "multipleOf", "not"),
        *("oneOf", "pattern", "patternProperties", "prefixItems", "properties", "propertyNames", "required", "schema"),
        *("then", "type", "unevaluatedItems", "unevaluatedProperties", "uniqueItems"),
    )
)


def count_relaxed(keyword: str) -> None:
    """Of one answer."""
    RELAXED_KEYWORDS.labels(_known(keyword)).inc()


def count_broken(keyword: str) -> None:
    """By one value."""
    BROKEN_KEYWORDS.labels(_known(keyword)).inc()


def _known(keyword: str) -> str:
    """Callers' own words would be labels without end."""
    return keyword if keyword in _KEYWORDS else "other"
