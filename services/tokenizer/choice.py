"""One choice of an answer: sampled ids become text, text becomes events, and all of it becomes a record.

ids → text (detokenize.py) → thinking, text and calls (a dialect's parser, in attribution.py) → events
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from services.tokenizer.attribution import AttributingParser
from services.tokenizer.conversation import Call
from services.tokenizer.detokenize import PlacedLogprobs, TextStream, decode
from services.tokenizer.dialects import events as parsed
from services.tokenizer.dialects.dialect import StreamParser
from services.tokenizer.dialects.events import ToolSpec
from services.tokenizer.events import (
    AnswerEvent,
    CallDelta,
    CallFinished,
    CallStarted,
    ReasoningDelta,
    ReasoningFinished,
    TextDelta,
    TokenLogprobs,
)
from services.tokenizer.fence.fence import Fence
from services.tokenizer.history.call_ids import mint_call_id
from services.tokenizer.history.record import Record
from services.tokenizer.thought import record_of_thought
from services.vocabulary import Vocabulary

Seal = Callable[[Record], bytes]
"""A capsule of a record, for the client; empty where there is none."""


class Choice:
    """What one choice has come to. ``parser`` None: all text is answer text."""

    def __init__(
        self,
        index: int,
        vocabulary: Vocabulary,
        hidden_ids: frozenset[int],
        stop_texts: Sequence[str],
        parser: StreamParser | None,
        seal: Seal,
        tool_by_name: Mapping[str, ToolSpec],
    ) -> None:
        self._index = index
        self._vocabulary = vocabulary
        self._hidden_ids = hidden_ids
        self._stream = TextStream(vocabulary, hidden_ids, stop_texts)
        self._parser = AttributingParser(parser)
        self._seal = seal
        self._tool_by_name = tool_by_name
        self._is_thinking = False
        """Thinking has come, and its end has not been told."""
        self._is_legible = True
        """All that the client got is in text and calls: the next prompt may have the ids in their place."""
        self._ids: list[int] = []
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._text: list[str] = []
        self._started: dict[int, parsed.CallStarted] = {}
        self._id_by_call: dict[int, str] = {}
        self._calls: dict[int, Call] = {}
        self.warnings: list[str] = []
        self.num_reasoning_tokens = 0
        """Of the thinking that has ended, its tags included."""

    @property
    def stop_text(self) -> str | None:
        """The stop text that ended it."""
        return self._stream.stop_text

    @property
    def calls(self) -> Mapping[int, Call]:
        """The complete ones by index."""
        return self._calls

    @property
    def text(self) -> str:
        """Of the answer, without thinking and calls."""
        return "".join(self._content)

    def keeps(self, fence: Fence) -> bool:
        """Whether all calls are ones that ``fence`` has seen."""
        names = {call.name for call in self._calls.values()}
        # A call of another tool may be what free text had before the program began.
        return not names or (names <= fence.tool_names and fence.has_begun(self._ids, "".join(self._text)))

    def push(self, ids: Sequence[int], logprobs: Sequence[TokenLogprobs]) -> list[AnswerEvent]:
        """Events of newly sampled ids."""
        self._ids += ids
        text, certain = self._stream.push(ids, logprobs)
        return self._read(text, certain, is_final=False)

    def finish(self) -> list[AnswerEvent]:
        """Events of what was held back."""
        text, certain = self._stream.finish()
        return self._read(text, certain, is_final=True)

    def record(self) -> Record | None:
        """The segment for the next prompt; None where its ids do not spell what the client got.

        Without the end token, and without what a stop text cut off where that ends between two tokens.
        """
        ids = list(self._ids)
        while ids and ids[-1] in self._hidden_ids:
            ids.pop()
        if self.stop_text is not None:
            ids = ids[: self._num_ids_of_text(ids)]
            # A stop text may begin inside a token, and what is no UTF-8 has another length as text.
            if decode(self._vocabulary, (i for i in ids if i not in self._hidden_ids)) != "".join(self._text):
                return None
        if not ids or not self._is_legible or len(self._started) != len(self._calls):
            return None
        return Record(
            text=decode(self._vocabulary, ids),
            ids=np.array(ids, dtype=np.int32),
            content="".join(self._content),
            reasoning="".join(self._reasoning),
            calls=tuple(self._calls[index] for index in sorted(self._calls)),
        )

    def _num_ids_of_text(self, ids: Sequence[int]) -> int:
        """How many of the first ids spell as many bytes as the text before the stop has."""
        num_missing = sum(len(text.encode()) for text in self._text)
        for count, token_id in enumerate(ids):
            if num_missing <= 0:
                return count
            num_missing -= 0 if token_id in self._hidden_ids else len(self._vocabulary.spell(token_id))
        return len(ids)

    def _read(self, text: str, logprobs: Sequence[PlacedLogprobs], *, is_final: bool) -> list[AnswerEvent]:
        self._text.append(text)
        found = self._parser.push(text, logprobs)
        if is_final:
            found += self._parser.finish()
        events: list[AnswerEvent] = []
        for one, belonging in found:
            if not isinstance(one, parsed.Reasoning):
                events += self._end_thinking()
            events += self._event(one, belonging)
        if is_final:
            events += self._end_thinking()
        return _joined(events)

    def _end_thinking(self) -> list[AnswerEvent]:
        if not self._is_thinking:
            return []
        self._is_thinking = False
        text, reasoning = "".join(self._text), "".join(self._reasoning)
        record = record_of_thought(self._ids, text, reasoning, self._vocabulary, self._hidden_ids)
        self.num_reasoning_tokens = len(record.ids)
        return [ReasoningFinished(self._index, self._seal(record))]

    def _event(self, event: parsed.ParseEvent, logprobs: tuple[TokenLogprobs, ...]) -> list[AnswerEvent]:
        choice = self._index
        match event:
            case parsed.Reasoning():
                self._reasoning.append(event.text)
                self._is_thinking = True
                return [ReasoningDelta(choice, event.text)]
            case parsed.Text():
                self._content.append(event.text)
                return [TextDelta(choice, event.text, logprobs)]
            case parsed.CallStarted():
                self._started[event.index] = event
                call_id = self._id_by_call[event.index] = mint_call_id()
                tool = self._tool_by_name.get(event.name)
                namespace, name = (None, event.name) if tool is None else (tool.namespace, tool.bare_name)
                return [CallStarted(choice, event.index, call_id, namespace, name, event.is_custom)]
            case parsed.CallDelta():
                return [CallDelta(choice, event.index, event.fragment)]
            case parsed.CallFinished():
                started = self._started[event.index]
                self._calls[event.index] = Call(
                    self._id_by_call[event.index], started.name, event.arguments, started.is_custom
                )
                return [CallFinished(choice, event.index, event.arguments)]
            case parsed.Malformed():
                self.warnings.append(f"a tool call could not be read: {event.reason}")
                self._is_legible = False
                if len(self._started) > len(self._calls):
                    return []
                # No call has begun to come out of it, so it may be prose about calls: nothing of that is lost.
                self._content.append(event.text)
                return [TextDelta(choice, event.text, logprobs)]
            case parsed.Withheld():
                self.warnings.append(f"a call of {event.name} was left out: the request allows no calls")
                return []


def _joined(events: list[AnswerEvent]) -> list[AnswerEvent]:
    """As few events as say the same: neighbours of one kind become one."""
    joined: list[AnswerEvent] = []
    for event in events:
        last = joined[-1] if joined else None
        if isinstance(event, TextDelta) and isinstance(last, TextDelta):
            joined[-1] = TextDelta(event.choice, last.text + event.text, last.logprobs + event.logprobs)
        elif isinstance(event, ReasoningDelta) and isinstance(last, ReasoningDelta):
            joined[-1] = ReasoningDelta(event.choice, last.text + event.text)
        elif isinstance(event, CallDelta) and isinstance(last, CallDelta) and event.index == last.index:
            joined[-1] = CallDelta(event.choice, event.index, last.fragment + event.fragment)
        else:
            joined.append(event)
    return joined
