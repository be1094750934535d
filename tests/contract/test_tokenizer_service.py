"""tokenizer.v1 over real gRPC, in front of scripted engines."""

import asyncio
import os
import struct
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest
from fencepost.engine.v1 import engine_pb2
from fencepost.tokenizer.v1 import conversation_pb2, tokenizer_pb2_grpc
from fencepost.tokenizer.v1 import tokenizer_pb2 as pb
from scripted_engine import DrainingError, RefusalError, ScriptedEngine, admitted, finished, sampled

from services import rpc
from services.identity import page_key_secret, page_keys, tokenizer_fingerprint
from services.tokenizer.assembly import build
from services.tokenizer.config import TokenizerSettings
from services.vocabulary import load_vocabulary
from tests.unit.tokenizer.tiny_model import CONTEXT_TOKENS, IM_END, IM_START, write_tiny_model

Stub = Any
ROUTING = pb.Routing(tenant="t", conversation_key="k")
GOLDEN_PAGE_KEYS = ["2686ff0cf5829e0afe2f4d3392d5484c", "1935c97cec7077b91faf0c22ddcf48b8"]


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny", temperature=0.5)


@pytest.fixture
async def engine(model_dir: Path) -> AsyncIterator[ScriptedEngine]:
    async with ScriptedEngine(tokenizer_fingerprint(model_dir)).serving() as scripted:
        yield scripted


@asynccontextmanager
async def service(model_dir: Path, *engines: str, **settings: Any) -> AsyncGenerator[Stub]:
    config = TokenizerSettings(model=model_dir, aliases=("alias",), engines=engines, **settings)
    server = rpc.new_server()
    async with build(config, server) as names:
        assert list(names) == ["fencepost.tokenizer.v1.TokenizerService"]
        port = rpc.bind(server, "127.0.0.1:0")
        await server.start()
        async with rpc.open_channel(f"127.0.0.1:{port}") as channel:
            yield tokenizer_pb2_grpc.TokenizerServiceStub(channel)
        await server.stop(None)


@pytest.fixture
async def stub(model_dir: Path, engine: ScriptedEngine) -> AsyncIterator[Stub]:
    async with service(model_dir, engine.address) as found:
        yield found


def conversation(*contents: str) -> conversation_pb2.Conversation:
    return conversation_pb2.Conversation(
        messages=[
            conversation_pb2.Message(
                role=conversation_pb2.ROLE_ASSISTANT if index % 2 else conversation_pb2.ROLE_USER,
                parts=[conversation_pb2.Part(text=conversation_pb2.TextPart(text=content))],
            )
            for index, content in enumerate(contents)
        ]
    )


def generate(**fields: Any) -> pb.GenerateRequest:
    if "text" not in fields:
        fields.setdefault("conversation", conversation("hello"))
    values: dict[str, Any] = {"model": "tiny", "routing": ROUTING, **fields}
    return pb.GenerateRequest(**values)


def byte_ids(text: str, model_dir: Path) -> list[int]:
    """One id per byte, none merged."""
    table = load_vocabulary(model_dir).token_bytes
    return [table.index(bytes([byte])) for byte in text.encode()]


async def events_of(stub: Stub, request: pb.GenerateRequest) -> list[pb.GenerateResponse]:
    return [event async for event in stub.Generate(request, timeout=20)]


async def failure(call: Any, received: list[pb.GenerateResponse] | None = None) -> rpc.RpcFailure:
    """How a call fails; what a stream sent before goes into ``received``."""
    try:
        if not isinstance(call, grpc.aio.UnaryStreamCall):
            raise AssertionError(f"answered {await call}")
        async for event in call:
            if received is not None:
                received.append(event)
    except grpc.aio.AioRpcError as error:
        return rpc.failure_of(error)
    raise AssertionError("the stream ended well")


def text_of(events: list[pb.GenerateResponse]) -> str:
    return "".join(event.text_delta.text for event in events)


async def test_an_answer_streams(stub: Stub, engine: ScriptedEngine, model_dir: Path) -> None:
    progress = engine_pb2.GenerateResponse(
        progress=engine_pb2.Progress(prefilled_tokens=1, prompt_tokens=3, queue_position=4)
    )
    ids = byte_ids("hé!", model_dir)
    engine.script = [admitted(), progress, sampled(*ids[:2]), sampled(*ids[2:]), sampled(IM_END), finished()]
    events = await events_of(stub, generate())
    assert [event.WhichOneof("event") for event in events] == [
        "admitted",
        "progress",
        "text_delta",
        "text_delta",
        "finished",
    ]
    assert events[0].admitted.engine_id == f"engine at {engine.address}"
    assert events[0].admitted.cached.by_tier[0] == pb.TierTokens(tier=pb.TIER_VRAM, tokens=2)
    assert events[0].admitted.cached.miss == pb.Miss(reason="forked", at_token=2, segment="message 0")
    assert events[1].progress == pb.Progress(prefilled_tokens=1, prompt_tokens=3, queue_position=4)
    assert [event.text_delta.text for event in events[2:4]] == ["h", "é!"]
    end = events[-1].finished
    assert end.reason == pb.FINISH_REASON_STOP
    assert not end.HasField("stop_text")
    assert (end.usage.prompt_tokens, end.usage.output_tokens) == (3, 5)
    assert not end.usage.cached.HasField("miss")
    assert end.usage.cached.by_tier[0] == pb.TierTokens(tier=pb.TIER_SSD, tokens=2)
    assert (end.usage.timings.queued_ms, end.usage.timings.decoded_ms) == (1, 4)
    assert end.usage.timings.encoded_ms > 0


async def test_the_engine_gets_the_prompt_and_what_belongs_to_it(stub: Stub, engine: ScriptedEngine) -> None:
    engine.script = [admitted(), finished()]
    sampling = pb.Sampling(top_k=3, seed=0, stop_texts=["x"], max_tokens=7, logit_bias={5: 1.0})
    routing = pb.Routing(
        tenant="t",
        cache_scope="s",
        conversation_key="k",
        request_id="r",
        priority=pb.PRIORITY_BACKGROUND,
        persist=False,
    )
    request = generate(sampling=sampling, routing=routing, loop_guard=True)
    call = stub.Generate(request, timeout=20, metadata=(("traceparent", "00-abc"),))
    assert len([event async for event in call]) == 2
    (sent,) = engine.requests
    encoded = await stub.Encode(pb.EncodeRequest(model="tiny", conversation=request.conversation, routing=routing))
    assert sent.token_ids == encoded.token_ids
    assert (sent.tenant, sent.cache_scope, sent.conversation_key, sent.request_id) == ("t", "s", "k", "r")
    assert (sent.priority, sent.persist, sent.loop_guard) == (engine_pb2.PRIORITY_BACKGROUND, False, True)
    assert sent.sampling == engine_pb2.Sampling(
        temperature=0.5, top_k=3, seed=0, stop_texts=[b"x"], max_tokens=7, logit_bias={5: 1.0}
    )
    assert engine.deadline_s is not None
    assert 0 < engine.deadline_s < 21
    assert engine.metadata["traceparent"] == "00-abc"


async def test_absent_values_and_scope_take_their_defaults(stub: Stub, engine: ScriptedEngine) -> None:
    engine.script = [admitted(), finished()]
    await events_of(stub, generate(routing=pb.Routing(tenant="t")))
    (sent,) = engine.requests
    assert sent.cache_scope == "t"
    assert sent.conversation_key
    assert not sent.HasField("persist")
    assert not sent.HasField("loop_guard")
    assert not sent.sampling.HasField("max_tokens")


async def test_a_stop_text_cuts_the_answer(stub: Stub, engine: ScriptedEngine, model_dir: Path) -> None:
    ids = byte_ids("abENDc", model_dir)
    engine.script = [admitted(), *(sampled(one) for one in ids), finished(engine_pb2.FINISH_REASON_STOP_TEXT, 0)]
    events = await events_of(stub, generate(sampling=pb.Sampling(stop_texts=["END"])))
    assert text_of(events) == "ab"
    assert (events[-1].finished.reason, events[-1].finished.stop_text) == (pb.FINISH_REASON_STOP_TEXT, "END")


async def test_choices_are_told_apart(stub: Stub, engine: ScriptedEngine, model_dir: Path) -> None:
    ab, end, cd = (byte_ids(text, model_dir) for text in ("ab", "END", "cd"))
    engine.script = [
        admitted(),
        sampled(*ab, choice=1),
        sampled(*cd, *end, choice=0),
        finished(engine_pb2.FINISH_REASON_STOP_TEXT, 0),
        sampled(*end[:2], choice=1),
        finished(engine_pb2.FINISH_REASON_LENGTH, choice=1),
    ]
    events = await events_of(stub, generate(sampling=pb.Sampling(choices=2, stop_texts=["END"])))
    texts = [(event.text_delta.choice, event.text_delta.text) for event in events if event.HasField("text_delta")]
    assert texts == [(1, "ab"), (0, "cd"), (1, "EN")]
    ends = [event.finished for event in events if event.HasField("finished")]
    assert [(end.choice, end.reason) for end in ends] == [
        (0, pb.FINISH_REASON_STOP_TEXT),
        (1, pb.FINISH_REASON_LENGTH),
    ]
    assert [end.usage.output_tokens for end in ends] == [5, 5]
    assert engine.requests[0].sampling.choices == 2


async def test_log_probabilities_are_spelt_in_bytes(stub: Stub, engine: ScriptedEngine, model_dir: Path) -> None:
    h, first, second = ids = byte_ids("h\u00e9", model_dir)
    logprobs = [
        engine_pb2.TokenLogprobs(
            sampled=engine_pb2.TokenLogprob(token_id=one, logprob=-0.5),
            top=[engine_pb2.TokenLogprob(token_id=one, logprob=-0.5), engine_pb2.TokenLogprob(token_id=h, logprob=-2)],
        )
        for one in ids
    ]
    engine.script = [
        admitted(),
        sampled(h, first, logprobs=logprobs[:2]),
        sampled(second, logprobs=logprobs[2:]),
        finished(),
    ]
    events = await events_of(stub, generate(sampling=pb.Sampling(logprobs=2)))
    deltas = [event.text_delta for event in events if event.HasField("text_delta")]
    assert [(delta.text, [one.sampled.token for one in delta.logprobs]) for delta in deltas] == [
        ("h", [b"h"]),
        ("\u00e9", [b"\xc3", b"\xa9"]),
    ]
    assert deltas[1].logprobs[0] == pb.TokenLogprobs(
        sampled=pb.TokenLogprob(token=b"\xc3", logprob=-0.5),
        top=[pb.TokenLogprob(token=b"\xc3", logprob=-0.5), pb.TokenLogprob(token=b"h", logprob=-2)],
    )


async def test_a_stop_text_that_never_completes_is_text(stub: Stub, engine: ScriptedEngine, model_dir: Path) -> None:
    engine.script = [admitted(), sampled(*byte_ids("abEN", model_dir)), finished(engine_pb2.FINISH_REASON_LENGTH)]
    events = await events_of(stub, generate(sampling=pb.Sampling(stop_texts=["END"])))
    assert [event.text_delta.text for event in events[1:3]] == ["ab", "EN"]
    assert events[-1].finished.reason == pb.FINISH_REASON_LENGTH


async def test_plain_text_input_spells_special_tokens(stub: Stub, engine: ScriptedEngine) -> None:
    engine.script = [admitted(), finished()]
    await events_of(stub, generate(text="<|im_start|>x"))
    assert np.frombuffer(engine.requests[0].token_ids, "<i4")[0] == IM_START
    assert len(engine.requests[0].token_ids) == 8


async def test_a_warm_up_only_prefills(stub: Stub, engine: ScriptedEngine) -> None:
    events = await events_of(stub, generate(warm_up_only=True))
    assert [event.WhichOneof("event") for event in events] == ["admitted", "progress", "finished"]
    assert isinstance(engine.requests[0], engine_pb2.PrefillRequest)
    assert engine.requests[0].conversation_key == "k"


async def test_an_unknown_model_is_named(stub: Stub) -> None:
    for call in (
        stub.Generate(generate(model="gpt")),
        stub.CountTokens(pb.CountTokensRequest(model="gpt", text="x")),
        stub.Encode(pb.EncodeRequest(model="gpt", text="x", routing=ROUTING)),
        stub.Decode(pb.DecodeRequest(model="gpt")),
        stub.ExplainPrefix(pb.ExplainPrefixRequest(model="gpt", response_id="r")),
    ):
        failed = await failure(call)
        assert (failed.code, failed.reason) == (grpc.StatusCode.NOT_FOUND, "MODEL_NOT_FOUND")
        assert "'gpt'" in failed.message
        assert "tiny, alias" in failed.message


async def test_an_alias_is_the_model(stub: Stub) -> None:
    assert (await stub.CountTokens(pb.CountTokensRequest(model="alias", text="abc"))).tokens == 3


async def test_bad_requests_never_reach_an_engine(stub: Stub, engine: ScriptedEngine) -> None:
    failed = await failure(stub.Generate(generate(sampling=pb.Sampling(max_tokens=0))))
    assert (failed.code, failed.metadata) == (grpc.StatusCode.INVALID_ARGUMENT, {"field": "sampling.max_tokens"})
    failed = await failure(stub.Generate(generate(conversation=conversation_pb2.Conversation())))
    assert failed.metadata == {"field": "conversation.messages"}
    forced = conversation("hello")
    forced.tools.append(conversation_pb2.Tool(name="f"))
    forced.tool_choice.mode = conversation_pb2.TOOL_CHOICE_MODE_REQUIRED
    forced.tool_choice.allowed_names.append("g")
    failed = await failure(stub.Generate(generate(conversation=forced)))
    assert failed.code is grpc.StatusCode.INVALID_ARGUMENT
    assert failed.metadata["field"].startswith("conversation.tool_choice")
    assert engine.requests == []


async def test_a_prompt_that_fills_the_context_is_refused(stub: Stub, engine: ScriptedEngine) -> None:
    engine.script = [admitted(), finished()]
    failed = await failure(stub.Generate(generate(text="x" * CONTEXT_TOKENS)))
    assert (failed.code, failed.reason) == (grpc.StatusCode.OUT_OF_RANGE, "CONTEXT_LENGTH_EXCEEDED")
    assert failed.metadata == {"prompt_tokens": "400", "context_tokens": "400"}
    assert failed.message == "This model's maximum context length is 400 tokens; the prompt has 400 tokens"
    await events_of(stub, generate(text="x" * (CONTEXT_TOKENS - 1)))


async def test_a_prompt_over_the_byte_limit_is_refused(model_dir: Path, engine: ScriptedEngine) -> None:
    async with service(model_dir, engine.address, max_prompt_bytes=20) as stub:
        failed = await failure(stub.Generate(generate(text="x" * 21)))
        assert (failed.code, failed.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "PROMPT_TOO_LARGE")


async def test_a_template_refuses_in_its_own_words(tmp_path: Path, engine: ScriptedEngine) -> None:
    model_dir = write_tiny_model(tmp_path / "tiny", "{{ raise_exception('no system here') }}")
    async with service(model_dir, engine.address) as stub:
        failed = await failure(stub.Generate(generate()))
        assert failed.code == grpc.StatusCode.INVALID_ARGUMENT
        assert "no system here" in failed.message


async def test_what_an_engine_refuses_is_passed_on(stub: Stub, engine: ScriptedEngine) -> None:
    engine.script = [RefusalError("choices is not supported by this engine", metadata={"field": "choices"})]
    failed = await failure(stub.Generate(generate(sampling=pb.Sampling(choices=2, logprobs=1))))
    assert (failed.code, failed.reason) == (grpc.StatusCode.UNIMPLEMENTED, "UNSUPPORTED")
    assert failed.metadata == {"field": "choices"}
    assert engine.requests[0].sampling.choices == 2


async def test_an_engine_that_breaks_off_is_an_error(stub: Stub, engine: ScriptedEngine, model_dir: Path) -> None:
    engine.script = [admitted(), sampled(*byte_ids("a", model_dir)), DrainingError("gone")]
    received: list[pb.GenerateResponse] = []
    failed = await failure(stub.Generate(generate()), received)
    assert text_of(received) == "a"
    assert (failed.code, failed.reason) == (grpc.StatusCode.UNAVAILABLE, "ENGINE_LOST")
    engine.script = [admitted(), sampled(*byte_ids("a", model_dir))]
    failed = await failure(stub.Generate(generate()))
    assert (failed.code, failed.reason) == (grpc.StatusCode.UNAVAILABLE, "ENGINE_LOST")


async def test_an_engine_that_is_down_is_passed_over(model_dir: Path, engine: ScriptedEngine) -> None:
    engine.script = [admitted(), finished()]
    fingerprint = tokenizer_fingerprint(model_dir)
    async with ScriptedEngine(fingerprint).serving() as stopped:
        pass
    async with (
        ScriptedEngine(fingerprint, [DrainingError("draining")]).serving() as draining,
        service(model_dir, stopped.address, draining.address, engine.address) as stub,
    ):
        for key in "abcdef":
            await events_of(stub, generate(routing=pb.Routing(tenant="t", conversation_key=key)))
    assert len(engine.requests) == 6
    assert draining.requests


async def test_no_engine_is_unavailable_and_says_why(model_dir: Path) -> None:
    async with ScriptedEngine(tokenizer_fingerprint(model_dir)).serving() as stopped:
        pass
    async with (
        ScriptedEngine("other").serving() as foreign,
        service(model_dir, stopped.address, foreign.address) as stub,
    ):
        failed = await failure(stub.Generate(generate()))
        assert (failed.code, failed.reason) == (grpc.StatusCode.UNAVAILABLE, "NO_ENGINE")
        # Addresses are for operators, so the text that clients may see has none.
        assert set(failed.message.removeprefix("no engine takes the request: ").split("; ")) == {
            "one does not answer",
            "one has another tokenizer",
        }
        assert f"{stopped.address} does not answer" in failed.metadata["engines"]
        assert f"{foreign.address} has another tokenizer" in failed.metadata["engines"]
        assert failed.retry_after_s
        assert foreign.requests == []


async def test_a_conversation_stays_with_its_engine(model_dir: Path) -> None:
    fingerprint = tokenizer_fingerprint(model_dir)
    script = [admitted(), finished()]
    async with (
        ScriptedEngine(fingerprint, script).serving() as one,
        ScriptedEngine(fingerprint, script).serving() as two,
        service(model_dir, one.address, two.address) as stub,
    ):
        for turn in range(3):
            await events_of(stub, generate(routing=ROUTING, text=f"turn {turn}"))
        assert sorted((len(one.requests), len(two.requests))) == [0, 3]
        assert one.num_described + two.num_described == 1


async def test_another_engine_at_the_same_address_is_asked_again(model_dir: Path) -> None:
    script = [admitted(), finished()]
    first, second = ScriptedEngine(tokenizer_fingerprint(model_dir), script), ScriptedEngine("other", script)
    async with AsyncExitStack() as stack:
        async with first.serving():
            stub = await stack.enter_async_context(service(model_dir, first.address))
            await events_of(stub, generate())
        async with second.serving(first.address):
            failed = await failure(stub.Generate(generate(), timeout=20))
            assert failed.reason == "NO_ENGINE"
            while "does not answer" in failed.message:
                await asyncio.sleep(0.05)
                failed = await failure(stub.Generate(generate(), timeout=20))
            assert "has another tokenizer" in failed.message
            assert second.requests == []


async def test_cancelling_reaches_the_engine(stub: Stub, engine: ScriptedEngine) -> None:
    engine.script = [admitted(), 60.0]
    call = stub.Generate(generate())
    assert (await call.read()).WhichOneof("event") == "admitted"
    call.cancel()
    await asyncio.wait_for(engine.cancelled.wait(), 10)


async def test_a_deadline_reaches_the_engine(model_dir: Path, engine: ScriptedEngine) -> None:
    engine.script = [admitted(), 60.0]
    async with service(model_dir, engine.address, request_timeout_s=0.3) as stub:
        failed = await failure(stub.Generate(generate()))
        assert failed.code == grpc.StatusCode.DEADLINE_EXCEEDED
        await asyncio.wait_for(engine.cancelled.wait(), 10)


async def test_count_tokens_counts_what_generate_sends(stub: Stub, engine: ScriptedEngine) -> None:
    engine.script = [admitted(), finished()]
    messages = conversation("hello world", "é", "😀")
    counted = await stub.CountTokens(pb.CountTokensRequest(model="tiny", conversation=messages))
    await events_of(stub, generate(conversation=messages))
    assert counted.tokens == len(engine.requests[0].token_ids) // 4
    assert sum(segment.tokens for segment in counted.segments) == counted.tokens
    message, prompt = pb.SEGMENT_KIND_MESSAGE, pb.SEGMENT_KIND_GENERATION_PROMPT
    assert [(one.kind, one.index) for one in counted.segments] == [
        (message, 0),
        (message, 1),
        (message, 2),
        (prompt, 0),
    ]
    counted = await stub.CountTokens(pb.CountTokensRequest(model="tiny", text="abc"))
    assert counted == pb.CountTokensResponse(tokens=3, segments=[pb.SegmentTokens(tokens=3)])


async def test_segments_name_tools_system_calls_and_results(stub: Stub) -> None:
    def message(role: conversation_pb2.Role.ValueType, text: str, **more: Any) -> conversation_pb2.Message:
        return conversation_pb2.Message(
            role=role, parts=[conversation_pb2.Part(text=conversation_pb2.TextPart(text=text))], **more
        )

    source = conversation_pb2.Conversation(
        messages=[
            message(conversation_pb2.ROLE_SYSTEM, "Be brief."),
            message(conversation_pb2.ROLE_USER, "hello"),
            message(conversation_pb2.ROLE_ASSISTANT, "", calls=[conversation_pb2.Call(call_id="1", name="f")]),
            message(conversation_pb2.ROLE_TOOL, "<|im_end|>", call_id="1"),
            message(conversation_pb2.ROLE_USER, ""),
        ],
        tools=[conversation_pb2.Tool(name="f", description="does <|im_start|>")],
    )
    encoded = await stub.Encode(pb.EncodeRequest(model="tiny", conversation=source, routing=ROUTING))
    assert [(one.kind, one.index) for one in encoded.segments] == [
        (pb.SEGMENT_KIND_SYSTEM, 0),
        (pb.SEGMENT_KIND_TOOLS, 0),
        (pb.SEGMENT_KIND_MESSAGE, 1),
        (pb.SEGMENT_KIND_MESSAGE, 2),
        (pb.SEGMENT_KIND_RESULT, 3),
        (pb.SEGMENT_KIND_MESSAGE, 4),
        (pb.SEGMENT_KIND_GENERATION_PROMPT, 0),
    ]
    ids = np.frombuffer(encoded.token_ids, "<i4").tolist()
    # Only the template's own control tokens count: one in front of each turn.
    starts = [index for index, token_id in enumerate(ids) if token_id == IM_START]
    assert [one.first_token for one in encoded.segments if one.kind != pb.SEGMENT_KIND_TOOLS] == starts
    counted = await stub.CountTokens(pb.CountTokensRequest(model="tiny", conversation=source))
    ends = [*(one.first_token for one in encoded.segments[1:]), len(ids)]
    assert [one.tokens for one in counted.segments] == [
        end - one.first_token for one, end in zip(encoded.segments, ends, strict=True)
    ]


async def test_encode_gives_ids_and_page_keys(stub: Stub, model_dir: Path) -> None:
    text = "x" * 600
    routing = pb.Routing(tenant="t", cache_scope="team")
    encoded = await stub.Encode(pb.EncodeRequest(model="tiny", text=text, routing=routing))
    assert encoded.token_ids == struct.pack("<600i", *byte_ids(text, model_dir))
    assert (encoded.path, encoded.encoded_tokens) == (pb.ENCODE_PATH_FULL, 600)
    assert encoded.tokenizer_fingerprint == tokenizer_fingerprint(model_dir)
    secret = page_key_secret("team", encoded.tokenizer_fingerprint)
    assert list(encoded.page_keys) == page_keys(secret, encoded.token_ids)
    assert len(encoded.page_keys) == 2
    other = await stub.Encode(pb.EncodeRequest(model="tiny", text=text, routing=pb.Routing(tenant="t")))
    assert other.token_ids == encoded.token_ids
    assert set(other.page_keys).isdisjoint(encoded.page_keys)
    failed = await failure(stub.Encode(pb.EncodeRequest(model="tiny", text=text)))
    assert failed.metadata == {"field": "routing.tenant"}


def test_page_keys_are_golden() -> None:
    secret = page_key_secret("golden scope", "0123456789abcdef0123456789abcdef")
    assert [key.hex() for key in page_keys(secret, struct.pack("<600i", *range(600)))] == GOLDEN_PAGE_KEYS


async def test_page_keys_follow_the_contract(stub: Stub, model_dir: Path) -> None:
    """CONTRACTS' definition of a page key, once more and without the shared code."""

    def field(value: bytes) -> bytes:
        return struct.pack("<Q", len(value)) + value

    request = pb.EncodeRequest(model="tiny", text="hello world" * 60, routing=pb.Routing(tenant="t", cache_scope="s"))
    encoded = await stub.Encode(request)
    fingerprint = blake2b((model_dir / "tokenizer.json").read_bytes(), digest_size=16).hexdigest().encode()
    tagged = field(b"scope") + field(b"s") + field(b"tokenizer") + field(fingerprint)
    secret, parent, keys = blake2b(tagged, digest_size=32).digest(), bytes(16), list[bytes]()
    for start in range(0, len(encoded.token_ids) - 1023, 1024):
        page = encoded.token_ids[start : start + 1024]
        parent = blake2b(parent + page, digest_size=16, key=secret).digest()
        keys.append(parent)
    assert keys
    assert list(encoded.page_keys) == keys


async def test_decode(stub: Stub, model_dir: Path) -> None:
    async def decode(ids: bytes) -> str:
        return (await stub.Decode(pb.DecodeRequest(model="tiny", token_ids=ids))).text

    ids = [IM_START, *byte_ids("hé", model_dir), IM_END]
    assert await decode(struct.pack("<5i", *ids)) == "<|im_start|>hé<|im_end|>"
    assert await decode(struct.pack("<2i", *ids[1:3])) == "h\ufffd"
    assert await decode(b"") == ""
    for data, message in ((b"abc", "3 bytes"), (struct.pack("<i", -1), "is -1"), (struct.pack("<i", 9999), "is 9999")):
        failed = await failure(stub.Decode(pb.DecodeRequest(model="tiny", token_ids=data)))
        assert (failed.code, failed.metadata) == (grpc.StatusCode.INVALID_ARGUMENT, {"field": "token_ids"})
        assert message in failed.message


async def test_the_model_is_listed_with_the_engines_context(stub: Stub, engine: ScriptedEngine) -> None:
    engine.context_tokens = 123
    (model,) = (await stub.ListModels(pb.ListModelsRequest())).models
    assert (model.id, list(model.aliases), model.context_tokens) == ("tiny", ["alias"], 123)
    assert (model.dialect, list(model.modalities), model.is_certified) == ("chatml_json", ["text"], True)
    assert model.defaults == pb.Sampling(temperature=0.5)
    assert model.created_s > 0


async def test_the_model_is_listed_without_engines(model_dir: Path) -> None:
    async with service(model_dir, "127.0.0.1:1") as stub:
        (model,) = (await stub.ListModels(pb.ListModelsRequest())).models
        assert model.context_tokens == CONTEXT_TOKENS


@pytest.mark.parametrize(
    ("flags", "status", "complaint"),
    [
        (["--model", "{dir}/nowhere"], 1, "fencepost tokenizer: {dir}/nowhere: no such model directory"),
        (["--model", "{dir}"], 1, "fencepost tokenizer: {dir}/tokenizer.json: No such file or directory"),
        ([], 2, "fencepost tokenizer: --model (or FENCEPOST_TOKENIZER_MODEL) is required"),
        (["--model", "{dir}", "--encode-threads", "0"], 2, "fencepost tokenizer: --encode-threads: must be at least 1"),
        (["--model", "{dir}", "--aliases", ","], 2, "fencepost tokenizer: --aliases: expected one or more names"),
    ],
)
def test_a_start_that_cannot_succeed_ends_with_one_line(
    tmp_path: Path, flags: list[str], status: int, complaint: str
) -> None:
    command = [sys.executable, "-m", "services.tokenizer", "--listen", "127.0.0.1:0"]
    done = subprocess.run(
        [*command, *(flag.format(dir=tmp_path) for flag in flags)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )
    assert done.returncode == status
    assert done.stderr.splitlines()[-1].startswith(complaint.format(dir=tmp_path))
    assert "Traceback" not in done.stderr
