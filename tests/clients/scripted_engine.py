"""The real engine with a model that says what ``script`` says: only the choice of tokens is replaced.

Prefix tree, blocks, disk tier and accounting are the real ones; the model is a tiny random one with the default model's
vocabulary. Every finished request becomes one line of JSON in the file named by the environment.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
from fencepost.engine.v1 import engine_pb2 as pb
from tokenizers import Tokenizer

from services import process
from services.engine import assembly, core
from services.engine.config import EngineConfig
from services.engine.request import Sampled
from services.engine.runner import Work, run, work_of
from services.engine.servicer import EngineServicer
from services.engine.step import Plan
from tests.clients import script

LOG_VARIABLE = "SCRIPTED_ENGINE_LOG"
THINKS_VARIABLE = "SCRIPTED_ENGINE_THINKS"
_END = "<|im_end|>"


class Script:
    """Answers by prompt, and the next token of each running sequence."""

    def __init__(self, tokenizer: Tokenizer, *, thinks: bool) -> None:
        self._tokenizer = tokenizer
        self._thinks = thinks
        self._ids_by_prompt: dict[bytes, list[int]] = {}
        self._rows_by_work: dict[int, list[tuple[bytes, int]]] = {}

    def answer_to(self, prompt: bytes) -> list[int]:
        """The whole answer's ids, its end token included."""
        if prompt not in self._ids_by_prompt:
            ids = np.frombuffer(prompt, "<i4").tolist()
            text = script.reply(self._tokenizer.decode(ids, skip_special_tokens=False), thinks=self._thinks)
            self._ids_by_prompt[prompt] = self._tokenizer.encode(text + _END).ids
        return self._ids_by_prompt[prompt]

    def text_of(self, prompt: bytes) -> str:
        return self._tokenizer.decode(self.answer_to(prompt))

    def work_of(self, plan: Plan) -> Work:
        """As the runner's, noting which answer each sampled token belongs to, and how far it is."""
        work = work_of(plan)
        sampling = [row.sequence for row in plan.rows if row.samples]
        self._rows_by_work[id(work)] = [(sequence.request.token_ids, sequence.num_output) for sequence in sampling]
        return work

    def run(self, runtime: Any, work: Work) -> list[tuple[Sampled, ...]]:
        """As the runner's, with other tokens."""
        run(runtime, work)
        rows = zip(self._rows_by_work.pop(id(work)), work.drafts, strict=True)
        return [self._verified(self.answer_to(prompt)[position:], draft) for (prompt, position), draft in rows]

    def _verified(self, answer: list[int], draft: tuple[int, ...]) -> tuple[Sampled, ...]:
        num_right = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(answer, draft, strict=False)))
        return tuple(map(Sampled, answer[: num_right + 1]))


class LoggingServicer(EngineServicer):
    """Notes what each request cost."""

    script: Script
    log_path: Path

    async def Generate(self, request: pb.GenerateRequest, context: Any) -> AsyncIterator[pb.GenerateResponse]:
        async for event in super().Generate(request, context):
            if event.HasField("finished"):
                self._note(request, event.finished.usage)
            yield event

    def _note(self, request: pb.GenerateRequest, usage: pb.Usage) -> None:
        line = {
            "kind": script.kind_of(self.script.text_of(request.token_ids)),
            "prompt": usage.prompt_tokens,
            "output": usage.output_tokens,
            "cached": {pb.Tier.Name(entry.tier): entry.tokens for entry in usage.cached.by_tier},
            "background": request.priority == pb.PRIORITY_BACKGROUND,
        }
        with self.log_path.open("a") as log:
            log.write(json.dumps(line) + "\n")


def main(argv: Sequence[str]) -> int:
    model = Path(argv[argv.index("--model") + 1])
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    scripted = Script(tokenizer, thinks=bool(os.environ.get(THINKS_VARIABLE)))
    LoggingServicer.script = scripted
    LoggingServicer.log_path = Path(os.environ[LOG_VARIABLE])
    core.run, core.work_of = scripted.run, scripted.work_of
    assembly.EngineServicer = LoggingServicer
    return process.main("engine", EngineConfig, assembly.build, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
