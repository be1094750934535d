"""What the gateway can be told."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from services.settings import SettingsError, address_list, byte_size, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """Flags of ``fencepost gateway``. Raises SettingsError when they contradict each other."""

    host: str = setting("127.0.0.1", help="name or IP address to listen on")
    port: int = setting(8000, help="TCP port; 0: any free one, which is logged", minimum=0, maximum=65535)
    tokenizers: tuple[str, ...] = setting(
        ("127.0.0.1:7401",), help="comma-separated gRPC addresses of the tokenizer's replicas", parse=address_list
    )
    max_body_bytes: int = setting(
        32 * 2**20, help="longest request body, before and after decompression", parse=byte_size, minimum=1
    )
    request_timeout_s: float = setting(3600.0, help="seconds an answer may take altogether", minimum=0.01)
    keep_alive_s: float = setting(
        5.0, help="seconds of silence after which a stream carries an empty event", minimum=0.01
    )
    allow_unauthenticated_network: bool = setting(False, help="listen beyond loopback although there are no API keys")
    grace_s: float = setting(30.0, help="seconds that answers in flight get at shutdown", minimum=0)
    log_level: str = setting(
        "info", help="debug, info, warning or error", choices=("debug", "info", "warning", "error")
    )

    def __post_init__(self) -> None:
        if not self.allow_unauthenticated_network and not _is_loopback(self.host):
            raise SettingsError(
                f"--host: {self.host} can be reached from the network, and there are no API keys yet, so anyone there "
                "could use this server; keep 127.0.0.1, or say --allow-unauthenticated-network true where something "
                "else guards it"
            )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
