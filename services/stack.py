"""What ``fencepost up`` runs: its settings, and the processes that follow from them.

    gateway (TCP) ──▶ tokenizer-0… ──▶ engine-0… ──▶ kvstore      all but the gateway on unix sockets

The sockets lie in one private folder, so no other port is needed and nothing unauthenticated can be reached.
"""

from __future__ import annotations

import base64
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from services.extras import SERVICES
from services.settings import SettingsError, byte_size, setting

_KEYS_FILE: Final = "keys.json"
_KEY_OF_CLIENTS: Final = "FENCEPOST_API_KEY"
"""What agents read in a shell from which the stack may be started too."""
_PREFIXES: Final = tuple(f"FENCEPOST_{name.upper()}_" for name in ("up", *SERVICES))


@dataclass(frozen=True, slots=True, kw_only=True)
class UpSettings:
    """Flags of ``fencepost up``, with FENCEPOST_UP_* behind them; a None leaves the service's own setting alone."""

    data_dir: Path | None = setting(
        None, help="folder for state on disk (default: $XDG_DATA_HOME/fencepost, else ~/.local/share/fencepost)"
    )
    host: str = setting("127.0.0.1", help="address that clients reach")
    port: int = setting(8000, help="TCP port that clients reach", minimum=1, maximum=65535)
    allow_unauthenticated_network: bool = setting(
        False, help="let --host be reachable from the network although there are no API keys"
    )
    keys_file: Path | None = setting(
        None,
        help="file of API keys (default: keys.json in the data directory); while it exists, requests need a key",
        alias="FENCEPOST_GATEWAY_KEYS_FILE",
    )
    operator_port: int = setting(
        8001, help="loopback port of the gateway's /metrics, /health and /explain", minimum=1, maximum=65535
    )
    model: str = setting("smollm2-135m-instruct", help="the default model, a model directory or a hub id org/name")
    vram_bytes: int | None = setting(
        None,
        help="each engine's memory for cached and running state (default: 2GiB on CPU)",
        parse=byte_size,
        minimum=1,
    )
    ssd_bytes: int | None = setting(
        None, help="most bytes of state on disk (default: 10GiB)", parse=byte_size, minimum=1
    )
    engines: int = setting(1, help="number of engines", minimum=1, maximum=64)
    tokenizers: int = setting(1, help="number of tokenizers", minimum=1, maximum=64)
    metrics_port: int = setting(
        0,
        help="first of the loopback ports with /metrics, one for each process but the gateway; 0: none",
        minimum=0,
        maximum=65_000,
    )
    grace_s: float = setting(30.0, help="seconds that requests in flight get at shutdown", minimum=0)
    log_level: str | None = setting(
        None, help="debug, info, warning or error (default: info)", choices=("debug", "info", "warning", "error")
    )


@dataclass(frozen=True, slots=True)
class Replica:
    """One process of the stack."""

    service: str
    name: str
    address: str
    """``unix:path``, or the gateway's ``host:port``."""
    flags: tuple[str, ...]


def lay_out(
    settings: UpSettings, *, data_dir: Path, model_dir: Path, run_dir: Path, memory_dir: Path | None = None
) -> list[list[Replica]]:
    """The stack's replicas, grouped in the order in which they stop. ``memory_dir`` is a folder in memory.

    Whoever sends to a neighbour stops before it, so what an engine still has to store reaches the kvstore.
    """
    shared = ["--grace-s", f"{settings.grace_s}"]
    if settings.log_level is not None:
        shared += ["--log-level", settings.log_level]
    metrics_port = settings.metrics_port

    def replica(service: str, name: str, *flags: str) -> Replica:
        nonlocal metrics_port
        address = f"unix:{run_dir / name}.sock"
        own = ["--listen", address, *flags, *shared]
        if settings.metrics_port:
            own += ["--metrics-listen", f"127.0.0.1:{metrics_port}"]
            metrics_port += 1
        return Replica(service, name, address, tuple(own))

    def sized(flag: str, size_bytes: int | None) -> list[str]:
        return [] if size_bytes is None else [flag, str(size_bytes)]

    memory = [] if memory_dir is None else ["--shared-memory-dir", str(memory_dir)]
    kvstore = replica(
        *("kvstore", "kvstore", "--data-dir", str(data_dir / "kvstore")),
        *sized("--ssd-bytes", settings.ssd_bytes),
        *memory,
    )
    model = ["--model", str(model_dir)]
    vram = sized("--vram-bytes", settings.vram_bytes)
    engines = [
        replica("engine", f"engine-{i}", *model, "--kvstore", kvstore.address, *vram, *memory)
        for i in range(settings.engines)
    ]
    tokenizers = [
        replica(
            *("tokenizer", f"tokenizer-{i}", *model, "--model-name", model_id(settings.model)),
            *("--engines", ",".join(engine.address for engine in engines)),
            *("--records", kvstore.address, "--capsule-keys", str(capsule_keys(data_dir))),
        )
        for i in range(settings.tokenizers)
    ]
    open_flags = ["--allow-unauthenticated-network", "true"] if settings.allow_unauthenticated_network else []
    gateway = Replica(
        "gateway",
        "gateway",
        f"{settings.host}:{settings.port}",
        (
            *("--host", settings.host, "--port", str(settings.port)),
            *("--tokenizers", ",".join(tokenizer.address for tokenizer in tokenizers)),
            *("--records", kvstore.address, "--keys-file", str(settings.keys_file or data_dir / _KEYS_FILE)),
            *("--operator-listen", f"127.0.0.1:{settings.operator_port}", *open_flags, *shared),
        ),
    )
    return [[gateway], tokenizers, engines, [kvstore]]


def keys_file(settings: UpSettings) -> Path:
    """The file of API keys that the gateway is given."""
    return settings.keys_file or (settings.data_dir or default_data_dir()) / _KEYS_FILE


def capsule_keys(data_dir: Path) -> Path:
    """The file whose key the tokenizers seal with, so that what clients bring back opens after a restart too."""
    return data_dir / "capsule-keys"


def ensure_capsule_keys(data_dir: Path) -> None:
    """Draw a key once; the file is the owner's only. Raises OSError."""
    path = capsule_keys(data_dir)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return
    with open(descriptor, "w", encoding="ascii") as file:
        file.write(f"{secrets.token_hex(8)}:{base64.b64encode(secrets.token_bytes(32)).decode()}\n")


def metrics_ports(settings: UpSettings) -> range:
    """The ports that ``--metrics-port`` stands for, in the order kvstore, engines, tokenizers."""
    count = 1 + settings.engines + settings.tokenizers if settings.metrics_port else 0
    return range(settings.metrics_port, settings.metrics_port + count)


def model_id(name: str) -> str:
    """The id by which clients know the model that ``--model`` names: a path's last part, otherwise the name itself."""
    path = Path(name).expanduser()
    if path.suffix == ".gguf":
        return path.stem
    return path.resolve().name if path.is_dir() else name


def default_data_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """``$XDG_DATA_HOME/fencepost``, by default ``~/.local/share/fencepost``."""
    base = environ.get("XDG_DATA_HOME", "")
    # The XDG specification has relative values ignored.
    root = Path(base) if Path(base).is_absolute() else Path.home() / ".local" / "share"
    return root / "fencepost"


def check_variables(environ: Mapping[str, str]) -> None:
    """Raise SettingsError for a FENCEPOST_* variable that no part of the stack would read."""
    for variable in sorted(environ):
        if variable == _KEY_OF_CLIENTS:
            continue
        if variable.startswith("FENCEPOST_") and not variable.startswith(_PREFIXES):
            raise SettingsError(f"{variable}: no such setting; settings start with {', '.join(_PREFIXES)}")
