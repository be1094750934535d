"""Settings from flags and variables: what they accept, and the one line that names what they don't."""

from collections.abc import Sequence
from dataclasses import FrozenInstanceError, dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from services.settings import SettingsError, address_list, byte_size, load, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    listen: str = setting("127.0.0.1:0", help="address")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shop(Base):
    data_dir: Path = setting(help="folder for data")
    num_shelves: int = setting(4, help="shelves, 100 % filled", minimum=1, maximum=64)
    patience_s: float = setting(1.5, help="seconds", minimum=0)
    is_open: bool = setting(False, help="whether it is open")
    size_bytes: int = setting(2**30, help="size", parse=byte_size, minimum=1)
    neighbours: tuple[str, ...] = setting((), help="addresses", parse=address_list)
    owner: str | None = setting(None, help="who owns it")
    exits: int | None = setting(None, help="doors", minimum=1)
    log_level: str = setting("info", help="how much", choices=("debug", "info"))


def load_shop(*argv: str, **environ: str) -> Shop:
    return load(Shop, "shop", ["--data-dir", "/data", *argv], environ)


def refusal(*argv: str, **environ: str) -> str:
    with pytest.raises(SettingsError) as caught:
        load_shop(*argv, **environ)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_defaults_are_taken_as_they_are() -> None:
    assert load_shop() == Shop(data_dir=Path("/data"))
    with pytest.raises(FrozenInstanceError):
        load_shop().listen = ""  # pyright: ignore[reportAttributeAccessIssue]


ALL: list[tuple[str, str, Any]] = [
    ("listen", "[::1]:80", "[::1]:80"),
    ("data_dir", "/other", Path("/other")),
    ("num_shelves", "64", 64),
    ("patience_s", "0", 0.0),
    ("is_open", "Yes", True),
    ("size_bytes", "1.5 GiB", 3 * 2**29),
    ("neighbours", "a:1, unix:/b ,", ("a:1", "unix:/b")),
    ("owner", "Ada", "Ada"),
    ("exits", "2", 2),
    ("log_level", "debug", "debug"),
]


@pytest.mark.parametrize(("name", "text", "value"), ALL)
def test_flag_wins_over_variable_and_variable_over_default(name: str, text: str, value: Any) -> None:
    flag, variable = "--" + name.replace("_", "-"), "FENCEPOST_SHOP_" + name.upper()
    assert getattr(load_shop(flag, text), name) == value
    assert getattr(load_shop(f"{flag}={text}", **{variable: "unusable"}), name) == value
    assert getattr(load(Shop, "shop", [], {"FENCEPOST_SHOP_DATA_DIR": "/data", variable: text}), name) == value


def test_home_is_expanded() -> None:
    assert load_shop("--data-dir", "~/data").data_dir == Path.home() / "data"


def test_required_setting_is_named_with_its_variable_and_meaning() -> None:
    with pytest.raises(
        SettingsError, match=r"^--data-dir \(or FENCEPOST_SHOP_DATA_DIR\) is required: folder for data$"
    ):
        load(Shop, "shop", [], {})


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--num-shelves", "four"], "--num-shelves: expected a whole number, got 'four'"),
        (["--num-shelves", "1.0"], "--num-shelves: expected a whole number, got '1.0'"),
        (["--num-shelves", "0"], "--num-shelves: must be at least 1, got '0'"),
        (["--num-shelves", "65"], "--num-shelves: must be at most 64, got '65'"),
        (["--exits", "0"], "--exits: must be at least 1, got '0'"),
        (["--patience-s", "nan"], "--patience-s: expected a finite number, got 'nan'"),
        (["--patience-s", "inf"], "--patience-s: expected a finite number, got 'inf'"),
        (["--patience-s", "soon"], "--patience-s: expected a number, got 'soon'"),
        (["--patience-s=-1"], "--patience-s: must be at least 0, got '-1'"),
        (["--is-open", "maybe"], "--is-open: expected true or false, got 'maybe'"),
        (["--size-bytes", "1 Pib"], "--size-bytes: expected a size in bytes such as 2GiB, got '1 Pib'"),
        (["--neighbours", " , "], "--neighbours: expected one or more addresses, separated by commas, got ' , '"),
        (["--log-level", "INFO"], "--log-level: expected one of debug, info, got 'INFO'"),
        (["--owner", " "], "--owner: expected a value, got ' '"),
        (["--owner", "a\nb", "--listen", ""], "--listen: expected a value, got ''"),
    ],
)
def test_malformed_value_is_named(argv: Sequence[str], message: str) -> None:
    assert refusal(*argv) == message


def test_malformed_variable_is_named() -> None:
    assert refusal(FENCEPOST_SHOP_EXITS="x") == "FENCEPOST_SHOP_EXITS: expected a whole number, got 'x'"
    assert refusal(FENCEPOST_SHOP_LISTEN="") == "FENCEPOST_SHOP_LISTEN: expected a value, got ''"


@pytest.mark.parametrize(
    "argv", [["--shelves", "3"], ["--num-shelve", "3"], ["stray"], ["--num-shelves"], ["--num_shelves", "3"]]
)
def test_unknown_or_incomplete_flag_is_named(argv: Sequence[str]) -> None:
    assert argv[0] in refusal(*argv)


def test_unknown_variable_of_this_service_is_named_with_the_known_ones() -> None:
    message = refusal(FENCEPOST_SHOP_SHELVES="3")
    assert message.startswith("FENCEPOST_SHOP_SHELVES: no such setting; known: FENCEPOST_SHOP_DATA_DIR, ")
    assert "FENCEPOST_SHOP_LISTEN" in message


def test_variables_of_others_are_no_business_of_ours() -> None:
    others = {"FENCEPOST_BAKERY_LISTEN": "x", "FENCEPOST_SHOPPING": "x", "fencepost_shop_exits": "x", "HOME": "x"}
    assert load_shop(**others) == load_shop()


def test_help_shows_flags_meanings_and_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        load_shop("--help")
    assert caught.value.code == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "usage: fencepost shop" in shown
    assert "--num-shelves NUM_SHELVES shelves, 100 % filled (default: 4)" in shown
    assert shown.count("(default: ") == 6, "only where there is something to show"


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("512", 512), ("1k", 1000), ("1KiB", 1024), ("2 GB", 2 * 10**9), ("0.5Mi", 2**19), (" 3t ", 3 * 10**12)],
)
def test_byte_sizes(text: str, size: int) -> None:
    assert byte_size(text) == size


@given(st.integers(0, 2**60))
@example(2**60 - 1)
def test_plain_byte_size_is_exact(size: int) -> None:
    assert byte_size(str(size)) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1", "1i", "1ib", "1.k", ".5", "1 2", "0x10", "1e9", "1KKiB"])
def test_what_is_no_byte_size(text: str) -> None:
    with pytest.raises(ValueError, match="a size in bytes"):
        byte_size(text)
