"""The model that is served, as far as language goes: names, vocabulary, template, dialect, defaults."""

import dataclasses
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from services.identity import tokenizer_fingerprint
from services.tokenizer.dialects import deepseek_encode
from services.tokenizer.dialects.deepseek_dsml import DsmlDialect
from services.tokenizer.dialects.dialect import Dialect
from services.tokenizer.dialects.registry import dialect_for
from services.tokenizer.errors import InvalidRequestError, ModelFileError, UnknownModelError
from services.tokenizer.generate import GenerationRequest
from services.tokenizer.model_files import read_json_object
from services.tokenizer.prompt.encoder_template import DeepseekTemplate
from services.tokenizer.prompt.layout import PromptWriter
from services.tokenizer.prompt.template import ChatTemplate, load_template
from services.tokenizer.sampling import Sampling
from services.vocabulary import Vocabulary, VocabularyError, load_vocabulary


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One model; immutable."""

    name: str
    aliases: tuple[str, ...]
    vocabulary: Vocabulary
    tokenizer: Tokenizer
    writer: PromptWriter | None
    """None where the model has no chat template."""
    dialect: Dialect
    spellings: re.Pattern[str] | None
    """Matches what the tokenizer takes for an added token, whitespace ones aside; None where there are none."""
    end_text: str | None
    """Spells the token that ends an assistant's turn in the template."""
    has_reasoning: bool
    """Whether the template knows thinking."""
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


def load_model(model_dir: Path, name: str | None, aliases: tuple[str, ...], dialect: str | None) -> ServedModel:
    """Read a model directory. Raises ModelFileError naming the file that is missing or malformed."""
    if not model_dir.is_dir():
        raise ModelFileError(f"{model_dir}: no such model directory")
    try:
        vocabulary = load_vocabulary(model_dir)
    except VocabularyError as error:
        raise ModelFileError(str(error)) from None
    config_path = model_dir / "config.json"
    config = read_json_object(config_path) if config_path.exists() else {}
    context_tokens, model_type = config.get("max_position_embeddings"), config.get("model_type")
    template: ChatTemplate | DeepseekTemplate | None = load_template(model_dir)
    source = "" if template is None else template.source
    spoken = dialect_for(model_type if isinstance(model_type, str) else "", source, dialect)
    if template is None and isinstance(spoken, DsmlDialect):
        template, source, end_text = DeepseekTemplate(spoken), "<think>", deepseek_encode.END
    else:
        end_text = _end_text(model_dir, vocabulary, source)
    return ServedModel(
        name=name or model_dir.resolve().name,
        aliases=aliases,
        vocabulary=vocabulary,
        tokenizer=_load_tokenizer(model_dir / "tokenizer.json"),
        writer=None if template is None else PromptWriter(template, spoken, end_text),
        dialect=spoken,
        spellings=_spellings(model_dir / "tokenizer.json"),
        end_text=end_text,
        has_reasoning="<think>" in source or "reasoning_content" in source,
        fingerprint=tokenizer_fingerprint(model_dir),
        defaults=load_defaults(model_dir / "generation_config.json"),
        context_tokens=context_tokens if isinstance(context_tokens, int) else None,
        created_s=int((model_dir / "tokenizer.json").stat().st_mtime),
    )


def added_tokens(model: ServedModel) -> dict[str, int]:
    """Ids of the tokens that the tokenizer finds in text by their spelling."""
    return {token.content: token_id for token_id, token in model.tokenizer.get_added_tokens_decoder().items()}


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


def _load_tokenizer(path: Path) -> Tokenizer:
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # noqa: BLE001 - tokenizers raises nothing narrower
        raise ModelFileError(f"{path}: {error}") from None
    # Some files switch these on.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _spellings(path: Path) -> re.Pattern[str] | None:
    document: Any = json.loads(path.read_bytes())
    added: list[dict[str, Any]] = document.get("added_tokens") or []
    contents: list[str] = [token["content"] for token in added]
    # Tokens for runs of spaces are a way of writing text, not control.
    control = sorted((text for text in contents if text.strip()), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, control))) if control else None


def _end_text(model_dir: Path, vocabulary: Vocabulary, template: str) -> str | None:
    """The end token that the template writes: of the ones that the files name, the one it spells or names."""
    named: list[str] = []
    for file in ("tokenizer_config.json", "generation_config.json", "config.json"):
        config: dict[str, Any] = read_json_object(model_dir / file) if (model_dir / file).exists() else {}
        value = config.get("eos_token")
        if isinstance(value, dict):
            value = value.get("content")  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        if isinstance(value, str):
            named.append(value)
        ids: Any = config.get("eos_token_id")
        for token_id in ids if isinstance(ids, list) else [ids]:  # pyright: ignore[reportUnknownVariableType]
            if isinstance(token_id, int) and token_id >= 0:
                named.append(vocabulary.spell(token_id).decode(errors="replace"))
    spelt = [text for text in named if text and text in template]
    if spelt:
        return spelt[0]
    return named[0] if named and "eos_token" in template else None
