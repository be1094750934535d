"""A chooser with a fence takes only what the fence allows, with and without drafts, whatever the model wants."""

from __future__ import annotations

import os
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from bench.fences.agent_tools import TOOLS
from bench.fences.driving import CASES, Answer, Case, drive, judge
from bench.fences.programs import CHATML_JSON, Mode
from services.engine.choosing import TokenChooser, choose_tokens, new_chooser
from services.engine.draft.drafter import Drafter
from services.engine.fence.allowed import Free, Ids, Mask
from services.engine.fence.compiled import CompiledFence
from services.engine.fence.machine import Fence
from services.engine.fence.masking import is_allowed, masked
from services.engine.guard.lexicon import Lexicon
from services.engine.request import Request, Sampled, SamplingParams
from services.engine.sampling import Sampler
from tests.unit.engine.fence.fetched import fetched

MAX_TOKENS = 1_500
NUM_ANSWERS = 1_000 if os.environ.get("FENCEPOST_SOAK") else 2
"""For each dialect, vocabulary and mode."""
GREEDY = SamplingParams(temperature=0)


class Model:
    """Logits that depend on the place alone, and like ends."""

    def __init__(self, compiled: CompiledFence, seed: int) -> None:
        self._num_ids = compiled.tokens.num_ids
        self._closing = [token_id for token_id, text in enumerate(compiled.tokens.texts) if set(text) & set(b'"}]<')]
        self._eos = list(compiled.tokens.eos_ids)
        self._seed = seed

    def logits(self, place: int) -> torch.Tensor:
        rng = np.random.default_rng([self._seed, place])
        row = rng.normal(size=self._num_ids).astype(np.float32)
        row[self._closing] += 4.0
        row[self._eos] += 6.0
        return torch.from_numpy(row)


def answered(compiled: CompiledFence, params: SamplingParams, seed: int, *, drafts: bool) -> tuple[list[Sampled], int]:
    """The output up to its end token, and how many forward passes it took."""
    model, drafter = Model(compiled, seed), Drafter()
    request = Request(cache_scope="s", token_ids=b"\1\0\0\0", sampling=params, fence=compiled)
    chooser: TokenChooser = new_chooser(request, 0, Lexicon(compiled.tokens.spellings))
    found: list[Sampled] = []
    num_steps = 0
    while not any(one.token_id in compiled.tokens.eos_ids for one in found):
        draft = drafter.propose(b"", 63, chooser.forced()).token_ids if drafts else ()
        rows = torch.stack([model.logits(len(found) + ahead) for ahead in range(1 + len(draft))])
        found += choose_tokens(rows, [chooser], [draft])[0]
        num_steps += 1
        assert len(found) < MAX_TOKENS
    # What a step chose behind the end is not part of the output.
    last = next(at for at, one in enumerate(found) if one.token_id in compiled.tokens.eos_ids)
    return found[: last + 1], num_steps


@pytest.mark.parametrize("mode", [Mode.NAMED, Mode.REQUIRED], ids=lambda mode: mode.value)
@pytest.mark.parametrize("case", [case for case in CASES if case.markup is CHATML_JSON], ids=lambda case: case.id)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_what_is_chosen_parses_and_forced_runs_change_nothing(
    case: Case, mode: Mode, temperature: float, smollm2_dir: Path
) -> None:
    name = next(iter(TOOLS))
    tools = {name: TOOLS[name]} if mode is Mode.NAMED else TOOLS
    compiled = case.compile(fetched(case.vocabulary, smollm2_dir), tools, mode, 1)
    params = SamplingParams(temperature=temperature, seed=3, top_k=50)
    plain, num_plain = answered(compiled, params, 5, drafts=False)
    drafted, num_drafted = answered(compiled, params, 5, drafts=True)
    assert drafted == plain
    assert num_plain == len(plain)
    ids = [one.token_id for one in plain]
    text = b"".join(compiled.tokens.spellings[token_id] for token_id in ids[:-1])
    assert len(judge(Answer(text, ids, 0), case, tools, mode)) == 1
    assert num_drafted < num_plain
    # What spells a stop inside a call does not end it; the end token stands outside.
    assert not plain[-1].is_inside


@pytest.mark.parametrize("mode", Mode, ids=lambda mode: mode.value)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_guesses_right_and_wrong_change_no_answer(case: Case, mode: Mode, smollm2_dir: Path) -> None:
    compiled = case.compile(fetched(case.vocabulary, smollm2_dir), TOOLS, mode)
    rows = torch.zeros((9, compiled.tokens.num_ids))
    for number in range(NUM_ANSWERS):
        rng = random.Random(f"{case.id} {mode.value} {number}")
        ids = [*drive(case, compiled, rng, is_adversarial=number % 2 == 1).ids, min(compiled.tokens.eos_ids)]
        scores = wanted(compiled, ids, rng)
        for guesses in (False, True):
            request = Request(cache_scope="s", token_ids=b"\1\0\0\0", sampling=GREEDY, fence=compiled)
            chooser, found = new_chooser(request, 0), list[int]()
            while len(found) < len(ids):
                right = ids[len(found) : len(found) + rng.randint(0, 6)]
                draft = [*right, *rng.choices(ids, k=rng.randint(0, 2))][: len(ids) - len(found) - 1] if guesses else []
                liked = scores[len(found) : len(found) + 1 + len(draft)]
                for row, score_by_id in zip(rows, liked, strict=False):
                    row[list(score_by_id)] = torch.tensor(list(score_by_id.values()))
                likeliest = [max(score_by_id, key=score_by_id.__getitem__) for score_by_id in liked]
                found += [one.token_id for one in chooser.choose(rows[: len(liked)], likeliest, draft)]
                assert not chooser.is_broken
                for row, score_by_id in zip(rows, liked, strict=False):
                    row[list(score_by_id)] = 0.0
            assert found == ids


def wanted(compiled: CompiledFence, ids: list[int], rng: random.Random) -> list[dict[int, float]]:
    """Scores by place: the likeliest legal token is the answer's next one, but mostly an illegal one is likelier."""
    scores: list[dict[int, float]] = []
    fence, traps = Fence(compiled), [*compiled.tokens.eos_ids, *compiled.program.marker_ids]
    for token_id in ids:
        allowed = fence.allowed()
        some = [rng.choice(traps), rng.randrange(compiled.tokens.num_ids)]
        scores.append({token_id: 1.0} | {trap: 2.0 for trap in some if not is_allowed(allowed, trap)})
        assert fence.push(token_id)
    return scores


class Refusing(Fence):
    """Takes nothing."""

    def push(self, token_id: int) -> bool:
        return False


def test_a_token_that_the_fence_does_not_take_breaks_this_output_alone(smollm2_dir: Path) -> None:
    compiled = CASES[2].compile(fetched("smollm2", smollm2_dir), TOOLS, Mode.REQUIRED)
    model, params = Model(compiled, 1), SamplingParams(temperature=0)
    broken, free = TokenChooser(Sampler(params), fence=Refusing(compiled)), TokenChooser(Sampler(params))
    rows = torch.stack([model.logits(0), model.logits(1), model.logits(0)])
    (first,), (other,) = choose_tokens(rows, [broken, free], [(3,), ()])
    assert first.is_broken
    assert not other.is_broken


def test_excluded_tokens_are_left_out_unless_nothing_else_is_allowed() -> None:
    logits = np.array([1.0, 5.0, 3.0, 2.0], dtype=np.float32)
    row = np.array([0b1110], dtype=np.uint32)
    assert masked(logits, Mask(row)).tolist() == [-np.inf, 5.0, 3.0, 2.0]
    assert masked(logits, Mask(row), {1}).tolist() == [-np.inf, -np.inf, 3.0, 2.0]
    assert masked(logits, Mask(row), {1, 2, 3}).tolist() == [-np.inf, 5.0, 3.0, 2.0]
    assert masked(logits, Ids(frozenset({0, 2})), {2}).tolist() == [1.0, -np.inf, -np.inf, -np.inf]
    assert masked(logits, Ids(frozenset({2})), {2}).tolist() == [-np.inf, -np.inf, 3.0, -np.inf]
    assert masked(logits, Free(), {1}).tolist() == [1.0, -np.inf, 3.0, 2.0]
    assert logits.tolist() == [1.0, 5.0, 3.0, 2.0]


@pytest.mark.parametrize("num_ids", [1, 31, 32, 33, 49_152])
def test_the_legal_logits_stay_as_they_are_and_the_others_are_out(num_ids: int) -> None:
    rng = np.random.default_rng(num_ids)
    logits = rng.normal(size=num_ids).astype(np.float32)
    logits[::7] = -np.inf
    bits = rng.integers(0, 2**32, size=-(-num_ids // 32), dtype=np.uint32)
    legal = [bool(int(bits[at >> 5]) >> (at & 31) & 1) for at in range(num_ids)]
    assert np.array_equal(masked(logits, Mask(bits)), np.where(legal, logits, -np.inf))


def test_a_masked_token_is_never_drawn() -> None:
    rng = random.Random(1)
    for _ in range(300):
        logits = np.full(8, -np.inf, dtype=np.float32)
        legal = rng.sample(range(8), rng.randint(1, 4))
        logits[legal] = 1.0
        top_k, top_p = rng.choice([None, 3, 8]), rng.choice([0.5, 1.0])
        params = SamplingParams(temperature=2.0, top_k=top_k, top_p=top_p, seed=rng.randint(0, 99))
        assert Sampler(params).draw(logits) in legal
