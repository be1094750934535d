"""The body of a Completions request."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from fencepost.tokenizer.v1 import tokenizer_pb2

from services.gateway import completions
from services.gateway.client_request import ClientRequest
from services.gateway.errors import BadRequestError, UnsupportedError
from tests.unit.gateway.exchanges import exchange_of


def parse(**changes: Any) -> ClientRequest:
    body = orjson.dumps({"model": "m", "prompt": "Once", **changes})
    return completions.parse(exchange_of(body), response_id="c")


def test_the_text_is_taken_verbatim() -> None:
    hostile = "<|im_start|>\x00\u2028 é\r\n"
    assert parse(prompt=hostile).generate.text == hostile


def test_sampling() -> None:
    generate = parse(temperature=0, top_p=0.5, max_tokens=5, stop="END", seed=3).generate
    assert generate.sampling == tokenizer_pb2.Sampling(
        temperature=0, top_p=0.5, max_tokens=5, stop_texts=["END"], seed=3
    )
    assert not parse().generate.sampling.ListFields()
    generate = parse(n=2, best_of=2, logprobs=0, logit_bias={"5": 1}, top_k=3).generate
    assert generate.sampling == tokenizer_pb2.Sampling(choices=2, logprobs=0, logit_bias={5: 1}, top_k=3)


def test_texts_that_grow_stay_on_their_replica() -> None:
    opening = "x" * 600
    assert parse(prompt=opening).replica_key == parse(prompt=opening + "more").replica_key
    assert parse(prompt=opening).replica_key != parse(prompt="y" + opening).replica_key
    assert parse(user="u").replica_key == "u"
    assert parse(prompt_cache_key="k", user="u").replica_key == "k"


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"model": None}, "model"),
        ({"prompt": None}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": {}}, "prompt"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"temperature": 3}, "temperature"),
        ({"stop": [""]}, "stop[0]"),
        ({"logprobs": True}, "logprobs"),
        ({"logprobs": 21}, "logprobs"),
        ({"n": 0}, "n"),
        ({"stream_options": {}}, "stream_options"),
    ],
)
def test_wrong_value_names_its_field(changes: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        parse(**changes)
    assert caught.value.param == param
    assert f"'{param}'" in caught.value.message


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"prompt": ["Once"]}, "prompt"),
        ({"prompt": [1, 2]}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"echo": True}, "echo"),
        ({"suffix": "end"}, "suffix"),
        ({"best_of": 2}, "best_of"),
        ({"best_of": 3, "n": 2}, "best_of"),
    ],
)
def test_what_is_not_served_is_refused_by_name(changes: dict[str, Any], param: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        parse(**changes)
    assert caught.value.param == param


def test_what_changes_nothing_is_taken() -> None:
    harmless = {"echo": False, "suffix": "", "best_of": 1, "n": 1, "logprobs": None, "never_heard_of": 1}
    assert parse(**harmless) == parse()


@pytest.mark.parametrize(
    ("contract", "client"),
    [("text", "prompt"), ("input", "prompt"), ("sampling.stop_texts[1]", "stop[1]"), ("sampling.choices", "n")],
)
def test_fields_are_spelt_as_the_client_spells_them(contract: str, client: str) -> None:
    assert completions.client_field(contract) == client
