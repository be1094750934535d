"""What the gateway can be told."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path

from services.gateway.model_aliases import ModelAlias, parse_aliases
from services.settings import SettingsError, address_list, byte_size, setting

Endpoint = tuple[str, int]
"""Host and port."""


def _endpoint(text: str) -> Endpoint | None:
    if not text:
        return None
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdecimal() or int(port) > 65535:
        raise ValueError("host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """Flags of ``fencepost gateway``. Raises SettingsError when they contradict each other."""

    host: str = setting("127.0.0.1", help="name or IP address to listen on")
    port: int = setting(8000, help="TCP port; 0: any free one, which is logged", minimum=0, maximum=65535)
    tokenizers: tuple[str, ...] = setting(
        ("127.0.0.1:7401",), help="comma-separated gRPC addresses of the tokenizer's replicas", parse=address_list
    )
    records: str = setting(
        "", help="gRPC address of the kvstore that keeps stored responses; empty: they live in this process", parse=str
    )
    response_ttl_s: float = setting(30 * 86_400.0, help="seconds a stored response is kept", minimum=1)
    model_aliases: tuple[ModelAlias, ...] = setting(
        parse_aliases("claude-*,gpt-*"),
        help="other names of models, PATTERN or PATTERN=MODEL, comma-separated; without MODEL the first one served",
        parse=parse_aliases,
    )
    max_body_bytes: int = setting(
        32 * 2**20, help="longest request body, before and after decompression", parse=byte_size, minimum=1
    )
    keys_file: Path | None = setting(
        None,
        help="file of API keys, which `fencepost key create` makes; while it exists, every request needs one of them",
    )
    tenant_concurrency: int = setting(64, help="most requests of one tenant that are answered at once", minimum=1)
    max_concurrency: int = setting(512, help="most requests that are answered at once altogether", minimum=1)
    tls_cert_file: Path | None = setting(
        None, help="certificate in PEM form, with its chain; clients then speak HTTPS; read at the start only"
    )
    tls_key_file: Path | None = setting(None, help="private key of the certificate, in PEM form without a password")
    operator_listen: Endpoint | None = setting(
        None, help="host:port of /metrics, /health and /explain, which ask for no key; empty: none", parse=_endpoint
    )
    request_timeout_s: float = setting(3600.0, help="seconds an answer may take altogether", minimum=0.01)
    keep_alive_s: float = setting(
        5.0, help="seconds of silence after which a stream carries an empty event", minimum=0.01
    )
    websocket: bool = setting(True, help="serve the Responses protocol over WebSocket too")
    max_websockets: int = setting(256, help="WebSocket connections at once; more are refused", minimum=1)
    allow_unauthenticated_network: bool = setting(False, help="listen beyond loopback although there are no API keys")
    allow_operator_network: bool = setting(False, help="let --operator-listen be reachable from the network")
    grace_s: float = setting(30.0, help="seconds that answers in flight get at shutdown", minimum=0)
    log_level: str = setting(
        "info", help="debug, info, warning or error", choices=("debug", "info", "warning", "error")
    )

    def __post_init__(self) -> None:
        if self.needs_keys and not (self.keys_file is not None and self.keys_file.exists()):
            raise SettingsError(
                f"--host: {self.host} can be reached from the network, and there are no API keys, so anyone there "
                "could use this server; make one with `fencepost key create`, keep 127.0.0.1, or say "
                "--allow-unauthenticated-network true where something else guards it"
            )
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            raise SettingsError("--tls-cert-file and --tls-key-file: TLS needs both")
        if self.operator_listen is not None and not self.allow_operator_network:
            host, port = self.operator_listen
            if not _is_loopback(host):
                raise SettingsError(
                    f"--operator-listen: {host} can be reached from the network, and port {port} asks for no key; "
                    "keep 127.0.0.1, or say --allow-operator-network true where something else guards it"
                )

    @property
    def needs_keys(self) -> bool:
        """Whether clients must show a key, whatever happens to the file of keys."""
        return not self.allow_unauthenticated_network and not _is_loopback(self.host)

    @property
    def scheme(self) -> str:
        """What clients speak: http or https."""
        return "http" if self.tls_cert_file is None else "https"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
