"""Places, records and echoes of assistant segments."""

import json
import threading
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.tokenizer.history.call_ids import mint_call_id
from services.tokenizer.history.memory import MAX_SIBLINGS, Transcripts
from services.tokenizer.history.record import (
    ID_BYTES,
    KEY_BYTES,
    Chain,
    find_echo,
    is_echo,
    is_spelt,
    key_of,
    record_id,
    record_key,
)
from services.vocabulary import Vocabulary
from tests.unit.tokenizer.transcript_records import call, place, record, token_ids

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(st.lists(st.integers(0, 2**31 - 1), max_size=5), max_size=5))
def test_chain_does_not_depend_on_how_ids_are_cut(parts: list[list[int]]) -> None:
    whole, cut = Chain("tokenizer"), Chain("tokenizer")
    whole.update(token_ids(*(token_id for part in parts for token_id in part)))
    for part in parts:
        cut.update(token_ids(*part))
    assert whole.digest() == cut.digest()
    assert len(whole.digest()) == 32


def test_chain_copy_goes_on_alone() -> None:
    chain = Chain("tokenizer")
    chain.update(token_ids(1, 2))
    twin, before = chain.copy(), chain.digest()
    twin.update(token_ids(3))
    assert chain.digest() == before != twin.digest()
    chain.update(token_ids(3))
    assert chain.digest() == twin.digest()


def test_chains_of_two_tokenizers_differ() -> None:
    assert Chain("one").digest() != Chain("other").digest()


def test_place_depends_on_scope_history_and_text() -> None:
    keys = {
        record_key("scope", b"chain", "text"),
        record_key("other", b"chain", "text"),
        record_key("scope", b"other", "text"),
        record_key("scope", b"chain", "other"),
        record_key("scopec", b"hain", "text"),
        record_key("scope", b"chaint", "ext"),
    }
    assert len(keys) == 6
    assert {len(key) for key in keys} == {KEY_BYTES}


def test_places_and_ids_stay_as_they_are_stored() -> None:
    assert record_id(place(), record()).hex() == (
        "97b8b1e21fd46d80438ce6a0a45716e53f21b2f283b18ecac5c5ad4ef4f2d5108ff52f09f1e24cd9e9da522f569a5534"
    )
    chain = Chain("tokenizer")
    chain.update(token_ids(1, 2, 3))
    assert chain.digest().hex() == "44779ec8660b8d909998576b2be8a72c96402804353982aa16f53bc1f20a5c8d"


def test_record_id_names_its_place_and_its_own_text_and_ids() -> None:
    base = record(call())
    ids = {
        record_id(place(), sampled)
        for sampled in (base, record(call(), ids=(5, 67)), record(call(), text="other"), record())
    }
    assert len(ids) == 3
    assert {key_of(one) for one in ids} == {place()}
    assert {len(one) for one in ids} == {ID_BYTES}


@pytest.mark.parametrize(
    ("echoed", "expected"),
    [
        ('{"path": "a.txt", "lines": [1, 100000]}', True),
        ('{"path":"a.txt","lines":[1,100000]}', True),
        ('{"lines": [1, 1e5], "path": "\\u0061.txt"}', True),
        ('{"path": "a.txt", "lines": [1, 100001]}', False),
        ('{"path": "a.txt"}', False),
        ('{"path": "a.txt", "lines": [1, 100000]', False),
        ("", False),
    ],
)
def test_function_arguments_are_compared_as_json(echoed: str, expected: bool) -> None:
    sampled = record(call('{"path": "a.txt", "lines": [1, 100000]}'))
    assert is_echo(sampled, sampled.content, [call(echoed)]) is expected


@given(JSON)
def test_every_way_to_write_arguments_anew_is_an_echo(value: object) -> None:
    sampled = record(call(json.dumps(value)))
    for echoed in (json.dumps(value, ensure_ascii=False, separators=(",", ":")), json.dumps(value, indent=2)):
        assert is_echo(sampled, sampled.content, [call(echoed)])


def test_custom_arguments_are_compared_as_text() -> None:
    sampled = record(call("[1, 2]", is_custom=True))
    assert is_echo(sampled, sampled.content, [call("[1, 2]", is_custom=True)])
    assert not is_echo(sampled, sampled.content, [call("[1,2]", is_custom=True)])
    assert not is_echo(sampled, sampled.content, [call("[1, 2]")])


@pytest.mark.parametrize("content", ["Let me look", "Let me look. ", " Let me look.", "", "let me look."])
def test_other_text_is_no_echo(content: str) -> None:
    assert not is_echo(record(), content, [])


def test_number_and_names_of_calls_count() -> None:
    sampled = record(call(), call(call_id="call_2"))
    assert is_echo(sampled, sampled.content, [call(), call(call_id="call_2")])
    assert not is_echo(sampled, sampled.content, [call()])
    assert not is_echo(sampled, sampled.content, [*sampled.calls, call(call_id="call_3")])
    assert not is_echo(sampled, sampled.content, [call(), call(call_id="call_2", name="write")])


def test_calls_are_matched_by_id_where_ids_are_known_and_in_order_otherwise() -> None:
    first, second = call("[1]", "call_1"), call("[2]", "call_2")
    sampled = record(first, second)
    assert is_echo(sampled, sampled.content, [second, first])
    assert is_echo(sampled, sampled.content, [replace(first, call_id=""), replace(second, call_id="")])
    assert not is_echo(sampled, sampled.content, [replace(second, call_id="x"), replace(first, call_id="y")])
    assert not is_echo(sampled, sampled.content, [replace(first, call_id="call_2"), replace(second, call_id="call_1")])


def test_of_several_echoes_the_one_with_its_call_ids_or_thinking_is_chosen() -> None:
    newer, older = record(call(call_id="call_2")), record(call(call_id="call_1"))
    assert find_echo([newer, older], newer.content, [call(call_id="call_1")]) is older
    assert find_echo([newer, older], newer.content, [call(call_id="rewritten")]) is newer
    assert find_echo([newer, older], newer.content, []) is None
    thought = replace(record(), reasoning="hm, hm")
    assert find_echo([record(), thought], thought.content, [], "hm, hm") is thought


def test_record_from_elsewhere_is_checked_against_the_vocabulary() -> None:
    vocabulary = Vocabulary([b"hel", b"lo", b"", b"<|call|>", "é".encode()[:1], "é".encode()[1:]], frozenset({3}))
    assert is_spelt(record(text="hello<|call|>é", ids=(0, 1, 3, 4, 5)), vocabulary)
    assert is_spelt(record(text="hello\ufffd", ids=(0, 1, 4)), vocabulary)
    assert not is_spelt(record(text="hello!", ids=(0, 1)), vocabulary)
    assert not is_spelt(record(text="hello", ids=(0, 1, 2)), vocabulary)
    assert not is_spelt(record(text="hello", ids=(0, 1, 2**31 - 1)), vocabulary)


def test_remembered_record_is_found_at_its_place_by_its_tenant_only() -> None:
    memory, sampled = Transcripts(10**6), record(call())
    stored_id = memory.put("tenant", place(), sampled)
    assert memory.find("tenant", place(), sampled.content, [call('{"path":"a.txt"}')]) is sampled
    assert memory.get("tenant", stored_id) is sampled
    assert memory.by_call_id("tenant", "call_1") == stored_id
    assert memory.find("tenant", place("b"), sampled.content, [call()]) is None
    assert memory.find("other", place(), sampled.content, [call()]) is None
    assert memory.get("other", stored_id) is None
    assert memory.by_call_id("other", "call_1") is None


def test_samples_of_one_prompt_do_not_replace_each_other() -> None:
    memory = Transcripts(10**6)
    samples = [record(call(f"[{i}]", f"call_{i}"), text=f"t{i}") for i in range(MAX_SIBLINGS + 1)]
    for sampled in samples:
        memory.put("tenant", place(), sampled)
    for sampled in samples[1:]:
        assert memory.find("tenant", place(), sampled.content, sampled.calls) is sampled
    assert memory.find("tenant", place(), samples[0].content, samples[0].calls) is None
    assert memory.by_call_id("tenant", "call_0") is None


def test_same_sample_again_replaces_itself() -> None:
    memory, again = Transcripts(10**6), record(call(call_id="call_2"))
    first_id, num_bytes = memory.put("tenant", place(), record(call())), memory.num_bytes
    assert memory.put("tenant", place(), again) == first_id
    assert (memory.num_records, memory.num_bytes) == (1, num_bytes)
    assert memory.find("tenant", place(), again.content, [call()]) is again


def test_least_recently_used_is_forgotten_first() -> None:
    one = record(call())
    memory = Transcripts(one.num_bytes * 2)
    memory.put("tenant", place("a"), one)
    memory.put("tenant", place("b"), replace(one, calls=(call(call_id="call_2"),)))
    assert memory.find("tenant", place("a"), one.content, [call()])
    memory.put("tenant", place("c"), replace(one, calls=(call(call_id="call_3"),)))
    found = [bool(memory.find("tenant", place(name), one.content, [call()])) for name in "abc"]
    assert found == [True, False, True]
    assert memory.by_call_id("tenant", "call_2") is None
    assert memory.num_bytes == one.num_bytes * 2


def test_budget_is_kept_in_records_too_and_nothing_larger_is_held() -> None:
    memory = Transcripts(10**6, max_records=2)
    for name in "abc":
        memory.put("tenant", place(name), record())
    assert memory.num_records == 2
    memory.put("tenant", place("d"), record(text="x" * 10**6))
    assert (memory.num_records, memory.num_bytes) == (0, 0)


def test_removed_record_is_gone() -> None:
    memory = Transcripts(10**6)
    stored_id = memory.put("tenant", place(), record(call()))
    memory.remove("other", stored_id)
    assert memory.num_records == 1
    memory.remove("tenant", stored_id)
    memory.remove("tenant", stored_id)
    assert (memory.num_records, memory.num_bytes) == (0, 0)
    assert memory.by_call_id("tenant", "call_1") is None


def test_threads_share_a_memory() -> None:
    memory = Transcripts(record().num_bytes * 8)

    def work(name: str) -> None:
        for i in range(200):
            sampled = record(call(call_id=f"{name}{i}"), text=f"{name}{i % 12}")
            memory.put("tenant", place(name), sampled)
            found = memory.find("tenant", place(name), sampled.content, sampled.calls)
            assert found is None or found.text.startswith(name)

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    left = list(memory._records.values())
    assert memory.num_bytes == sum(one.num_bytes for one in left) <= record().num_bytes * 8
    assert len(memory._id_by_call) == len(left) == sum(map(len, memory._ids_by_key.values()))


def test_call_ids_are_random_and_safe_in_urls() -> None:
    minted = {mint_call_id() for _ in range(1_000)}
    assert len(minted) == 1_000
    assert all(one.startswith("call_") and len(one) == 27 for one in minted)
    assert all(one.replace("_", "").replace("-", "").isalnum() and one.isascii() for one in minted)
