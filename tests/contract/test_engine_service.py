"""EngineService on real gRPC with a tiny random model."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from fencepost.engine.v1 import engine_pb2 as pb

from services import rpc
from services.identity import tokenizer_fingerprint
from tests.contract.engine_client import EngineClient, run_engine, write_tiny_engine_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_engine_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
async def engine(model: Path) -> AsyncGenerator[EngineClient]:
    async with run_engine(model) as client:
        yield client


def prompt(seed: int, length: int) -> list[int]:
    return random.Random(seed).choices(range(3, 500), k=length)


async def failure(call: Any) -> rpc.RpcFailure:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in call:
            pass
    return rpc.failure_of(caught.value)


async def test_get_model_describes_the_model_and_its_units(engine: EngineClient, model: Path):
    facts = await engine.stub.GetModel(pb.GetModelRequest())
    assert facts.tokenizer_fingerprint == tokenizer_fingerprint(model)
    assert (facts.vocabulary_size, facts.context_tokens, facts.block_tokens, facts.page_tokens) == (500, 2048, 16, 256)
    assert facts.bytes_per_token == 2 * 2 * 2 * 16 * 4
    assert list(facts.end_token_ids) == [2]
    assert facts.runtime_class == "paged"


async def test_turn_two_reuses_prompt_and_output_but_the_last_token(engine: EngineClient):
    ids = prompt(1, 70)
    first = await engine.generate(ids, 12)
    second = await engine.generate([*ids, *first.ids, 5, 6, 7], 4)
    assert second.cached(pb.TIER_VRAM) == 70 + 12 - 1
    assert second.usage.prompt_tokens == 85
    assert second.usage.cached.recomputed_tokens == 4
    assert second.admitted.cached == second.usage.cached


async def test_eight_at_once_equal_one_by_one(engine: EngineClient):
    prompts = [prompt(seed, 20 + 37 * seed) for seed in range(8)]
    alone = [(await engine.generate(ids, 16, scope=f"alone-{i}")).ids for i, ids in enumerate(prompts)]
    together = await asyncio.gather(*(engine.generate(ids, 16, scope=f"together-{i}") for i, ids in enumerate(prompts)))
    assert [answer.ids for answer in together] == alone
    load = await engine.settled()
    assert (load.held_blocks, load.leases) == (0, 0)
    assert load.free_blocks + load.cached_blocks == load.total_blocks


async def test_scopes_share_nothing(engine: EngineClient):
    ids = prompt(2, 40)
    first = await engine.generate(ids, 4, scope="one")
    second = await engine.generate(ids, 4, scope="two")
    assert (second.cached(), first.ids) == (0, second.ids)


async def test_a_caller_that_leaves_holds_nothing_and_its_blocks_stay(engine: EngineClient):
    ids = prompt(3, 600)
    call = engine.start(ids, 1000)
    async for message in call:
        if message.WhichOneof("event") == "tokens":
            break
    call.cancel()
    load = await engine.settled()
    assert load.held_blocks == 0
    assert (await engine.generate(ids, 2)).cached() == 599


async def test_a_caller_that_leaves_during_prefill_is_dropped_within_a_step(engine: EngineClient):
    call = engine.start(prompt(4, 2000), 4)
    async for message in call:
        if message.WhichOneof("event") == "progress":
            break
    call.cancel()
    load = await engine.settled()
    assert load.held_blocks == 0
    again = await engine.generate(prompt(4, 2000), 4)
    assert 0 < again.cached() < 1999


async def test_prefill_makes_the_next_generate_a_hit(engine: EngineClient):
    ids = prompt(5, 300)
    request = pb.PrefillRequest(cache_scope="scope", token_ids=b"".join(i.to_bytes(4, "little") for i in ids))
    events = [m.WhichOneof("event") async for m in engine.stub.Prefill(request)]
    assert events[0] == "admitted"
    assert events[-1] == "finished"
    assert (await engine.generate([*ids, 9], 1)).cached() == 300


async def test_equal_seeds_give_equal_tokens_in_any_company(engine: EngineClient):
    sampling = pb.Sampling(temperature=1.5, top_p=0.95, seed=42, max_tokens=12, ignore_end=True)
    alone = await engine.generate(prompt(6, 30), sampling=sampling)
    others = [engine.generate(prompt(seed, 50), 30) for seed in (7, 8, 9)]
    mixed, *_ = await asyncio.gather(engine.generate(prompt(6, 30), sampling=sampling, scope="other"), *others)
    assert mixed.ids == alone.ids
    assert alone.ids != (await engine.generate(prompt(6, 30), 12)).ids


async def test_drafts_change_the_account_and_not_the_tokens(engine: EngineClient, model: Path):
    ids = prompt(11, 40) * 2
    for sampling in (
        pb.Sampling(temperature=0, max_tokens=60, logit_bias={7: 60}),
        # Two ids are far likelier than all others: much of it is right by chance, and much is not.
        pb.Sampling(seed=5, max_tokens=60, ignore_end=True, choices=3, logprobs=2, logit_bias={7: 60, 8: 58}),
        pb.Sampling(seed=5, max_tokens=60, stop_token_ids=[8], frequency_penalty=0.5, logit_bias={7: 60, 8: 50}),
    ):
        drafted = await engine.generate(ids, sampling=sampling, scope="drafted")
        plain = await engine.generate(ids, sampling=sampling, scope="plain", draft=pb.DRAFT_OFF)
        assert drafted.ids_by_choice == plain.ids_by_choice
        for one, other in zip(drafted.logprobs, plain.logprobs, strict=True):
            assert one.sampled.token_id == other.sampled.token_id
            assert one.sampled.logprob == pytest.approx(other.sampled.logprob, abs=1e-4)
        for choice, finished in drafted.finished_by_choice.items():
            usage, other = finished.usage, plain.finished_by_choice[choice].usage
            assert (finished.reason, usage.output_tokens) == (
                plain.finished_by_choice[choice].reason,
                other.output_tokens,
            )
            assert usage.drafted_tokens >= usage.accepted_tokens > 0
            assert other.drafted_tokens == other.accepted_tokens == 0
    async with run_engine(model, drafts="off") as without:
        assert (await without.generate(ids, 30)).usage.drafted_tokens == 0


async def test_the_first_of_several_choices_is_what_one_alone_would_be(engine: EngineClient):
    sampling = pb.Sampling(temperature=1.5, seed=42, max_tokens=12, ignore_end=True)
    alone = await engine.generate(prompt(6, 50), sampling=sampling)
    sampling.choices = 4
    several = await engine.generate(prompt(6, 50), sampling=sampling, scope="other")
    assert several.ids == alone.ids
    assert len({tuple(ids) for ids in several.ids_by_choice.values()}) == 4
    again = await engine.generate(prompt(6, 50), sampling=sampling, scope="again")
    assert again.ids_by_choice == several.ids_by_choice


async def test_choices_compute_their_prompt_once_and_have_an_account_each(engine: EngineClient):
    ids = prompt(7, 200)
    answer = await engine.generate(ids, sampling=pb.Sampling(seed=1, max_tokens=20, choices=3, ignore_end=True))
    assert set(answer.finished_by_choice) == {0, 1, 2}
    for choice, finished in answer.finished_by_choice.items():
        assert (finished.choice, finished.usage.output_tokens) == (choice, 20)
        assert finished.usage.prompt_tokens == 200
        assert finished.usage.cached == answer.admitted.cached
    load = await engine.settled()
    assert load.held_blocks == 0
    assert load.free_blocks + load.cached_blocks == load.total_blocks
    # What a whole block does not cover is computed once more for every choice, and nothing else of the prompt.
    assert load.cached_blocks <= 200 // 16 + 3 * 3


async def test_greedy_choices_are_equal(engine: EngineClient):
    sampling = pb.Sampling(temperature=0, max_tokens=30, choices=5, ignore_end=True)
    answer = await engine.generate(prompt(8, 33), sampling=sampling)
    assert list(answer.ids_by_choice.values()) == [list(answer.ids)] * 5
    assert answer.ids == (await engine.generate(prompt(8, 33), 30, scope="alone")).ids


async def test_a_caller_of_several_choices_that_leaves_holds_nothing(engine: EngineClient):
    sampling = pb.Sampling(seed=1, max_tokens=1000, choices=6, ignore_end=True)
    call = engine.start(prompt(9, 100), sampling=sampling)
    seen: set[int] = set()
    async for message in call:
        seen |= {message.tokens.choice} if message.HasField("tokens") else set()
        if len(seen) == 6:
            break
    call.cancel()
    load = await engine.settled()
    assert load.held_blocks == 0


async def test_more_choices_than_the_pool_holds_all_finish(model: Path):
    ids = prompt(10, 100)
    sampling = pb.Sampling(temperature=1, seed=3, max_tokens=60, choices=8, ignore_end=True)
    async with run_engine(model) as engine:
        roomy = await engine.generate(ids, sampling=sampling)
    async with run_engine(model, vram_bytes=20 * 16 * 512, max_waiting=8) as engine:
        tight = await engine.generate(ids, sampling=sampling)
        assert tight.ids_by_choice == roomy.ids_by_choice
        assert (await engine.settled()).held_blocks == 0
        sampling.choices = 9
        refused = await failure(engine.start(ids, sampling=sampling))
        assert (refused.code.name, refused.metadata["field"]) == ("INVALID_ARGUMENT", "sampling.choices")


async def test_log_probabilities_come_with_every_token(engine: EngineClient):
    ids = prompt(13, 40)
    plain = await engine.generate(ids, 6)
    assert plain.logprobs == ()
    sampling = pb.Sampling(temperature=0, max_tokens=6, ignore_end=True, logprobs=4)
    answer = await engine.generate(ids, sampling=sampling)
    assert answer.ids == plain.ids
    assert [one.sampled.token_id for one in answer.logprobs] == list(answer.ids)
    for one in answer.logprobs:
        assert [top.logprob for top in one.top] == sorted((top.logprob for top in one.top), reverse=True)
        assert one.top[0] == one.sampled
        assert len(one.top) == 4
        assert sum(math.exp(top.logprob) for top in one.top) < 1
    sampling.logprobs = 0
    assert all(not one.top for one in (await engine.generate(ids, sampling=sampling)).logprobs)


async def test_a_bias_and_a_penalty_change_a_greedy_output(engine: EngineClient):
    ids = prompt(14, 40)
    free = (await engine.generate(ids, 10)).ids
    sampling = pb.Sampling(temperature=0, max_tokens=10, ignore_end=True, logit_bias={77: 100})
    assert (await engine.generate(ids, sampling=sampling)).ids == (77,) * 10
    sampling = pb.Sampling(temperature=0, max_tokens=10, ignore_end=True, logit_bias={free[0]: -100})
    assert free[0] not in (await engine.generate(ids, sampling=sampling)).ids
    sampling = pb.Sampling(temperature=0, max_tokens=40, ignore_end=True, repetition_penalty=1e6)
    once = (await engine.generate(ids, sampling=sampling)).ids
    assert len({*once, *ids}) == 40 + len(set(ids))


async def test_stop_token_ids_and_stop_texts_end_the_output(engine: EngineClient):
    ids = prompt(11, 30)
    free = (await engine.generate(ids, 40)).ids
    stop = pb.Sampling(temperature=0, max_tokens=40, ignore_end=True, stop_token_ids=[free[5]])
    cut = await engine.generate(ids, sampling=stop, scope="ids")
    assert cut.ids == free[: free.index(free[5]) + 1]
    assert cut.finished.reason == pb.FINISH_REASON_STOP


async def test_an_exact_repeat_gives_the_same_answer_from_the_cache(engine: EngineClient):
    ids = prompt(12, 96)
    first, second = await engine.generate(ids, 8), await engine.generate(ids, 8)
    assert first.ids == second.ids
    assert second.usage.cached.recomputed_tokens == 1


@pytest.mark.parametrize(
    ("fields", "code", "field"),
    [
        ({"sampling": pb.Sampling(temperature=-1)}, "INVALID_ARGUMENT", "sampling.temperature"),
        ({"sampling": pb.Sampling(top_p=0)}, "INVALID_ARGUMENT", "sampling.top_p"),
        ({"sampling": pb.Sampling(max_tokens=0)}, "INVALID_ARGUMENT", "sampling.max_tokens"),
        ({"sampling": pb.Sampling(stop_texts=[b""])}, "INVALID_ARGUMENT", "sampling.stop_texts"),
        ({"sampling": pb.Sampling(temperature=float("nan"))}, "INVALID_ARGUMENT", "sampling.temperature"),
        ({"scope": ""}, "INVALID_ARGUMENT", "cache_scope"),
        ({"ids": []}, "INVALID_ARGUMENT", "token_ids"),
        ({"ids": [500]}, "INVALID_ARGUMENT", "token_ids"),
        ({"ids": [-1]}, "INVALID_ARGUMENT", "token_ids"),
        ({"fence": {}}, "INVALID_ARGUMENT", "fence"),
        ({"sampling": pb.Sampling(min_p=1.5)}, "INVALID_ARGUMENT", "sampling.min_p"),
        ({"sampling": pb.Sampling(logprobs=21)}, "INVALID_ARGUMENT", "sampling.logprobs"),
        ({"sampling": pb.Sampling(choices=0)}, "INVALID_ARGUMENT", "sampling.choices"),
        ({"sampling": pb.Sampling(choices=129)}, "INVALID_ARGUMENT", "sampling.choices"),
        ({"sampling": pb.Sampling(presence_penalty=2.5)}, "INVALID_ARGUMENT", "sampling.presence_penalty"),
        ({"sampling": pb.Sampling(frequency_penalty=-3)}, "INVALID_ARGUMENT", "sampling.frequency_penalty"),
        ({"sampling": pb.Sampling(repetition_penalty=0)}, "INVALID_ARGUMENT", "sampling.repetition_penalty"),
        ({"sampling": pb.Sampling(repetition_penalty=math.inf)}, "INVALID_ARGUMENT", "sampling.repetition_penalty"),
        ({"sampling": pb.Sampling(logit_bias={500: 1})}, "INVALID_ARGUMENT", "sampling.logit_bias"),
        ({"sampling": pb.Sampling(logit_bias={5: 101})}, "INVALID_ARGUMENT", "sampling.logit_bias"),
        ({"sampling": pb.Sampling(logit_bias={5: math.nan})}, "INVALID_ARGUMENT", "sampling.logit_bias"),
    ],
)
async def test_a_bad_field_is_named(engine: EngineClient, fields: dict[str, Any], code: str, field: str):
    arguments: dict[str, Any] = {"ids": [3, 4]} | fields
    found = await failure(engine.start(**arguments))
    assert (found.code.name, found.metadata["field"]) == (code, field)


async def test_a_prompt_over_the_context_is_refused_with_both_lengths(engine: EngineClient):
    found = await failure(engine.start([3] * 2048))
    assert (found.code.name, found.reason) == ("OUT_OF_RANGE", "CONTEXT_LENGTH_EXCEEDED")
    assert found.metadata == {"prompt_tokens": "2048", "context_tokens": "2048"}
    longest = await engine.generate([3] * 2040, 100)
    assert longest.usage.output_tokens == 8
    assert longest.finished.reason == pb.FINISH_REASON_LENGTH


@pytest.mark.parametrize(
    ("call", "request_", "field"),
    [
        ("Annotate", pb.AnnotateRequest(conversation_key="c", wait_classes=["w"]), "cache_scope"),
        ("Annotate", pb.AnnotateRequest(cache_scope="s", wait_classes=["w"]), "conversation_key"),
        ("Annotate", pb.AnnotateRequest(cache_scope="s", conversation_key="c", wait_classes=[""]), "wait_classes"),
        (
            "Annotate",
            pb.AnnotateRequest(cache_scope="s", conversation_key="c", wait_classes=map(str, range(65))),
            "wait_classes",
        ),
        ("Release", pb.ReleaseRequest(conversation_key="c"), "cache_scope"),
        ("Release", pb.ReleaseRequest(cache_scope="s"), "conversation_key"),
    ],
)
async def test_a_bad_field_of_a_hint_is_named(engine: EngineClient, call: str, request_: Any, field: str):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await getattr(engine.stub, call)(request_)
    found = rpc.failure_of(caught.value)
    assert (found.code.name, found.metadata["field"]) == ("INVALID_ARGUMENT", field)


async def test_hints_about_what_is_not_known_are_of_no_effect(engine: EngineClient):
    ids = prompt(1, 64)
    await engine.generate(ids, 4)
    await engine.stub.Annotate(pb.AnnotateRequest(cache_scope="other", conversation_key="conversation"))
    await engine.stub.Release(pb.ReleaseRequest(cache_scope="other", conversation_key="conversation", delete=True))
    await engine.stub.Release(pb.ReleaseRequest(cache_scope="scope", conversation_key="other", delete=True))
    assert (await engine.generate(ids, 4)).cached() == 63


async def test_a_full_queue_refuses_with_a_retry_delay(model: Path):
    async with run_engine(model, max_running=1, max_waiting=1) as engine:
        calls = [engine.start(prompt(seed, 100), 400) for seed in range(2)]
        await engine.load(lambda load: load.running == 1 and load.queued == 1)
        found = await failure(engine.start(prompt(9, 10)))
        assert found.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert found.retry_after_s is not None
        assert 1 <= found.retry_after_s <= 120
        for call in calls:
            call.cancel()
        await engine.settled()


async def test_a_pool_too_small_for_all_finishes_all_with_the_same_tokens(model: Path):
    prompts = [prompt(seed, 100) for seed in range(6)]
    async with run_engine(model) as engine:
        alone = [(await engine.generate(ids, 60)).ids for ids in prompts]
    async with run_engine(model, vram_bytes=20 * 16 * 512) as engine:
        together = await asyncio.gather(*(engine.generate(ids, 60) for ids in prompts))
        assert [answer.ids for answer in together] == alone
        assert (await engine.settled()).held_blocks == 0
        facts = await engine.stub.GetModel(pb.GetModelRequest())
        assert facts.context_tokens == 320, "what the device holds bounds the context"


async def test_an_output_that_goes_round_in_circles_is_ended(engine: EngineClient) -> None:
    # A token that is part of a letter, and all but certain.
    looping = pb.Sampling(temperature=0, max_tokens=600, logit_bias={130: 100.0, 131: 60.0})
    ended = await engine.generate([5, 6, 7], sampling=looping)
    whole = await engine.generate([5, 6, 7], sampling=looping, loop_guard=False)
    assert (whole.finished.reason, whole.ids) == (pb.FINISH_REASON_LENGTH, (130,) * 600)
    assert ended.finished.reason == pb.FINISH_REASON_LOOP
    assert ended.ids[:202] == (130,) * 201 + (131,)
    assert len(ended.ids) < 400
    # Whoever asks for output past its end is not guarded unless they say so.
    looping.ignore_end = True
    assert (await engine.generate([5, 6, 7], sampling=looping)).ids == whole.ids
    assert (await engine.generate([5, 6, 7], sampling=looping, loop_guard=True)).ids == ended.ids
    load = await engine.settled()
    assert load.held_blocks == 0


async def test_thinking_ends_when_its_budget_is_spent(model: Path) -> None:
    marks = pb.Reasoning(start_id=8, end_id=9, budget_tokens=5)
    async with run_engine(model) as engine:
        free = await engine.generate([5, 6, 8], 12)
        bound = await engine.generate([5, 6, 8], 12, reasoning=marks)
        closed = await engine.generate([5, 8, 6, 9, 7], 12)
        untouched = await engine.generate([5, 8, 6, 9, 7], 12, reasoning=marks)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await engine.generate([5, 6, 8], 12, reasoning=pb.Reasoning(start_id=8, end_id=10**6))
    assert 9 not in free.ids[:6]
    assert bound.ids[:6] == (*free.ids[:5], 9)
    assert untouched.ids == closed.ids
    assert rpc.failure_of(refused.value).code is grpc.StatusCode.INVALID_ARGUMENT
