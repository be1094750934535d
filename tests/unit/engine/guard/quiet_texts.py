"""Texts that repeat for good reasons: files of this Python installation, and what agents write."""

from __future__ import annotations

import base64
import json
import os
import random
import sysconfig
from collections.abc import Iterator
from itertools import chain, islice, zip_longest

SUFFIXES = frozenset(
    {
        *("py", "pyi", "txt", "json", "html", "md", "rst", "js", "css", "xml", "csv", "toml", "pem", "c", "h", "hpp"),
        *("cpp", "proto", "svg", "yaml", "cfg", "ini", "pyx", "cmake", "jinja", "sh", "decTest"),
    }
)


def installed_files(count: int) -> Iterator[str]:
    """Paths of up to ``count`` files, of each suffix in turn; half of them are Python where there are so many."""
    paths_by_suffix: dict[str, list[str]] = {suffix: [] for suffix in sorted(SUFFIXES)}
    for root in dict.fromkeys(os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "purelib")):
        for folder, _, names in os.walk(root):
            for name in names:
                suffix = name.rpartition(".")[2]
                if suffix in SUFFIXES:
                    paths_by_suffix[suffix].append(os.path.join(folder, name))
    chance = random.Random(0)
    for paths in paths_by_suffix.values():
        paths.sort()
        chance.shuffle(paths)
    code = paths_by_suffix.pop("py")
    others = [path for row in zip_longest(*paths_by_suffix.values()) for path in row if path is not None]
    mixed = (path for pair in zip_longest(code, others) for path in pair if path is not None)
    return islice(mixed, count)


def beginning_of(path: str, max_chars: int) -> str:
    """Its text; "" for what is no UTF-8."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read(max_chars)
    except UnicodeDecodeError:
        return ""


def _lines(*rows: str) -> str:
    return "\n".join(rows)


_CHANCE = random.Random(1)

WRITTEN = {
    "separators": "=" * 120 + "\ntext\n" + "-" * 120 + "\n" + "#" * 200 + "\n" + "* " * 100,
    "rule made of words": "-=-" * 100,
    "table with numbered rows": _lines("| id | name | ok |", *(f"| {n} | row | yes |" for n in range(200))),
    "table with equal rows": _lines("| a | b |", "|---|---|", *["| 0 | 0 |"] * 60),
    "table with equal rows of words": _lines("| a | b |", "|---|---|", *["| yes | no |"] * 40),
    "base64 of zeros": base64.b64encode(bytes(1500)).decode(),
    "base64 of noise": base64.b64encode(_CHANCE.randbytes(3000)).decode(),
    "hex zeros": "00 " * 500,
    "hex dump": _lines(*(f"{16 * n:08x}  " + "00 " * 16 + " |................|" for n in range(60))),
    "list of zeros": str([0] * 64),
    "long list of zeros": str([0] * 1000),
    "zero multiplication": _lines(*(f"buffer_{n} = [0]*64" for n in range(100))),
    "matrix of zeros": json.dumps([[0] * 16] * 16),
    "large matrix of zeros": json.dumps([[0] * 32] * 32),
    "identity matrix": json.dumps([[int(i == j) for j in range(24)] for i in range(24)]),
    "matrix over lines": _lines(*["    [0.0, 0.0, 0.0, 1.0],"] * 80),
    "array of booleans": json.dumps([True, False] * 60),
    "array of equal objects": json.dumps([{"x": 0, "y": 0, "label": None}] * 24, indent=2),
    "array of objects": json.dumps([{"id": n, "name": f"user{n}", "active": True} for n in range(150)], indent=2),
    "lockfile": json.dumps(
        {
            f"node_modules/package-{n}": {
                "version": f"{n % 7}.{n % 3}.0",
                "resolved": f"https://registry.npmjs.org/package-{n}/-/package-{n}-{n % 7}.{n % 3}.0.tgz",
                "integrity": "sha512-" + base64.b64encode(_CHANCE.randbytes(64)).decode(),
                "dev": True,
                "license": "MIT",
                "engines": {"node": ">=14"},
            }
            for n in range(60)
        },
        indent=2,
    ),
    "svg": _lines(*(f'<rect x="{n}" y="0" width="1" height="1" fill="#000"/>' for n in range(200))),
    "svg with equal elements": '<svg xmlns="http://www.w3.org/2000/svg">' + '<use href="#dot"/>' * 40 + "</svg>",
    "bar chart": _lines(*("#" * _CHANCE.randint(1, 60) for _ in range(60))),
    "license after license": _lines(
        *(
            f"## package{_CHANCE.randrange(10**6)}\n\nCopyright (c) {2000 + n} {name}\n\nPermission is hereby granted, "
            "free of charge, to any person obtaining a copy of this software, to deal in the software without "
            "restriction, including without limitation the rights to use, copy, modify, merge, publish, and sell.\n"
            for n, name in enumerate(("Ann Lee", "Bo Chen", "Cy Diaz", "Di Evans"))
        )
    ),
    "tests with one shape": _lines(
        *(
            f"def test_{name}_is_rejected(client):\n    response = client.post('/{name}', json={{'{name}': None}})\n"
            "    assert response.status_code == 422\n"
            for name in ("user", "order", "invoice", "address", "payment", "refund", "session", "token", "role", "team")
            for _ in range(3)
        )
    ),
    "imports": _lines(*(f"from package.module_{n} import Class{n} as Class{n}" for n in range(150))),
    "sql inserts": _lines(*(f"INSERT INTO users (id, name) VALUES ({n}, 'user{n}');" for n in range(150))),
    "log": _lines(
        *(f"2024-05-01T12:{n // 60:02d}:{n % 60:02d}Z INFO worker heartbeat ok latency_ms={n % 9}" for n in range(200))
    ),
    "progress": _lines(*(f"test_{n} PASSED [{n // 2:3d}%]" for n in range(200))),
    "thoughts with a refrain": "".join(
        f"Let me check the next file. {fact}. That looks right, so I go on.\n\n"
        for fact in chain.from_iterable(
            [
                f"{part} reads its settings from the environment and falls back to the defaults",
                f"{part} opens one connection per worker and closes it when the pool is drained",
                f"{part} retries three times with a growing pause and then raises",
            ]
            for part in ("The gateway", "The scheduler", "The store", "The parser", "The client", "The runner")
        )
    ),
}
