"""Settings of the tokenizer service."""

from dataclasses import dataclass
from pathlib import Path

from services.process import ServerSettings
from services.settings import address_list, byte_size, setting


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
    max_prompt_bytes: int = setting(
        8 * 2**20, help="longest rendered prompt, in bytes of UTF-8", parse=byte_size, minimum=1
    )
    encode_threads: int = setting(2, help="threads that render and encode", minimum=1)
    encode_queue: int = setting(64, help="prompts that may wait for a thread; more are refused", minimum=1)
    request_timeout_s: float = setting(
        600.0, help="seconds a call may take when its caller sets no earlier deadline", minimum=0.001
    )
