"""Records as bytes."""

import struct
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.tokenizer.conversation import Call
from services.tokenizer.history.record import Record
from services.tokenizer.history.record_format import MAX_RECORD_BYTES, RecordFormatError, decode_record, encode_record
from tests.unit.tokenizer.transcript_records import call, record, token_ids

GOLDEN = (
    "46507472" "0100" "0000"  # FPtr, version 1
    "04000000" "3c743e61"  # "<t>a"
    "02000000" "05000000" "00000100"  # ids 5 and 65536
    "01000000" "61"  # "a"
    "00000000"  # no reasoning
    "01000000"  # one call
    "01000000" "69" "02000000" "c3a9" "02000000" "7b7d" "01"  # id "i", name "é", arguments "{}", custom
)  # fmt: skip
SAMPLE = Record("<t>a", token_ids(5, 65536), "a", "", (Call("i", "é", "{}", True),))
CALLS = st.builds(Call, st.text(), st.text(), st.text(), st.booleans())
RECORDS = st.builds(
    lambda text, ids, content, reasoning, calls: Record(text, token_ids(*ids), content, reasoning, tuple(calls)),
    st.text(),
    st.lists(st.integers(0, 2**31 - 1)),
    st.text(),
    st.text(),
    st.lists(CALLS, max_size=3),
)


def test_golden_bytes() -> None:
    assert encode_record(SAMPLE).hex() == GOLDEN
    assert encode_record(decode_record(bytes.fromhex(GOLDEN))).hex() == GOLDEN


@given(RECORDS)
def test_record_comes_back(sampled: Record) -> None:
    found = decode_record(encode_record(sampled))
    assert found.ids.tolist() == sampled.ids.tolist()
    assert found.ids.dtype == sampled.ids.dtype
    assert (found.text, found.content, found.reasoning) == (sampled.text, sampled.content, sampled.reasoning)
    assert found.calls == sampled.calls


@given(st.binary(max_size=200))
def test_any_bytes_are_a_record_or_refused(data: bytes) -> None:
    for candidate in (data, encode_record(SAMPLE)[:8] + data):
        with suppress(RecordFormatError):
            assert encode_record(decode_record(candidate)) == candidate


@given(st.data())
def test_damaged_record_is_a_record_or_refused(data: st.DataObject) -> None:
    damaged = bytearray(encode_record(record(call(), call(call_id="call_2"))))
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    with suppress(RecordFormatError):
        assert encode_record(decode_record(bytes(damaged))) == damaged


def test_every_shorter_or_longer_one_is_refused() -> None:
    whole = encode_record(record(call()))
    for data in [*(whole[:end] for end in range(len(whole))), whole + b"\0"]:
        with pytest.raises(RecordFormatError):
            decode_record(data)


@pytest.mark.parametrize(
    ("at", "value"),
    [
        pytest.param(4, b"\2", id="version"),
        pytest.param(6, b"\1", id="zero"),
        pytest.param(8, b"\xff\xff\xff\xff", id="length of a text"),
        pytest.param(12, b"\xff", id="UTF-8"),
        pytest.param(16, b"\xff\xff\xff\x7f", id="number of ids"),
        pytest.param(20, struct.pack("<i", -1), id="negative id"),
        pytest.param(37, b"\xff\xff\xff\x7f", id="number of calls"),
        pytest.param(len(GOLDEN) // 2 - 1, b"\2", id="flag"),
    ],
)
def test_wrong_field_is_refused(at: int, value: bytes) -> None:
    data = bytearray.fromhex(GOLDEN)
    data[at : at + len(value)] = value
    with pytest.raises(RecordFormatError):
        decode_record(bytes(data))


def test_too_long_a_record_is_refused() -> None:
    with pytest.raises(RecordFormatError):
        decode_record(encode_record(record(text="x" * MAX_RECORD_BYTES)))
