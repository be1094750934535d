"""The default model: known token ids, known logits, and a sane answer."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from services.models.directory import inspect_directory

QUESTION = [1, 4093, 198, 1780, 314, 216, 33, 39, 26, 34, 35, 47, 2, 198]

LOGIT_BY_TOKEN_BY_POSITION = {
    0: {
        0: 13.4255,
        1: 3.4145,
        2: 6.3222,
        17: 13.4514,
        198: 21.1742,
        1000: 15.6306,
        25000: 9.0699,
        37468: 2.9015,
        49151: 0.8835,
    },
    6: {
        0: 16.2203,
        1: 4.7645,
        2: 7.9772,
        17: 19.2128,
        198: 21.1712,
        1000: 15.9843,
        25000: 13.7973,
        37468: 4.5957,
        49151: 9.6612,
    },
    13: {
        0: 2.1493,
        1: 24.0110,
        2: 18.6426,
        17: -0.3911,
        198: 11.0038,
        1000: 1.3182,
        25000: -5.1490,
        37468: 15.1997,
        49151: -2.5578,
    },
}


@pytest.fixture(scope="module")
def tokenizer(smollm2_dir: Path) -> Tokenizer:
    return Tokenizer.from_file(str(smollm2_dir / "tokenizer.json"))


@pytest.fixture(scope="module")
def model(smollm2_dir: Path) -> LlamaForCausalLM:
    return LlamaForCausalLM.from_pretrained(smollm2_dir, dtype=torch.float32).eval()


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("Hello, world!", "19556 28 905 17"),
        (
            "In 2024, 1234567 people paid $19.99.",
            "788 216 34 32 34 36 28 216 33 34 35 36 37 38 39 701 5940 1885 33 41 30 41 41 30",
        ),
        ("  12 spaces  34", "256 33 34 5600 256 35 36"),
        (
            "naïve café ½ ² Ⅷ ٣٤ 日本語 😀",
            "3546 46494 37366 216 16738 216 19133 216 173 223 117 216 164 113 164 114"
            " 17097 241 115 40993 179 120 248 40303 218",
        ),
        ("<|im_start|>user\nWhat is 17*23?<|im_end|>\n", " ".join(map(str, QUESTION))),
        ("", ""),
    ],
)
def test_known_token_ids(tokenizer: Tokenizer, text: str, ids: str) -> None:
    encoding = tokenizer.encode(text)
    assert encoding.ids == [int(token_id) for token_id in ids.split()]
    assert tokenizer.decode(encoding.ids, skip_special_tokens=False) == text


def test_first_seventeen_tokens_are_special(smollm2_dir: Path, tokenizer: Tokenizer) -> None:
    added = tokenizer.get_added_tokens_decoder()
    assert sorted(added) == list(range(17))
    assert all(token.special for token in added.values())
    config = json.loads((smollm2_dir / "tokenizer_config.json").read_bytes())
    assert (config["bos_token"], config["eos_token"]) == ("<|im_start|>", "<|im_end|>")


def test_directory_describes_the_model(smollm2_dir: Path) -> None:
    directory = inspect_directory(smollm2_dir)
    assert (directory.model_type, directory.context_tokens, directory.vocab_size) == ("llama", 8192, 49152)
    config = json.loads((smollm2_dir / "config.json").read_bytes())
    assert (config["rope_theta"], config["rms_norm_eps"], config["eos_token_id"]) == (100000.0, 1e-5, 2)
    assert config["tie_word_embeddings"] is True


def test_template_adds_the_default_system_message(smollm2_dir: Path) -> None:
    template = ImmutableSandboxedEnvironment().from_string((smollm2_dir / "chat_template.jinja").read_text())
    assert template.render(messages=[{"role": "user", "content": "Hi"}], add_generation_prompt=True) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_known_logits(model: LlamaForCausalLM) -> None:
    """Against an independent float64 forward over the GGUF file as the `gguf` package decodes it."""
    with torch.inference_mode():
        logits = model(torch.tensor([QUESTION])).logits[0].numpy()
    for position, values in LOGIT_BY_TOKEN_BY_POSITION.items():
        np.testing.assert_allclose(logits[position, list(values)], list(values.values()), atol=1e-3)


def test_greedy_answer_is_sane(model: LlamaForCausalLM, tokenizer: Tokenizer) -> None:
    prompt = tokenizer.encode("<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n").ids
    ids = [*prompt]
    with torch.inference_mode():
        step = model(torch.tensor([ids]), use_cache=True)
        while ids[-1] != 2 and len(ids) < len(prompt) + 16:
            ids.append(int(step.logits[0, -1].argmax()))
            step = model(torch.tensor([ids[-1:]]), cache=step.past_key_values, use_cache=True)
    assert (
        tokenizer.decode(ids[len(prompt) :], skip_special_tokens=False) == "The capital of France is Paris.<|im_end|>"
    )
