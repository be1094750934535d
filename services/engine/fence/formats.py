"""Formats of strings that the grammar library gets wrong, as patterns; a string matches all of a format's.

It takes days and leap seconds that do not exist, and refuses quoted local parts and addresses that embed another.
RFC 3339 (5.6, 5.7), RFC 5321 (4.1.2), RFC 3986 (3.2.2).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

_YEAR: Final = "[0-9]{4}"
_LEAP_YEAR: Final = (
    "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"  # by 4 and not 100, or by 400
)
_DAYS: Final = (
    "(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])",
    "(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)",
    "02-(?:0[1-9]|1[0-9]|2[0-8])",
)
_HOUR: Final = "(?:[01][0-9]|2[0-3])"
_MINUTE: Final = "[0-5][0-9]"
_MINUTE_BUT_LAST: Final = "(?:[0-4][0-9]|5[0-8])"
_FRACTION: Final = r"(?:\.[0-9]+)?"


def _any_of(texts: Iterable[str]) -> str:
    return f"(?:{'|'.join(texts)})"


_DATE: Final = _any_of((*(f"{_YEAR}-{days}" for days in _DAYS), f"{_LEAP_YEAR}-02-29"))


def _times() -> tuple[str, str]:
    """A leap second is the last one of a day in UTC, so its hour and minute follow from the offset.

    Each pattern looks at one of the two; together they are a hundredth of the one that looks at both.
    """
    common = f"{_HOUR}:{_MINUTE}:{_MINUTE}{_FRACTION}(?:[Zz]|[+-]{_HOUR}:{_MINUTE})"
    leap = f"60{_FRACTION}"
    hours = [common, f"23:59:{leap}[Zz]"]
    for hour in range(24):
        ahead = rf"59:{leap}\+{(hour + 1) % 24:02}:00|{_MINUTE_BUT_LAST}:{leap}\+{hour:02}:{_MINUTE}"
        behind = f"{_MINUTE}:{leap}-{23 - hour:02}:{_MINUTE}"
        hours.append(f"{hour:02}:(?:{ahead}|{behind})")
    minutes = [common, f"{_HOUR}:59:{leap}[Zz]"]
    for minute in range(60):
        offset = rf"(?:\+{_HOUR}:{(minute + 1) % 60:02}|-{_HOUR}:{59 - minute:02})"
        minutes.append(f"{_HOUR}:{minute:02}:{leap}{offset}")
    return _any_of(hours), _any_of(minutes)


_TIMES: Final = _times()

_BYTE: Final = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4: Final = rf"{_BYTE}(?:\.{_BYTE}){{3}}"
_GROUP: Final = "[0-9A-Fa-f]{1,4}"
_LAST_GROUPS: Final = f"(?:{_GROUP}:{_GROUP}|{_IPV4})"


def _ipv6() -> str:
    def begun(most: int) -> str:
        """At most so many groups before the gap."""
        return f"(?:(?:{_GROUP}:){{0,{most - 1}}}{_GROUP})?" if most else ""

    forms = [f"(?:{_GROUP}:){{6}}{_LAST_GROUPS}"]
    forms += [f"{begun(5 - groups)}::(?:{_GROUP}:){{{groups}}}{_LAST_GROUPS}" for groups in range(5, -1, -1)]
    return _any_of((*forms, f"{begun(6)}::{_GROUP}", f"{begun(7)}::"))


_IPV6: Final = _ipv6()
_ATOM: Final = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
_QUOTED: Final = r'"(?:[ !#-\[\]-~]|\\[ -~])*"'
_LABEL: Final = "[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_LOCAL_PART: Final = _any_of((rf"{_ATOM}(?:\.{_ATOM})*", _QUOTED))
_DOMAIN: Final = _any_of((rf"{_LABEL}(?:\.{_LABEL})*", rf"\[{_IPV4}\]", rf"\[IPv6:{_IPV6}\]"))

PATTERNS: Final = {
    name: tuple(f"^{pattern}$" for pattern in patterns)
    for name, patterns in {
        "date": (_DATE,),
        "time": _TIMES,
        "date-time": (f"{_DATE}[Tt]{_TIMES[0]}", f"{_YEAR}-[0-9]{{2}}-[0-9]{{2}}[Tt]{_TIMES[1]}"),
        "ipv6": (_IPV6,),
        "email": (f"{_LOCAL_PART}@{_DOMAIN}",),
    }.items()
}
