"""Settings, the listening socket, and the small reports."""

from __future__ import annotations

from pathlib import Path

import pytest
from fencepost.tokenizer.v1 import tokenizer_pb2 as pb

from services import settings
from services.gateway import cached
from services.gateway.config import GatewaySettings
from services.gateway.listener import listen, url_of
from services.settings import SettingsError


def load(*argv: str, **environ: str) -> GatewaySettings:
    return settings.load(GatewaySettings, "gateway", argv, environ)


def test_defaults() -> None:
    config = load()
    assert (config.host, config.port, config.tokenizers) == ("127.0.0.1", 8000, ("127.0.0.1:7401",))
    assert config.max_body_bytes == 32 * 2**20


@pytest.mark.parametrize("host", ["127.0.0.1", "127.3.2.1", "::1", "localhost"])
def test_loopback_needs_no_leave(host: str) -> None:
    assert load("--host", host).host == host


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.com", "localhost.example.com"])
def test_the_network_needs_an_explicit_leave(host: str) -> None:
    with pytest.raises(SettingsError, match=r"--host: .*API keys.*--allow-unauthenticated-network true"):
        load("--host", host)
    assert load("--host", host, "--allow-unauthenticated-network", "true").host == host
    assert load(FENCEPOST_GATEWAY_HOST=host, FENCEPOST_GATEWAY_ALLOW_UNAUTHENTICATED_NETWORK="true").host == host


@pytest.mark.parametrize(
    "argv",
    [
        ("--port", "-1"),
        ("--port", "65536"),
        ("--port", "http"),
        ("--tokenizers", ","),
        ("--max-body-bytes", "0"),
        ("--keep-alive-s", "0"),
        ("--request-timeout-s", "nan"),
        ("--log-level", "loud"),
        ("--tenant-concurrency", "0"),
        ("--max-concurrency", "0"),
        ("--nonsense", "1"),
    ],
)
def test_bad_flags_are_named(argv: tuple[str, str]) -> None:
    with pytest.raises(SettingsError, match=argv[0]):
        load(*argv)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_port_zero_is_any_free_port(host: str) -> None:
    with listen(host, 0) as listener:
        assert url_of(listener).startswith("http://")
        assert listener.getsockname()[1] > 0


def test_a_taken_port_says_which() -> None:
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=rf"^cannot listen on 127.0.0.1:{port}: the address is in use$"):
            listen("127.0.0.1", port)


def test_an_address_of_others_says_so() -> None:
    with pytest.raises(OSError, match=r"^cannot listen on 192\.0\.2\.1:8000: the address is not ours$"):
        listen("192.0.2.1", 8000)


def test_ipv6_is_written_in_brackets() -> None:
    try:
        listener = listen("::1", 0)
    except OSError:
        pytest.skip("no IPv6 address here")
    with listener:
        assert url_of(listener).startswith("http://[::1]:")


def test_a_file_of_keys_opens_the_network(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    with pytest.raises(SettingsError, match=r"there are no API keys.*`fencepost key create`"):
        load("--host", "0.0.0.0", "--keys-file", str(path))
    path.touch()
    assert load("--host", "0.0.0.0", "--keys-file", str(path)).needs_keys
    assert not load("--keys-file", str(path)).needs_keys


def test_tls_needs_both_files(tmp_path: Path) -> None:
    for flag in ("--tls-cert-file", "--tls-key-file"):
        with pytest.raises(SettingsError, match=r"^--tls-cert-file and --tls-key-file: TLS needs both$"):
            load(flag, str(tmp_path))
    assert load("--tls-cert-file", "a", "--tls-key-file", "b").scheme == "https"
    assert load().scheme == "http"


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [("127.0.0.1:8001", ("127.0.0.1", 8001)), ("[::1]:0", ("::1", 0)), ("localhost:1", ("localhost", 1)), ("", None)],
)
def test_the_operators_address(text: str, endpoint: tuple[str, int] | None) -> None:
    assert load("--operator-listen", text).operator_listen == endpoint


@pytest.mark.parametrize("text", ["8001", ":8001", "127.0.0.1", "127.0.0.1:http", "127.0.0.1:70000"])
def test_a_bad_operators_address_is_named(text: str) -> None:
    with pytest.raises(SettingsError, match=r"^--operator-listen: expected host:port"):
        load("--operator-listen", text)


def test_the_operators_pages_leave_loopback_only_on_demand() -> None:
    with pytest.raises(SettingsError, match=r"^--operator-listen: .*--allow-operator-network true"):
        load("--operator-listen", "0.0.0.0:8001")
    config = load("--operator-listen", "0.0.0.0:8001", "--allow-operator-network", "true")
    assert config.operator_listen == ("0.0.0.0", 8001)


def test_cache_header() -> None:
    tiers = [pb.TierTokens(tier=pb.TIER_VRAM, tokens=120), pb.TierTokens(tier=pb.TIER_HOST, tokens=3)]
    miss = pb.Miss(reason="restore skipped: cost", at_token=0, segment='to"ols\r\nx')
    shown = cached.header(pb.Cached(by_tier=tiers, recomputed_tokens=15, miss=miss))
    assert shown == 'vram=120 ssd=0 host=3 recomputed=15 miss="restore skipped: cost" at=0 segment=to?ols??x'
    assert cached.header(pb.Cached()) == "vram=0 ssd=0 recomputed=0"
