from pathlib import Path

import pytest
from tokenizers import Tokenizer

from services.engine.guard.lexicon import Lexicon
from services.vocabulary import load_vocabulary
from tests.unit.engine.guard.encoding import Encode


@pytest.fixture(scope="session")
def lexicon(smollm2_dir: Path) -> Lexicon:
    return Lexicon(load_vocabulary(smollm2_dir).token_bytes)


@pytest.fixture(scope="session")
def encode(smollm2_dir: Path) -> Encode:
    tokenizer = Tokenizer.from_file(str(smollm2_dir / "tokenizer.json"))
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids
