"""Log-probabilities in the shapes that clients know."""

from __future__ import annotations

from fencepost.tokenizer.v1 import tokenizer_pb2 as pb

from services.gateway.logprobs import CompletionLogprobs, chat_logprobs


def token(value: bytes, logprob: float, *top: tuple[bytes, float]) -> pb.TokenLogprobs:
    return pb.TokenLogprobs(
        sampled=pb.TokenLogprob(token=value, logprob=logprob),
        top=[pb.TokenLogprob(token=other, logprob=one) for other, one in top],
    )


def test_chat_tokens_have_their_text_and_bytes() -> None:
    assert chat_logprobs([token("é".encode(), -0.5, ("é".encode(), -0.5), (b"e", -1))]) == {
        "content": [
            {
                "token": "é",
                "logprob": -0.5,
                "bytes": [0xC3, 0xA9],
                "top_logprobs": [
                    {"token": "é", "logprob": -0.5, "bytes": [0xC3, 0xA9]},
                    {"token": "e", "logprob": -1, "bytes": [101]},
                ],
            }
        ],
        "refusal": None,
    }


def test_half_a_character_is_spelt_in_escapes() -> None:
    (entry,) = chat_logprobs([token(b"a\xf0\x9f", -1)])["content"]
    assert (entry["token"], entry["bytes"], entry["top_logprobs"]) == ("a\\xf0\\x9f", [97, 0xF0, 0x9F], [])
    assert CompletionLogprobs().of([token(b"\xf0\x9f", -1)])["tokens"] == ["bytes:\\xf0\\x9f"]


def test_offsets_go_on_from_piece_to_piece() -> None:
    logprobs = CompletionLogprobs()
    first = logprobs.of([token(b"ab", -1, (b"x", -0.25)), token("é".encode()[:1], -1, (b"y", -0.25))])
    assert first == {
        "tokens": ["ab", "bytes:\\xc3"],
        "token_logprobs": [-1, -1],
        "top_logprobs": [{"x": -0.25, "ab": -1}, {"y": -0.25, "bytes:\\xc3": -1}],
        "text_offset": [0, 2],
    }
    second = logprobs.of([token("é".encode()[1:], -1), token(b"c", -1)])
    assert second["text_offset"] == [2, 3]
    assert second["top_logprobs"] is None
