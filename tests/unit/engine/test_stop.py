from hypothesis import given
from hypothesis import strategies as st

from services.engine.stop import StopScanner


def first_hit(tokens: list[bytes], stops: list[bytes]) -> tuple[int, int, int] | None:
    """Straightforward twin: (tokens seen, index, tokens wholly before)."""
    for seen in range(1, len(tokens) + 1):
        text = b"".join(tokens[:seen])
        found = [(text.find(stop), -len(stop), i) for i, stop in enumerate(stops) if stop in text]
        if found:
            place, _, index = min(found)
            ends = [len(b"".join(tokens[: n + 1])) for n in range(seen)]
            return seen, index, sum(end <= place for end in ends)
    return None


@given(
    st.lists(st.text("ab", max_size=3).map(str.encode), max_size=12),
    st.lists(st.text("ab", min_size=1, max_size=4).map(str.encode), max_size=3, unique=True),
)
def test_finds_what_a_search_of_the_whole_text_finds(tokens: list[bytes], stops: list[bytes]):
    scanner, found = StopScanner(stops), None
    for seen, token in enumerate(tokens, 1):
        hit = scanner.push(token)
        if hit is not None:
            found = (seen, hit.index, hit.tokens_before)
            break
    assert found == first_hit(tokens, stops)


def test_a_stop_inside_a_token_keeps_the_tokens_before_it():
    scanner = StopScanner([b"\n\n"])
    assert scanner.push(b"one") is None
    assert scanner.push(b".\n") is None
    hit = scanner.push(b"\nt")
    assert hit is not None
    assert (hit.index, hit.tokens_before) == (0, 1)
