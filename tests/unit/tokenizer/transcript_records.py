"""Records for tests."""

import numpy as np

from services.tokenizer.conversation import Call
from services.tokenizer.history.record import Record, RecordKey, record_key
from services.tokenizer.rope.prompt_text import TokenIds


def token_ids(*ids: int) -> TokenIds:
    return np.array(ids, dtype="<i4")


def call(arguments: str = '{"path": "a.txt"}', call_id: str = "call_1", name: str = "read", **more: bool) -> Call:
    return Call(call_id, name, arguments, **more)


def record(*calls: Call, content: str = "Let me look.", text: str = "", ids: tuple[int, ...] = (5, 6, 7)) -> Record:
    return Record(text or f"<think>\nhm\n</think>\n{content}", token_ids(*ids), content, "hm", calls)


def place(name: str = "a", content: str = "Let me look.") -> RecordKey:
    return record_key("scope", name.encode(), content)
