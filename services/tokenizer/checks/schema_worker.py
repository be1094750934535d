"""The process that holds values against JSON Schemas, for ``schema_checker.py``. Runs as a script.

Schemas are untrusted: a few lines of ``anyOf`` take hours, and no library can be stopped in the middle. So a check that
uses up its processor time, or its memory, ends this process, and nothing else. Nothing is ever fetched.

One JSON object a line: ``{"schema": …, "value": …}``, both as text → ``{"violations": [[keyword, [path]]]}``, or
``{"fault": …}`` where the schema cannot be used or the value is no JSON.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from typing import Any, Final

import jsonschema_rs

_MAX_KEPT: Final = 64
_MAX_VIOLATIONS: Final = 4
_MAX_STEPS: Final = 32
_MAX_KEY_CHARS: Final = 100
"""Keys may be the model's own, of any length; an answer is a line that its reader can hold."""
_PATTERNS: Final = jsonschema_rs.FancyRegexOptions(backtrack_limit=100_000)
_Kind: Final = jsonschema_rs.ValidationErrorKind
_NOT_FOUND_OUT: Final = (_Kind.BacktrackLimitExceeded, _Kind.RegexEngineFailure, _Kind.Referencing, _Kind.FromUtf8)


@lru_cache(_MAX_KEPT)
def _validator(schema: str) -> jsonschema_rs.Validator:
    """Of the draft that ``$schema`` names, 2020-12 without one. Raises ValueError for unknown ones."""
    return jsonschema_rs.validator_for(
        json.loads(schema), validate_formats=True, offline=True, pattern_options=_PATTERNS
    )


def _violations(schema: str, value: str) -> Iterator[tuple[str, list[str | int]]]:
    for error in _validator(schema).iter_errors(json.loads(value)):
        if isinstance(error.kind, _NOT_FOUND_OUT):
            raise error
        path = islice(error.instance_path, _MAX_STEPS)
        yield error.kind.name, [step if isinstance(step, int) else step[:_MAX_KEY_CHARS] for step in path]


def _answer(line: str) -> dict[str, Any]:
    asked = json.loads(line)
    try:
        return {"violations": list(islice(_violations(asked["schema"], asked["value"]), _MAX_VIOLATIONS))}
    except (ValueError, RecursionError) as error:
        # The library's own errors are ValueErrors, too; the last lines repeat the schema.
        return {"fault": str(error).partition("\n")[0][:200]}


def main(budget_s: float, memory_bytes: int) -> None:
    """Answers lines from standard input until it ends. ``budget_s``: processor time for one of them."""
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for line in sys.stdin:
        # What the signal does when nobody handles it, and none of Python's code has to run for it: end the process.
        signal.setitimer(signal.ITIMER_PROF, budget_s)
        answer = _answer(line)
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps(answer), flush=True)  # noqa: T201 - that is how it answers


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]))
