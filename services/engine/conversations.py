"""Which requests are turns of one conversation, what each waits for, and which branches are dead.

A conversation is a cache scope and a key. The key is a hint: sub-agents of one session may share it, and so may
conversations that merely begin alike. So a request is told to continue a branch by its tokens, of which only digests
are kept: at the ends of turns, and at the prompts of all turns but the first. A request that holds all tokens of a
branch's last turn continues it; how long it took is what others learn from. One that holds an earlier mark, but no last
turn, is a rewound or edited conversation: the branches that had that mark in common are abandoned. One that holds no
mark, or that comes while its branch's turn still runs, begins a branch beside the others.

None of this decides what is reused, only what is evicted first.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from services.engine.node import TOKEN_BYTES, Node
from services.engine.owner import EVERYONE, Owner
from services.engine.prefix_tree import PrefixTree
from services.engine.sequence import Sequence
from services.engine.wait_times import Wait, WaitTimes

_MAX_CONVERSATIONS = 4_096
_MAX_BRANCHES = 8
_MAX_MARKS = 32
"""Of a branch, the last ones: a rewind to before them is a new branch."""
_PROMPT_SLACK_TOKENS = 16
"""A prompt's mark lies so far before its end: templates write the last tokens anew once there is an answer."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A prefix of a branch."""

    num_tokens: int
    digest: bytes


class Branch(Owner):
    """One line of a conversation. Fields are read by anyone and written by ``Conversations`` only."""

    __slots__ = ("conversation", "ended_s", "marks", "turn", "wait_classes")

    def __init__(self, conversation: Conversation, marks: Iterable[Mark] = ()) -> None:
        super().__init__(conversation)
        self.conversation = conversation
        self.marks = list(marks)  # ascending; the last one is the end of the last turn
        self.turn: Sequence | None = None  # the one that runs or waits
        self.ended_s = 0.0
        self.wait_classes: tuple[str, ...] = ()  # of the wait under way, known or not


class Conversation(Owner):
    """All branches under one key that are not over, the one that began last being last."""

    __slots__ = ("branches", "cache_scope", "debris")

    def __init__(self, cache_scope: str) -> None:
        super().__init__(EVERYONE)
        self.cache_scope = cache_scope
        self.branches: list[Branch] = []
        self.debris = Owner(self)  # of what no branch goes on from
        self.debris.is_over = True


@dataclass(slots=True)
class Conversations:
    """Owned by the step loop's task. Bounded: of many conversations, those that ran last."""

    tree: PrefixTree
    clock: Callable[[], float]
    waits: WaitTimes = field(default_factory=WaitTimes)
    _by_key: OrderedDict[tuple[str, str], Conversation] = field(
        default_factory=OrderedDict[tuple[str, str], Conversation]
    )

    def arrived(self, sequence: Sequence) -> None:
        """A request has come: find out whose its blocks are. Hashes the prompt once. ``left`` must follow."""
        request = sequence.request
        if not request.conversation_key:
            return
        key = request.cache_scope, request.conversation_key
        conversation = self._by_key.setdefault(key, Conversation(request.cache_scope))
        self._by_key.move_to_end(key)
        if len(self._by_key) > _MAX_CONVERSATIONS:
            for branch in self._by_key.popitem(last=False)[1].branches:
                self._end_wait(branch, None)
        branch = self._branch(conversation, request.token_ids, sequence.times.arrived_s)
        branch.turn = sequence
        sequence.owner = branch

    def ended(self, sequence: Sequence, node: Node, num_tokens: int) -> None:
        """A turn has ended with a terminal state of ``num_tokens`` tokens, whose last block is ``node``."""
        branch = sequence.owner
        if not isinstance(branch, Branch) or branch.turn is not sequence:
            return
        prompt = sequence.num_prompt - _PROMPT_SLACK_TOKENS if branch.marks else 0
        found = _marks(sequence.ids(0, num_tokens), (max(0, min(prompt, num_tokens)), num_tokens))
        branch.marks = sorted({*branch.marks, *found}, key=lambda mark: mark.num_tokens)[-_MAX_MARKS:]
        branch.ended_s = self.clock()
        branch.turn = None
        self.tree.abandon(branch, node, branch.conversation.debris)

    def left(self, sequence: Sequence) -> None:
        """A request is over, whether or not its turn has ended."""
        branch = sequence.owner
        if isinstance(branch, Branch) and branch.turn is sequence:
            branch.turn = None

    def annotate(self, cache_scope: str, conversation_key: str, wait_classes: Collection[str]) -> None:
        """What the turn that ended last waits for; of no effect where that is over already."""
        conversation = self._by_key.get((cache_scope, conversation_key))
        ended = [b for b in conversation.branches if b.marks] if conversation is not None else []
        branch = max(ended, key=lambda branch: branch.ended_s, default=None)
        if branch is None or branch.turn is not None:
            return
        branch.wait_classes = tuple(sorted(set(wait_classes)))
        estimate = self.waits.estimate(cache_scope, branch.wait_classes) if branch.wait_classes else None
        self._set_wait(branch, None if estimate is None else Wait(estimate, branch.ended_s))

    def release(self, cache_scope: str, conversation_key: str) -> Conversation | None:
        """The conversation is over: its private blocks go first from now on. None where it is not known."""
        conversation = self._by_key.pop((cache_scope, conversation_key), None)
        if conversation is not None:
            for branch in conversation.branches:
                self._abandon(branch)
            conversation.is_over = True
            self.tree.reconsider(conversation)
        return conversation

    def forget(self, cache_scopes: Collection[str]) -> None:
        """After a flush: of these scopes nothing is cached. What was learnt of their waits stays."""
        for key in [key for key in self._by_key if key[0] in cache_scopes]:
            for branch in self._by_key.pop(key).branches:
                branch.wait_classes = ()
                self._set_wait(branch, None)

    def _branch(self, conversation: Conversation, token_ids: bytes, arrived_s: float) -> Branch:
        branches = conversation.branches
        num_tokens = len(token_ids) // TOKEN_BYTES
        places = {mark.num_tokens for branch in branches for mark in branch.marks if mark.num_tokens <= num_tokens}
        held = set(_marks(token_ids, places))
        continued = [branch for branch in branches if branch.marks and branch.marks[-1] in held]
        if continued:
            branch = max(continued, key=lambda branch: (branch.marks[-1].num_tokens, branch.turn is None))
            if branch.turn is not None:
                return self._added(conversation, branch.marks)
            self._end_wait(branch, max(0.0, arrived_s - branch.ended_s))
            return branch
        common = max((m for b in branches for m in b.marks if m in held), key=lambda m: m.num_tokens, default=None)
        if common is None:
            return self._added(conversation, ())
        related = [branch for branch in branches if common in branch.marks]
        for branch in related:
            if branch.turn is None:
                self._abandon(branch)
                branches.remove(branch)
        added = self._added(conversation, (m for m in related[0].marks if m.num_tokens <= common.num_tokens))
        # What it shares with them is its own from now on, and stays when they go.
        match = self.tree.match(self.tree.root(conversation.cache_scope), token_ids, num_tokens)
        if match.path:
            self.tree.claim(match.path[-1], added)
        return added

    def _added(self, conversation: Conversation, marks: Iterable[Mark]) -> Branch:
        branch = Branch(conversation, marks)
        conversation.branches.append(branch)
        if len(conversation.branches) > _MAX_BRANCHES:
            self._end_wait(conversation.branches.pop(0), None)
        return branch

    def _abandon(self, branch: Branch) -> None:
        self._end_wait(branch, None)
        branch.is_over = True
        self.tree.reconsider(branch)

    def _end_wait(self, branch: Branch, waited_s: float | None) -> None:
        """Learn from it; None: nobody came back."""
        if branch.wait_classes:
            self.waits.observe(branch.conversation.cache_scope, branch.wait_classes, waited_s)
            branch.wait_classes = ()
        self._set_wait(branch, None)

    def _set_wait(self, branch: Branch, wait: Wait | None) -> None:
        if branch.wait is not wait:
            branch.wait = wait
            self.tree.reconsider(branch)


def _marks(token_ids: bytes, places: Collection[int]) -> list[Mark]:
    """Marks of the prefixes with so many tokens, in one pass; none for no tokens at all."""
    digest = hashlib.blake2b(digest_size=16)
    view, position, marks = memoryview(token_ids), 0, list[Mark]()
    for num_tokens in sorted(set(places)):
        digest.update(view[position * TOKEN_BYTES : num_tokens * TOKEN_BYTES])
        position = num_tokens
        if num_tokens:
            marks.append(Mark(num_tokens, digest.copy().digest()))
    return marks
