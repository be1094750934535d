"""The text of one tool block while it is read: what is unread, where the block ends, and what to report of it."""

from __future__ import annotations

from services.tokenizer.dialects.events import Malformed, ParseEvent
from services.tokenizer.dialects.markers import Markers


class BlockText:
    """A cursor; once ``rest`` is there or ``is_broken`` says so, nothing more is taken from it."""

    def __init__(self, opening: str, closing: str, openings: tuple[str, ...]) -> None:
        """``opening`` is the block's own; any of ``openings`` begins the next block where ``closing`` is missing."""
        self._opening = opening
        self._closing = closing
        self._openings = openings
        self._ends = Markers([closing, *openings])
        self._received: list[str] = []
        self._reason: str | None = None
        self.unread = ""
        self.rest: str | None = None
        """What followed the block, once it is over."""

    @property
    def is_broken(self) -> bool:
        """The block cannot be read; the rest of it is skipped."""
        return self._reason is not None

    @property
    def is_readable(self) -> bool:
        """Neither over nor broken."""
        return self.rest is None and self._reason is None

    def add(self, text: str) -> None:
        """More text of the block, or of what follows it."""
        self._received.append(text)
        self.unread += text

    def take(self, num_chars: int) -> str:
        """Mark the next characters as read."""
        taken, self.unread = self.unread[:num_chars], self.unread[num_chars:]
        return taken

    def skip_space(self) -> None:
        """Whitespace between tags or JSON tokens."""
        self.unread = self.unread.lstrip()

    def break_off(self, reason: str) -> None:
        """Nothing more can be read from this block."""
        self._reason = reason

    def read_end(self, position: int, *, has_calls: bool, is_final: bool) -> list[ParseEvent]:
        """Decide about what stands at ``position`` of the unread text, between two calls, where no call begins.

        The closing tag, or the next block, ends the block; anything else ends it too if it has had a call (its
        closing tag is missing then), or breaks it. Where that is not certain yet, nothing happens.
        """
        following = self.unread[position:]
        if following.startswith(self._closing):
            return self._end(position + len(self._closing), has_calls=has_calls)
        if following.startswith(self._openings):
            return self._end(position, has_calls=has_calls)
        is_cut_off = any(tag.startswith(following) for tag in (self._closing, *self._openings))
        if is_cut_off:
            return self._end(len(self.unread), has_calls=has_calls) if is_final and has_calls else []
        if has_calls:
            space = self.unread[len(self.unread[:position].rstrip()) : position]
            self.unread = space + following
            return self._end(0, has_calls=True)
        self.break_off("it does not begin like a call")
        return []

    def skip(self, *, is_final: bool) -> list[ParseEvent]:
        """Skip a broken block up to its end."""
        split = self._ends.split(self.unread, is_final=is_final)
        self.unread = split.after
        if split.marker is None:
            return self.end_malformed(str(self._reason)) if is_final else []
        self.rest = split.after if split.marker == self._closing else split.marker + split.after
        return [self._malformed(str(self._reason))]

    def end_malformed(self, reason: str) -> list[ParseEvent]:
        """The answer is over in the middle of the block."""
        self.rest = ""
        return [self._malformed(reason)]

    def _end(self, position: int, *, has_calls: bool) -> list[ParseEvent]:
        self.rest = self.unread[position:]
        return [] if has_calls else [self._malformed("there is no call in it")]

    def _malformed(self, reason: str) -> Malformed:
        received = "".join(self._received)
        return Malformed(self._opening + received[: len(received) - len(self.rest or "")], reason)
