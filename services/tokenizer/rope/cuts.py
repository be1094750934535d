"""Where plain text is cut: only where that is provably harmless.

That is between an ASCII letter or digit and an ASCII sign or space behind it, but for the apostrophe. No allow-listed
pre-tokenizer keeps these two in one word, and no normal form joins the second to what stands before it. Chunks are cut
at spaces and newlines only; words wherever it is allowed.
"""

import re
from collections.abc import Iterator

_CHUNK_END = re.compile(r"[A-Za-z0-9](?=[ \n])")
# After the last letter or digit, an apostrophe or anything but a printable ASCII character joins what follows.
_WORD = re.compile(r"[^A-Za-z0-9]*[A-Za-z0-9]+(?:[^\t\n -&(-~][^A-Za-z0-9]*[A-Za-z0-9]*)*|[^A-Za-z0-9]+")


def split_words(text: str) -> list[str]:
    """All of ``text``, in pieces that end with an ASCII letter or digit, as far as there is one."""
    return _WORD.findall(text)


def cut(text: str, start: int, end: int, chunk_chars: int) -> Iterator[tuple[int, int]]:
    """Ranges that cover ``text[start:end]``, each of ``chunk_chars`` and a little more where the text allows it.

    Where they end depends only on the text behind ``start``, so a text that grows keeps all but its last one. They end
    with lines where they can: these are far apart, so that behind a small edit the same ones are soon chosen again.
    """
    while end - start > 2 * chunk_chars:
        earliest = start + chunk_chars
        place = _line_end(text, earliest, earliest + chunk_chars)
        if place is None:
            found = _CHUNK_END.search(text, earliest, end)
            if found is None:
                break
            place = found.end()
        yield start, place
        start = place
    if start < end:
        yield start, end


def _line_end(text: str, start: int, end: int) -> int | None:
    """The first newline in ``text[start + 1 : end]`` behind an ASCII letter or digit."""
    newline = text.find("\n", start + 1, end)
    while newline >= 0:
        before = text[newline - 1]
        if before.isascii() and before.isalnum():
            return newline
        newline = text.find("\n", newline + 1, end)
    return None
