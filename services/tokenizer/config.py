"""Settings of the tokenizer service."""

from dataclasses import dataclass
from pathlib import Path

from services.process import ServerSettings
from services.settings import address_list, byte_size, setting
from services.tokenizer.dialects.registry import DIALECTS

LITERAL, PARSE, REJECT = "literal", "parse", "reject"
"""What a client's spelling of a control token is: plain text, that token, an error."""


def model_names(text: str) -> tuple[str, ...]:
    """Comma-separated names of a model."""
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    if not names:
        raise ValueError("one or more names, separated by commas")
    return names


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerSettings(ServerSettings):
    """What the tokenizer can be told."""

    listen: str = setting("127.0.0.1:7401", help="address to serve on: host:port or unix:path")
    model: Path = setting(help="model directory: tokenizer.json and the chat template beside it")
    model_name: str | None = setting(None, help="id under which the model is served; the directory's name if absent")
    aliases: tuple[str, ...] = setting((), help="other names of the model, separated by commas", parse=model_names)
    engines: tuple[str, ...] = setting(
        ("127.0.0.1:7402",), help="addresses of the engines, separated by commas", parse=address_list
    )
    dialect: str | None = setting(
        None, help="how the model writes tools and calls; by its family and template if absent", choices=tuple(DIALECTS)
    )
    content_policy: str = setting(
        "literal",
        help="a control token's spelling in what clients send: literal (plain text), parse (that token), reject",
        choices=(LITERAL, PARSE, REJECT),
    )
    max_prompt_bytes: int = setting(
        8 * 2**20, help="longest rendered prompt, in bytes of UTF-8", parse=byte_size, minimum=1
    )
    encode_threads: int = setting(2, help="threads that render and encode", minimum=1)
    encode_queue: int = setting(64, help="prompts that may wait for a thread; more are refused", minimum=1)
    prefix_token_cache: bool = setting(True, help="encode only what a prompt adds to those before it")
    prefix_token_cache_entries: int = setting(
        512,
        help="conversations whose latest prompt is remembered",
        minimum=1,
        alias="TLLM_PREFIX_TOKEN_CACHE_ENTRIES",
    )
    prefix_token_cache_max_chars: int = setting(
        67_108_864,
        help="characters of remembered prompts; with their ids, about twice as many bytes",
        minimum=1,
        alias="TLLM_PREFIX_TOKEN_CACHE_MAX_CHARS",
    )
    prefix_token_cache_min_chars: int = setting(
        4096,
        help="shorter prompts are encoded whole and never remembered",
        minimum=1,
        alias="TLLM_PREFIX_TOKEN_CACHE_MIN_CHARS",
    )
    prefix_token_cache_bytes: int = setting(
        256 * 2**20, help="memory for ids that are found by the content of the text", parse=byte_size, minimum=0
    )
    prefix_token_cache_overlap_tokens: int = setting(
        64, help="known tokens encoded again before a splice; only for tokenizers that are not certified", minimum=1
    )
    prefix_token_cache_resync_tokens: int = setting(
        32, help="how many of these must be as they were for the splice to count", minimum=1
    )
    prefix_token_cache_verify_rate: float = setting(
        0.0, help="share of prompts encoded whole as well and compared", minimum=0, maximum=1
    )
    fences: bool = setting(
        True, help="send the engine what an answer must be like: calls of the tools' schemas, output formats"
    )
    request_timeout_s: float = setting(
        600.0, help="seconds a call may take when its caller sets no earlier deadline", minimum=0.001
    )
    transcript_mode: str = setting(
        "faithful",
        help="faithful: what the model wrote enters the next prompt with its exact ids; canonical: encoded anew",
        choices=("faithful", "canonical"),
    )
    records: str = setting(
        "", help="address of the kvstore that keeps transcripts; empty: they are lost at a restart", parse=str
    )
    record_ttl_s: float = setting(7 * 86_400.0, help="seconds a transcript is kept there", minimum=1)
    record_memory_bytes: int = setting(256 * 2**20, help="memory for transcripts", parse=byte_size, minimum=0)
    footprint_bytes: int = setting(
        128 * 2**20, help="memory for recent prompts, from which misses are explained", parse=byte_size, minimum=0
    )
    capsule_keys: Path | None = setting(
        None,
        help="file of KEY_ID:BASE64 lines of 32 bytes each, the first to seal capsules, all to open them; "
        "absent: a random key, with which capsules end at a restart",
    )
