import numpy as np
import pytest

from services.engine.guard.lexicon import MARKUP, WORD, Lexicon


@pytest.mark.parametrize(
    ("token", "kind"),
    [
        (b" file", WORD),
        (b"ration", WORD),
        (b" I", WORD),
        (b" don't", WORD),
        ("修改".encode(), WORD),
        ("я".encode(), WORD),
        (b"\xe4\xbf", WORD),
        (b"AAAA", 0),
        (b"A", 0),
        (b"42", 0),
        (b",", 0),
        (b" ", 0),
        (b"\xf0\x9f", 0),
        (b"\x91", 0),
        ("\ufffd".encode(), 0),
        (b"", 0),
        (b"\n", MARKUP),
        (b"    ", MARKUP),
        (b"</", MARKUP),
        (b"_name", MARKUP),
        (b'":', MARKUP),
    ],
)
def test_kinds_of_tokens(token: bytes, kind: int):
    assert Lexicon([token]).kinds == bytes([kind])


def test_ids_beyond_the_vocabulary_are_of_no_kind():
    lexicon = Lexicon([b" word", b"0", b"|"])
    assert lexicon.shares(np.array([0, 0, 1, 7, 2], dtype=np.int32)) == (0.4, 0.2)
