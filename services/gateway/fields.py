"""Strict reading of JSON values: a wrong type or range is a 400 that names the field. null means absent."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, cast

from services.gateway.errors import BadRequestError, UnsupportedError
from services.gateway.raw_json import RawJson


def kind_of(value: Any) -> str:
    """What a JSON value is, for messages."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int():
            return "an integer"
        case float():
            return "a number with a fraction or beyond 64 bits"
        case str():
            return "a string"
        case list():
            return "a list"
        case _:
            return "an object"


def wrong(field: str, expected: str, value: Any) -> BadRequestError:
    """The error for a value of the wrong kind."""
    return BadRequestError(f"'{field}' must be {expected}, not {kind_of(value)}.", param=field)


@dataclass(frozen=True, slots=True)
class Fields:
    """One JSON object and where it lies in the body, e.g. at ``("messages", 2)``; the body itself lies at ``()``.

    Every reader returns None for an absent or null field and raises BadRequestError for one it cannot take.
    """

    values: dict[str, Any]
    body: RawJson
    path: tuple[str | int, ...] = ()

    def name(self, key: str) -> str:
        """The field as errors spell it, e.g. ``messages[2].role``."""
        return _spelt((*self.path, key))

    def raw(self, key: str) -> str:
        """The field's JSON text as the client wrote it; the field must be there."""
        return self.body.text(*self.path, key)

    def required(self, key: str) -> Any:
        """The value, which must be there."""
        value = self.values.get(key)
        if value is None:
            raise BadRequestError(f"'{self.name(key)}' is required.", param=self.name(key))
        return value

    def text(self, key: str) -> str | None:
        """A string."""
        value = self.values.get(key)
        if value is not None and not isinstance(value, str):
            raise wrong(self.name(key), "a string", value)
        return value

    def required_text(self, key: str) -> str:
        """A string that must be there; it may be empty."""
        self.required(key)
        return cast(str, self.text(key))

    def nonempty_text(self, key: str) -> str:
        """A string that must be there and say something."""
        value = self.required_text(key)
        if not value:
            raise BadRequestError(f"'{self.name(key)}' must not be empty.", param=self.name(key))
        return value

    def one_of(self, key: str, choices: Collection[str]) -> str:
        """A string that must be there and be one of a few."""
        value = self.required_text(key)
        if value not in choices:
            raise BadRequestError(
                f"'{self.name(key)}' must be one of {', '.join(choices)}, not {value[:40]!r}.", param=self.name(key)
            )
        return value

    def flag(self, key: str) -> bool | None:
        """A boolean."""
        value = self.values.get(key)
        if value is not None and not isinstance(value, bool):
            raise wrong(self.name(key), "a boolean", value)
        return value

    def integer(self, key: str, minimum: int, maximum: int) -> int | None:
        """A whole number in [minimum, maximum]."""
        value = self.values.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            raise wrong(self.name(key), "an integer", value)
        self._check_range(key, value, minimum, maximum)
        return value

    def number(self, key: str, minimum: float, maximum: float) -> float | None:
        """A number in [minimum, maximum]."""
        value = self.values.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise wrong(self.name(key), "a number", value)
        self._check_range(key, value, minimum, maximum)
        return float(value)

    def object(self, key: str) -> Fields | None:
        """A JSON object."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise wrong(self.name(key), "an object", value)
        return Fields(cast(dict[str, Any], value), self.body, (*self.path, key))

    def required_object(self, key: str) -> Fields:
        """A JSON object that must be there."""
        self.required(key)
        return cast(Fields, self.object(key))

    def objects(self, key: str) -> Iterator[Fields]:
        """The objects of a list; absent is none."""
        value = self.values.get(key)
        if value is None:
            return
        if not isinstance(value, list):
            raise wrong(self.name(key), "a list", value)
        for index, item in enumerate(cast(list[Any], value)):
            path = (*self.path, key, index)
            if not isinstance(item, dict):
                raise wrong(_spelt(path), "an object", item)
            yield Fields(cast(dict[str, Any], item), self.body, path)

    def refuse(self, key: str, *harmless: Any) -> None:
        """Raise UnsupportedError unless the field is absent, null or one of the values that change nothing."""
        value = self.values.get(key)
        # 0 == False in Python, not in JSON.
        if value is None or any(
            value == same and isinstance(value, bool) == isinstance(same, bool) for same in harmless
        ):
            return
        raise UnsupportedError(f"'{self.name(key)}' is not supported yet.", param=self.name(key))

    def _check_range(self, key: str, value: float, minimum: float, maximum: float) -> None:
        if not minimum <= value <= maximum:
            raise BadRequestError(
                f"'{self.name(key)}' must be from {minimum} to {maximum}, not {value}.", param=self.name(key)
            )


def _spelt(path: tuple[str | int, ...]) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).removeprefix(".")
