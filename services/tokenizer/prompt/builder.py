"""Conversation → prompt ids, with every earlier answer as the model wrote it.

    layout (what stands where) → literal ranges → turns spliced from history → rope encoder

A turn is looked up under the digest of all ids before it. So turns are settled from the first to the last, and what is
spliced into one decides the place of the next.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from services.tokenizer.config import PARSE, REJECT
from services.tokenizer.conversation import Conversation, Message, Role, ToolMode
from services.tokenizer.dialects.call_free import CallFreeParser
from services.tokenizer.dialects.dialect import Dialect, StreamParser
from services.tokenizer.dialects.plain import PlainParser
from services.tokenizer.errors import InvalidRequestError, PromptTooLargeError, UnsupportedError
from services.tokenizer.fence.fence import Fence, Fences, PromptEnd, follows_text
from services.tokenizer.history.history import History, count_segment
from services.tokenizer.history.record import Chain, Record, RecordKey, record_key
from services.tokenizer.history.splices import Decisions, Spliced, Splices, splice_turn
from services.tokenizer.history.unsealed import Unsealed, unseal
from services.tokenizer.prompt.appending import AppendingWriter, AppendLimits
from services.tokenizer.prompt.continuation import continued
from services.tokenizer.prompt.layout import Layout, PromptWriter
from services.tokenizer.prompt.output_advice import format_warnings, with_advice
from services.tokenizer.prompt.spellings import Ranges, first_spelling
from services.tokenizer.rope.encoded import Encoded
from services.tokenizer.rope.encoder import RopeEncoder
from services.tokenizer.rope.prompt_text import PromptText, TokenIds
from services.tokenizer.routing import Routing

_APPEND_LIMITS = AppendLimits()


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the model is to read, and what its answer will hang from."""

    encoded: Encoded
    layout: Layout | None
    """None for plain text. Its text is the rendering; ``encoded.prompt`` is what came of it."""
    moved: tuple[tuple[int, int], ...]
    """(character of the rendering, by how much what follows it has moved), from splices of another length."""
    encoded_ms: float
    """Wall time of rendering and encoding."""
    warnings: tuple[str, ...] = ()
    """What of the request was not done as it was asked, for people."""
    fence: Fence | None = None
    """What the answer must be like; None: anything."""

    @property
    def ids(self) -> TokenIds:
        """The ids."""
        return self.encoded.ids

    @property
    def starts_in_reasoning(self) -> bool:
        """Whether the answer goes on with thinking that the generation prompt has opened."""
        return self.layout is not None and _opens_thinking(self.layout.generation_prompt)


_INLINE_THINKING = re.compile(r"\s*<think>\n?(.*?)\n?</think>\n*", re.DOTALL)


class PromptBuilder:
    """One model's. Its methods block: they belong in the pool."""

    def __init__(
        self,
        rope: RopeEncoder,
        writer: PromptWriter | None,
        dialect: Dialect,
        history: History | None,
        *,
        fingerprint: str,
        spellings: re.Pattern[str] | None,
        content_policy: str,
        max_prompt_bytes: int,
        has_reasoning: bool,
        fences: Fences | None = None,
        append_limits: AppendLimits = _APPEND_LIMITS,
    ) -> None:
        """``writer`` None: the model has no chat template. ``history`` None: every turn is encoded anew. ``fences``
        None: nothing about an answer is enforced, and what asks for that is refused."""
        self._rope = rope
        self._writer = None if writer is None else AppendingWriter(writer, append_limits)
        self._dialect = dialect
        self._history = history
        self._fingerprint = fingerprint
        self._spellings = spellings
        self._content_policy = content_policy
        self._max_prompt_bytes = max_prompt_bytes
        self._has_reasoning = has_reasoning
        self._fences = fences
        self._decisions = Decisions()

    @property
    def is_certified(self) -> bool:
        """Whether the rope cache is proven for this tokenizer."""
        return self._rope.is_certified

    def build(self, source: Conversation | str, routing: Routing) -> Prompt:
        """Raises InvalidRequestError and its kin, naming the field."""
        started = time.perf_counter()
        anchor = f"{len(routing.tenant)}:{routing.tenant}{routing.conversation_key}"
        if isinstance(source, str):
            self._check_size(source, "text")
            encoded, layout, moved, warnings = self._rope.encode(PromptText(source), anchor), None, (), ()
            fence = None
        else:
            if self._writer is None:
                raise InvalidRequestError("conversation", "this model has no chat template; send text")
            if self._fences is None and source.limits_calls:
                raise UnsupportedError(
                    "conversation.tool_choice", "a tool_choice that requires calls or limits tools is not supported yet"
                )
            unsealed = self._unsealed(source, routing.tenant)
            source = self._with_recalled_thinking(self._with_thinking_apart(unsealed.source), routing)
            layout, settled = self._write(self._writer, with_advice(source), unsealed.thoughts, routing, anchor)
            for outcome, reason in settled.outcomes:
                count_segment(outcome, reason)
            encoded, moved = settled.encoded, settled.moved
            fence, fence_warnings = self._fence(source, layout)
            warnings = (*unsealed.warnings, *fence_warnings)
        if not len(encoded.ids):
            raise InvalidRequestError("text" if layout is None else "conversation", "the prompt has no tokens")
        return Prompt(encoded, layout, moved, (time.perf_counter() - started) * 1e3, warnings, fence)

    def _fence(self, source: Conversation, layout: Layout) -> tuple[Fence | None, tuple[str, ...]]:
        """And what is to be said of it. Raises InvalidRequestError where no answer could be right."""
        if self._fences is None:
            return None, format_warnings(source)
        generation_prompt = layout.generation_prompt
        starts_in_reasoning = _opens_thinking(generation_prompt)
        is_continued = follows_text(source)
        may_think = self._has_reasoning and not is_continued and source.enable_thinking is not False
        may_think = may_think and not starts_in_reasoning and "</think>" not in generation_prompt
        end = PromptEnd(starts_in_reasoning, may_think, is_continued)
        fence = self._fences.derive(source, end)
        advised = () if self._fences.keeps_format(source, end) else format_warnings(source)
        return fence, (*advised, *(() if fence is None else fence.warnings))

    def new_parser(self, source: Conversation | str, prompt: Prompt) -> StreamParser | None:
        """A parser for one choice of the answer; None where all of it is text."""
        if isinstance(source, str):
            return None
        if source.tools:
            parser = self._dialect.parser(
                source.tools,
                starts_in_reasoning=prompt.starts_in_reasoning,
                calls_end_thinking=prompt.fence is None or not prompt.fence.marks_thinking,
            )
            return CallFreeParser(parser) if source.tool_mode is ToolMode.NONE else parser
        if self._has_reasoning or prompt.starts_in_reasoning:
            return PlainParser(starts_in_reasoning=prompt.starts_in_reasoning)
        return None

    def key_of(self, prompt: Prompt, routing: Routing, record: Record) -> RecordKey:
        """Where an answer's record will be looked for."""
        return self._place(routing, prompt.ids, record.content)

    def _place(self, routing: Routing, ids_before: TokenIds, content: str) -> RecordKey:
        chain = Chain(self._fingerprint)
        chain.update(ids_before)
        return record_key(routing.cache_scope, chain.digest(), content)

    def _check_size(self, text: str, field: str) -> None:
        try:
            num_bytes = len(text.encode())
        except UnicodeEncodeError:
            raise InvalidRequestError(field, "the prompt is not valid Unicode (a lone surrogate)") from None
        if num_bytes > self._max_prompt_bytes:
            raise PromptTooLargeError(
                field, f"the prompt has {num_bytes} bytes; at most {self._max_prompt_bytes} are taken"
            )

    def _unsealed(self, source: Conversation, tenant: str) -> Unsealed:
        history = self._history
        return unseal(source, lambda capsule: None if history is None else history.unseal(tenant, capsule))

    def _with_thinking_apart(self, source: Conversation) -> Conversation:
        """Take thinking that a client sent back inside an answer's text out of it: templates expect it beside."""
        if not self._has_reasoning:
            return source
        messages: list[Message] = []
        for message in source.messages:
            inline = _INLINE_THINKING.match(message.content) if message.role is Role.ASSISTANT else None
            if inline is not None and not message.reasoning:
                message = replace(message, reasoning=inline[1], content=message.content[inline.end() :])
            messages.append(message)
        return replace(source, messages=tuple(messages))

    def _with_recalled_thinking(self, source: Conversation, routing: Routing) -> Conversation:
        """Give the template the thinking that clients do not send back, so that it can keep it where it would."""
        if self._history is None or not self._has_reasoning:
            return source
        messages: list[Message] = []
        for message in source.messages:
            if message.role is Role.ASSISTANT and not message.reasoning:
                record = self._history.recall(routing.tenant, message)
                if record is not None and record.reasoning:
                    message = replace(message, reasoning=record.reasoning)
            messages.append(message)
        return replace(source, messages=tuple(messages))

    def _literals(self, source: Conversation, layout: Layout) -> Ranges:
        spellings = self._spellings
        if spellings is None or self._content_policy == PARSE:
            return ()
        assert self._writer is not None
        spelt = first_spelling(source, spellings)
        if spelt is None:
            return ()
        if self._content_policy == REJECT:
            raise InvalidRequestError("conversation.messages", f"a text spells the control token {spelt!r}")
        literals = self._writer.literals(source, layout.text, spellings)
        if literals is None:
            raise InvalidRequestError(
                "conversation.messages",
                f"a text spells the control token {spelt!r}, and this model's chat template depends on it",
            )
        return literals

    def _write(
        self,
        writer: AppendingWriter,
        source: Conversation,
        thoughts: Mapping[int, Record],
        routing: Routing,
        anchor: str,
    ) -> tuple[Layout, _Settled]:
        """Render and settle; once more where a record has thinking that the template was not given and would keep."""
        layout = writer.write(source, anchor)
        while True:
            self._check_size(layout.text, "conversation")
            literals = self._literals(source, layout)
            shown = continued(layout, source)
            settled = self._settle(source, shown, literals, thoughts, routing, anchor)
            if not settled.thinking:
                return shown, settled
            messages = list(source.messages)
            for index, thinking in settled.thinking.items():
                messages[index] = replace(messages[index], reasoning=thinking)
            source = replace(source, messages=tuple(messages))
            thoughtful = writer.write(source, anchor)
            if thoughtful.text == layout.text:
                return shown, settled
            layout = thoughtful

    def _settle(
        self,
        source: Conversation,
        layout: Layout,
        literals: Ranges,
        thoughts: Mapping[int, Record],
        routing: Routing,
        anchor: str,
    ) -> _Settled:
        """Splice what is known of the turns, in order, and encode."""
        splices = Splices(layout.text, tuple(r for r in literals if r[1] <= len(layout.text)))
        if self._history is None:
            return _Settled(self._rope.encode(splices.whole(), anchor), (), (), {})
        said = [one for one in source.messages if one.role is Role.ASSISTANT and (one.content or one.calls)]
        outcomes = [("rendered", "template") for _ in said[len(layout.turns) :]]
        known = self._decisions.reusable(anchor, routing.cache_scope, layout, literals)
        decided: list[Spliced | None] = []
        thinking: dict[int, str] = {}
        for index, turn in enumerate(layout.turns):
            message = source.messages[turn.message]
            if index < len(known):
                spliced = known[index]
                outcomes.append(("spliced" if spliced is not None else "rendered", "decided before"))
            else:
                written = layout.text[turn.start : turn.end]
                key = self._place(routing, self._rope.encode(splices.head(turn.start), anchor).ids, message.content)
                record, outcome = _look_up(self._history, routing, key, message)
                thought = "" if record is None else record.reasoning.strip()
                if record is not None and message.reasoning.strip() not in ("", thought):
                    record, outcome = None, ("diverged", "other thinking")
                elif record is not None and thought not in written:
                    if not message.reasoning:
                        thinking[turn.message] = record.reasoning
                    record, outcome = None, ("diverged", "template drops thinking")
                spliced = None if record is None else splice_turn(record, turn)
                if spliced is None and turn.message in thoughts:
                    spliced = self._history.beginning(thoughts[turn.message], written)
                    outcome = outcome if spliced is None else ("thinking", "capsule")
                outcomes.append(outcome)
            decided.append(spliced)
            if spliced is not None:
                splices.splice(turn, spliced)
        self._decisions.put(anchor, routing.cache_scope, layout, literals, decided)
        encoded = self._rope.encode(splices.whole(), anchor)
        return _Settled(encoded, tuple(splices.moved), tuple(outcomes), thinking)


def _opens_thinking(generation_prompt: str) -> bool:
    return generation_prompt.rstrip().endswith("<think>")


@dataclass(frozen=True, slots=True)
class _Settled:
    """A layout's ids, and what became of each turn."""

    encoded: Encoded
    moved: tuple[tuple[int, int], ...]
    outcomes: tuple[tuple[str, str], ...]
    """(outcome, reason)."""
    thinking: dict[int, str]
    """By message: what its record has, and neither the message nor the layout."""


def _look_up(
    history: History, routing: Routing, key: RecordKey, message: Message
) -> tuple[Record | None, tuple[str, str]]:
    """A turn's record, and (outcome, reason)."""
    found = history.find(routing, key, message)
    if found is not None:
        return found.record, ("spliced", found.source)
    divergence = history.divergence(routing.tenant, message)
    return None, ("rendered", "unknown") if divergence is None else ("diverged", divergence)
