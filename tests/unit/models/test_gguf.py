"""The GGUF reader: exact values, and a named error for whatever is wrong with a file."""

import struct
from pathlib import Path

import numpy as np
import pytest

from services.models.errors import ModelError, ModelFileError, UnsupportedModelError
from services.models.gguf import GgufFile
from tests.unit.models.gguf_writer import (
    gguf_bytes,
    random_tensor,
    scalar_values,
    string,
    tiny_llama,
    write_tiny_llama,
)


def write(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("kind", [0, 1, 2, 3, 8])
def test_every_format_decodes_as_its_definition_says(tmp_path: Path, kind: int, version: int) -> None:
    rng = np.random.default_rng(kind)
    first, second = random_tensor(rng, (3, 5, 64), kind), random_tensor(rng, (96,), kind)
    with GgufFile(write(tmp_path, gguf_bytes({}, {"first": first, "second": second}, version))) as file:
        assert file.tensors["first"].shape == (3, 5, 64)
        np.testing.assert_array_equal(file.read("first"), scalar_values(first))
        np.testing.assert_array_equal(file.read("second"), scalar_values(second))


def test_tensors_outlive_the_file(tmp_path: Path) -> None:
    tensor = random_tensor(np.random.default_rng(1), (8,), 0)
    with GgufFile(write(tmp_path, gguf_bytes({}, {"t": tensor}))) as file:
        values = file.read("t")
    np.testing.assert_array_equal(values, scalar_values(tensor))


def test_metadata_keeps_its_types(tmp_path: Path) -> None:
    metadata = {"text": "Ġä", "count": 7, "ratio": 0.5, "flag": True, "texts": ["a", ""], "numbers": [-1, 2]}
    with GgufFile(write(tmp_path, gguf_bytes(metadata, {}))) as file:
        assert file.text("text") == "Ġä"
        assert file.integer("count") == 7
        assert file.number("ratio") == 0.5
        assert file.metadata["flag"] is True
        assert file.texts("texts") == ("a", "")
        assert file.integers("numbers") == [-1, 2]
        for read, key in ((file.text, "count"), (file.integer, "flag"), (file.number, "text"), (file.texts, "numbers")):
            with pytest.raises(ModelFileError, match=f"metadata {key}"):
                read(key)
        with pytest.raises(ModelFileError, match="metadata absent is missing"):
            file.text("absent")


def test_alignment_of_the_metadata_is_respected(tmp_path: Path) -> None:
    stored = np.arange(4, dtype="<f4").tobytes()
    head = struct.pack("<4sIQQ", b"GGUF", 3, 1, 1) + string("general.alignment") + struct.pack("<II", 4, 256)
    head += string("t") + struct.pack("<IQIQ", 1, 4, 0, 0)
    with GgufFile(write(tmp_path, head + bytes(256 - len(head)) + stored)) as file:
        assert file.read("t").tolist() == [0, 1, 2, 3]


def test_truncation_at_any_offset_names_the_file(tmp_path: Path) -> None:
    whole = gguf_bytes(*tiny_llama())
    last_byte = len(whole.rstrip(b"\0"))
    offsets = [*range(0, 3000, 7), *range(3000, last_byte, 211), last_byte - 1]
    for offset in offsets:
        path = write(tmp_path, whole[:offset])
        with pytest.raises(ModelFileError, match=r"model\.gguf: truncated"):
            GgufFile(path)


def test_flipped_bytes_never_do_worse_than_a_named_error(tmp_path: Path) -> None:
    whole = gguf_bytes(*tiny_llama())
    rng = np.random.default_rng(5)
    messages: list[str] = []
    for _ in range(300):
        data = bytearray(whole)
        data[int(rng.integers(0, 2500))] = int(rng.integers(0, 256))
        try:
            with GgufFile(write(tmp_path, bytes(data))) as file, np.errstate(all="ignore"):
                for name in file.tensors:
                    file.read(name)
        except ModelError as error:
            messages.append(str(error))
    assert messages
    assert all("model.gguf: " in message and "\n" not in message for message in messages)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "truncated"),
        (b"PK\x03\x04" + bytes(40), "not a GGUF file"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 2**63, 0), "truncated"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 0, 1) + string("k") + struct.pack("<IIQ", 9, 8, 2**62), "metadata k"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 0, 1) + string("k") + struct.pack("<IIQ", 9, 9, 1), "value type 9"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 0, 1) + string("k") + struct.pack("<I", 99), "value type 99"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 0, 1) + string(b"\xff") + bytes(8), "not UTF-8"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 0, 2) + 2 * (string("k") + struct.pack("<I?", 7, True)), "twice"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 1, 0) + string("t") + struct.pack("<I", 9), "9 dimensions"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 1, 0) + string("t") + struct.pack("<IQIQ", 1, 33, 3, 0), "no Q4_1"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 1, 0) + string("t") + struct.pack("<IQIQ", 1, 0, 0, 0), "shape"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 1, 0) + string("t") + struct.pack("<IQIQ", 1, 2**63, 0, 0), "truncated"),
        (gguf_bytes({"general.alignment": 0}, {}), "alignment 0"),
    ],
)
def test_malformed_file_is_named_with_its_defect(tmp_path: Path, data: bytes, problem: str) -> None:
    with pytest.raises(ModelFileError, match=problem):
        GgufFile(write(tmp_path, data))


def test_unreadable_kinds_are_told_from_damage(tmp_path: Path) -> None:
    big_endian = struct.pack(">4sIQQ", b"GGUF", 3, 0, 0)
    with pytest.raises(UnsupportedModelError, match="version"):
        GgufFile(write(tmp_path, big_endian))
    with pytest.raises(UnsupportedModelError, match="tensor t is stored in ggml type 12"):
        GgufFile(write(tmp_path, gguf_bytes({}, {"t": ((256,), 12, bytes(144))})))


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"absent\.gguf: cannot be read: No such file"):
        GgufFile(tmp_path / "absent.gguf")


def test_tiny_model_opens(tmp_path: Path) -> None:
    with GgufFile(write_tiny_llama(tmp_path / "tiny.gguf")) as file:
        assert len(file.tensors) == 20
