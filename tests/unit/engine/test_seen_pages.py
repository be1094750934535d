"""Pages that were cached once."""

from services.engine.seen_pages import SeenPages


def test_the_pages_seen_last_are_remembered():
    seen = SeenPages(max_pages=3)
    seen.add([b"a", b"b", b"c"])
    seen.add([b"a", b"d"])
    assert [key in seen for key in (b"a", b"b", b"c", b"d")] == [True, False, True, True]
    seen.clear()
    assert b"a" not in seen
