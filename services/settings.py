"""Strict settings: a frozen dataclass from command-line flags, with environment variables behind them.

A field ``ssd_bytes`` of the service ``kvstore`` is the flag ``--ssd-bytes`` and the variable
``FENCEPOST_KVSTORE_SSD_BYTES``. Anything unknown or malformed stops the start with one line that names it.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeVar, cast, get_type_hints

_Settings = TypeVar("_Settings")
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


class SettingsError(Exception):
    """A flag or variable that cannot be used; the message is one line and names it."""


def setting(
    default: Any = dataclasses.MISSING,
    *,
    help: str,
    parse: Callable[[str], Any] | None = None,
    minimum: float | None = None,
    maximum: float | None = None,
    choices: tuple[str, ...] = (),
    alias: str | None = None,
) -> Any:
    """A field of a settings dataclass; without ``default`` it is required.

    ``parse`` turns the text into the value and raises ValueError with what it expected; by default the annotation
    decides (str, int, float, bool, Path, and each of them ``| None``). ``alias`` is a variable that other software
    knows the setting by; flag and variable of our own go before it.
    """
    metadata = {
        "help": help,
        "parse": parse,
        "minimum": minimum,
        "maximum": maximum,
        "choices": choices,
        "alias": alias,
    }
    return dataclasses.field(default=default, metadata=metadata)


def byte_size(text: str) -> int:
    """Bytes from ``1073741824``, ``1GiB``, ``1.5 GB`` or ``512m``."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?\s*", text.lower())
    if match is None or match[2] == "i":
        raise ValueError("a size in bytes such as 2GiB")
    return int(Fraction(match[1]) * _UNITS[match[2]])


def address_list(text: str) -> tuple[str, ...]:
    """Comma-separated gRPC addresses."""
    addresses = tuple(part.strip() for part in text.split(",") if part.strip())
    if not addresses:
        raise ValueError("one or more addresses, separated by commas")
    return addresses


def load(cls: type[_Settings], service: str, argv: Sequence[str], environ: Mapping[str, str]) -> _Settings:
    """Build ``cls`` from flags and, where a flag is absent, from ``FENCEPOST_<SERVICE>_*``.

    Raises SettingsError naming the flag or variable. ``--help`` prints and exits.
    """
    hints = get_type_hints(cls)
    prefix = f"FENCEPOST_{service.upper()}_"
    fields = {f.name: f for f in dataclasses.fields(cast(Any, cls))}
    parser = _Parser(prog=f"fencepost {service}", allow_abbrev=False)
    for name, field in fields.items():
        shown = "" if field.default in (dataclasses.MISSING, None, "", ()) else f" (default: {field.default})"
        text = (field.metadata["help"] + shown).replace("%", "%%")  # argparse formats it
        parser.add_argument(_flag(name), dest=name, metavar=name.upper(), help=text)
    given = vars(parser.parse_args(list(argv)))

    known = {prefix + name.upper() for name in fields}
    for variable in environ:
        if variable.startswith(prefix) and variable not in known:
            raise SettingsError(f"{variable}: no such setting; known: {', '.join(sorted(known))}")

    values: dict[str, Any] = {}
    for name, field in fields.items():
        flag, variable, alias = _flag(name), prefix + name.upper(), field.metadata["alias"]
        if given[name] is not None:
            values[name] = _parse(flag, given[name], field, hints[name])
        elif variable in environ:
            values[name] = _parse(variable, environ[variable], field, hints[name])
        elif alias is not None and alias in environ:
            values[name] = _parse(alias, environ[alias], field, hints[name])
        elif field.default is dataclasses.MISSING:
            raise SettingsError(f"{flag} (or {variable}) is required: {field.metadata['help']}")
    return cls(**values)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise SettingsError(message)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _parse(source: str, text: str, field: dataclasses.Field[Any], hint: Any) -> Any:
    meta = field.metadata
    try:
        value = (meta["parse"] or _parser_of(hint))(text)
    except ValueError as error:
        raise SettingsError(f"{source}: expected {error}, got {text!r}") from None
    if meta["choices"] and value not in meta["choices"]:
        raise SettingsError(f"{source}: expected one of {', '.join(meta['choices'])}, got {text!r}")
    if meta["minimum"] is not None and value is not None and value < meta["minimum"]:
        raise SettingsError(f"{source}: must be at least {meta['minimum']:g}, got {text!r}")
    if meta["maximum"] is not None and value is not None and value > meta["maximum"]:
        raise SettingsError(f"{source}: must be at most {meta['maximum']:g}, got {text!r}")
    return value


def _parser_of(hint: Any) -> Callable[[str], Any]:
    kinds = [kind for kind in getattr(hint, "__args__", (hint,)) if kind is not type(None)]
    return _PARSERS[kinds[0]]


def _int(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError("a whole number") from None


def _float(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError("a number") from None
    if value != value or value in (float("inf"), float("-inf")):
        raise ValueError("a finite number")
    return value


def _bool(text: str) -> bool:
    lowered = text.strip().lower()
    if lowered in ("true", "1", "yes", "on"):
        return True
    if lowered in ("false", "0", "no", "off"):
        return False
    raise ValueError("true or false")


def _text(text: str) -> str:
    if not text.strip():
        raise ValueError("a value")
    return text


_PARSERS: dict[type, Callable[[str], Any]] = {
    str: _text,
    int: _int,
    float: _float,
    bool: _bool,
    Path: lambda text: Path(_text(text)).expanduser(),
}
