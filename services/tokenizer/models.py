"""The model that is served, as far as language goes: names, vocabulary, template, defaults."""

import dataclasses
import time
from dataclasses import dataclass
from pathlib import Path

from services.identity import tokenizer_fingerprint
from services.tokenizer.conversation import Conversation
from services.tokenizer.encode import Encoder, TokenIds, load_encoder
from services.tokenizer.errors import InvalidRequestError, ModelFileError, UnknownModelError
from services.tokenizer.generate import GenerationRequest
from services.tokenizer.model_files import read_json_object
from services.tokenizer.render import ChatTemplate, load_template
from services.tokenizer.sampling import Sampling
from services.tokenizer.segments import Segment, find_segments
from services.vocabulary import Vocabulary, VocabularyError, load_vocabulary


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the model is to read."""

    text: str
    ids: TokenIds
    encoded_ms: float
    """Wall time of rendering and encoding."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One model. Its methods block: they belong in the pool."""

    name: str
    aliases: tuple[str, ...]
    vocabulary: Vocabulary
    encoder: Encoder
    template: ChatTemplate | None
    fingerprint: str
    """Digest of tokenizer.json; an engine must have the same."""
    defaults: Sampling
    context_tokens: int | None
    """As the model's files have it; an engine may allow fewer."""
    created_s: int

    def check_name(self, name: str) -> None:
        """Raises UnknownModelError unless ``name`` is this model's id or alias."""
        served = (self.name, *self.aliases)
        if name not in served:
            raise UnknownModelError(name, served)

    def prompt(self, source: Conversation | str) -> Prompt:
        """Render and encode. Raises InvalidRequestError and its kin."""
        start = time.perf_counter()
        if isinstance(source, str):
            text = source
        elif self.template is None:
            raise InvalidRequestError("conversation", f"model {self.name!r} has no chat template; send text")
        else:
            text = self.template.render(source.messages, source.template_options, add_generation_prompt=True)
        field = "text" if isinstance(source, str) else "conversation"
        ids = self.encoder.encode(text, field)
        if not len(ids):
            raise InvalidRequestError(field, "the prompt has no tokens")
        return Prompt(text, ids, (time.perf_counter() - start) * 1e3)

    def complete(self, request: GenerationRequest) -> GenerationRequest:
        """The request with the model's sampling defaults where it has none.

        A stop text that spells a special token becomes a stop token too: special tokens are no text, so nothing else
        would ever find it.
        """
        sampling = request.sampling.over(self.defaults)
        stops = {text.encode() for text in sampling.stop_texts}
        stop_ids = [i for i in sorted(self.vocabulary.special_ids) if self.vocabulary.spell(i) in stops]
        sampling = dataclasses.replace(sampling, stop_token_ids=(*sampling.stop_token_ids, *stop_ids))
        return dataclasses.replace(request, sampling=sampling)

    def segments(self, source: Conversation | str, prompt: Prompt) -> tuple[Segment, ...]:
        """Which tokens come from which message; empty where that cannot be told."""
        if isinstance(source, str) or self.template is None:
            return ()
        return find_segments(self.template, source, prompt.text, prompt.ids, self.vocabulary)


def load_model(model_dir: Path, name: str | None, aliases: tuple[str, ...], max_prompt_bytes: int) -> ServedModel:
    """Read a model directory. Raises ModelFileError naming the file that is missing or malformed."""
    if not model_dir.is_dir():
        raise ModelFileError(f"{model_dir}: no such model directory")
    try:
        vocabulary = load_vocabulary(model_dir)
    except VocabularyError as error:
        raise ModelFileError(str(error)) from None
    config_path = model_dir / "config.json"
    config = read_json_object(config_path) if config_path.exists() else {}
    context_tokens = config.get("max_position_embeddings")
    return ServedModel(
        name=name or model_dir.resolve().name,
        aliases=aliases,
        vocabulary=vocabulary,
        encoder=load_encoder(model_dir, max_prompt_bytes),
        template=load_template(model_dir),
        fingerprint=tokenizer_fingerprint(model_dir),
        defaults=load_defaults(model_dir / "generation_config.json"),
        context_tokens=context_tokens if isinstance(context_tokens, int) else None,
        created_s=int((model_dir / "tokenizer.json").stat().st_mtime),
    )


def load_defaults(path: Path) -> Sampling:
    """The sampling that a model's makers advise, as far as they advise any. Raises ModelFileError."""
    config = read_json_object(path) if path.exists() else {}
    numbers: dict[str, float] = {}
    for name in ("temperature", "top_p", "top_k"):
        value = config.get(name)
        if value is None:
            continue
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise ModelFileError(f"{path}: {name} is not a number")
        numbers[name] = value
    # transformers writes 0 where it means "off".
    top_k = int(numbers["top_k"]) if numbers.get("top_k") else None
    defaults = Sampling(temperature=numbers.get("temperature"), top_p=numbers.get("top_p"), top_k=top_k)
    try:
        defaults.check()
    except InvalidRequestError as error:
        raise ModelFileError(f"{path}: {error.message}") from None
    return defaults
