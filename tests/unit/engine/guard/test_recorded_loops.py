"""The guard ends loops as models make them.

In ``loops/`` a form feed stands where the loop begins. What follows goes on whatever the guard excludes, as a model
does that finds its way back. The texts named recorded_ are of the default model (greedy, 520 tokens, its end tokens
masked), carried on by their last period; the others are written after reports of larger models.
"""

from pathlib import Path

import pytest

from services.engine.guard.lexicon import Lexicon
from services.engine.guard.loop_guard import Action, LoopGuard, LoopKind
from services.engine.guard.rules import Region
from tests.unit.engine.guard.encoding import Encode

LOOPS = {path.stem: path for path in sorted((Path(__file__).parent / "loops").glob("*.txt"))}

FOUND_BY_NAME = {
    # kind, tokens of the loop at the first intervention and at the end
    "recorded_animal": (LoopKind.PATTERN, 114, 258),
    "recorded_answer": (LoopKind.PATTERN, 394, 538),
    "recorded_offer": (LoopKind.PATTERN, 175, 319),
    "recorded_recursion": (LoopKind.PATTERN, 148, 348),
    "token": (LoopKind.TOKEN, 201, 345),
    "sentence": (LoopKind.PATTERN, 170, 314),
    "paragraph": (LoopKind.PATTERN, 372, 516),
    "closers": (LoopKind.PATTERN, 776, 920),
    "table_row": (LoopKind.PATTERN, 780, 924),
    "restart_numbers": (LoopKind.RESTART, 468, 617),
    "restart_plan": (LoopKind.RESTART, 655, 799),
    "restart_reworded": (LoopKind.RESTART, 662, 806),
    "restart_sums": (LoopKind.RESTART, 402, 546),
}


def interventions(path: Path, lexicon: Lexicon, encode: Encode, region: Region) -> list[tuple[LoopKind, Action, int]]:
    """Kind, action and tokens of the loop, up to the end of the region."""
    intro, loop = map(encode, path.read_text().split("\f"))
    guard, found = LoopGuard(lexicon), list[tuple[LoopKind, Action, int]]()
    for length, token_id in enumerate(intro + loop, 1 - len(intro)):
        guard.push(token_id, region)
        verdict = guard.verdict
        if verdict.kind is not None:
            found.append((verdict.kind, verdict.action, length))
        if verdict.action in (Action.CLOSE_REASONING, Action.END):
            break
    return found


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_is_found_and_ended(name: str, lexicon: Lexicon, encode: Encode):
    found = interventions(LOOPS[name], lexicon, encode, Region.PROSE)
    assert [action for _, action, _ in found] == [Action.EXCLUDE] * 3 + [Action.END]
    assert (found[0][0], found[0][2], found[-1][2]) == FOUND_BY_NAME[name]


@pytest.mark.parametrize("name", LOOPS)
def test_thinking_that_loops_is_closed(name: str, lexicon: Lexicon, encode: Encode):
    found = interventions(LOOPS[name], lexicon, encode, Region.REASONING)
    assert [action for _, action, _ in found] == [Action.EXCLUDE] * 3 + [Action.CLOSE_REASONING]


@pytest.mark.parametrize("name", LOOPS)
def test_an_argument_is_never_ended(name: str, lexicon: Lexicon, encode: Encode):
    found = interventions(LOOPS[name], lexicon, encode, Region.ARGUMENT)
    assert {action for _, action, _ in found} <= {Action.EXCLUDE}
