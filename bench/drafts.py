"""What drafts gain in four kinds of answers of the default model: decoded tokens a second, drafts on against off.

One process with one thread, without services; each round plays every kind both ways. The last line is one JSON object:
the medians over rounds of off over on, in processor time for a token.

    python -m bench.drafts [--json] [--rounds 5] [--tokens 120] [--at-once 1]
"""

from __future__ import annotations

import argparse
import json
import statistics

from services.engine.request import SamplingParams
from services.models.store import DEFAULT_MODEL, resolve
from tests.integration.step_loop import MAX_PROMPTS, QUESTIONS, StepLoop


def main() -> None:
    parser = argparse.ArgumentParser(description="What drafts gain.")
    parser.add_argument("--json", action="store_true", help="print only the last line")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=120, help="longest answer")
    parser.add_argument("--at-once", type=int, default=1, choices=range(1, MAX_PROMPTS + 1), help="answers at once")
    options = parser.parse_args()
    loop = StepLoop(resolve(DEFAULT_MODEL), threads=1)
    sampling = SamplingParams(temperature=0, max_tokens=options.tokens)
    gains: dict[str, list[float]] = {kind: [] for kind in QUESTIONS}
    for number in range(options.rounds + 1):
        for kind, (question, answer) in QUESTIONS.items():
            prompts = [loop.prompt(question, answer)] * options.at_once
            ways = [number % 2 == 0, number % 2 == 1]
            played = {drafts: loop.play(prompts, sampling, drafts=drafts) for drafts in ways}
            on, off = played[True], played[False]
            gain = off.seconds / off.num_decoded / (on.seconds / on.num_decoded)
            if number:  # the first round warms up
                gains[kind].append(gain)
            if not options.json:
                accepted, drafted = (
                    sum(getattr(s, name) for s in on.sequences) for name in ("num_accepted", "num_drafted")
                )
                print(
                    f"{kind}: {gain:.2f}, {on.num_steps} steps for {off.num_steps}, {accepted} of {drafted}", flush=True
                )
    print(json.dumps({kind: round(statistics.median(values), 2) for kind, values in gains.items()}))


if __name__ == "__main__":
    main()
