"""``fencepost up``: the whole stack on one machine.

settings → locks and ports → model → processes → healthy → until a signal → stopped in order

Everything that can be refused is refused before the slow parts, in one line.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import json
import os
import shlex
import signal
import socket
import sys
import tempfile
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from services import probe, settings, stack
from services.child import ChildError, ChildSpec, SettingsRefusedError
from services.console import Console
from services.engine.config import EngineConfig
from services.gateway import tls
from services.gateway.config import GatewaySettings
from services.kvstore.config import Config as KvstoreConfig
from services.memory_dir import memory_dir
from services.models.errors import ModelError
from services.models.progress import ProgressLines
from services.models.store import resolve
from services.process import fail
from services.settings import SettingsError
from services.stack import Replica, UpSettings
from services.supervisor import Supervisor
from services.tokenizer.config import TokenizerSettings

_NAME: Final = "fencepost"
_CLOSING_S: Final = 5.0
"""Seconds on top of the grace period in which a service closes what it has open."""
_SETTINGS_BY_SERVICE: Final[Mapping[str, type]] = {
    "kvstore": KvstoreConfig,
    "engine": EngineConfig,
    "tokenizer": TokenizerSettings,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the stack until a signal; 0 after a clean stop, 2 for a setting that cannot be used, 1 for the rest."""
    # Until the event loop takes the signals, a terminated start cleans up behind itself as an interrupted one does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        config = settings.load(UpSettings, "up", sys.argv[1:] if argv is None else argv, os.environ)
        stack.check_variables(os.environ)
        data_dir = (config.data_dir or stack.default_data_dir()).absolute()
        gateway = _check_services(config, data_dir)
        _check_ports(config)
        with _locked(data_dir) as lock_fd:
            stack.ensure_capsule_keys(data_dir)
            model_dir = resolve(config.model, progress=ProgressLines())
            with (
                tempfile.TemporaryDirectory(prefix="fencepost-", dir=_socket_root(), ignore_cleanup_errors=True) as run,
                memory_dir(data_dir, config.engines) as memory,
            ):
                replicas = stack.lay_out(
                    config, data_dir=data_dir, model_dir=model_dir, run_dir=Path(run), memory_dir=memory
                )
                return 0 if asyncio.run(_run(config, gateway, replicas, data_dir, lock_fd)) else 1
    except (SettingsError, SettingsRefusedError) as error:
        return fail("up", error, 2)
    except (ModelError, ChildError, OSError) as error:
        return fail("up", error, 1)
    except KeyboardInterrupt:
        return 130


async def _run(
    config: UpSettings,
    gateway: GatewaySettings,
    replicas: Sequence[Sequence[Replica]],
    data_dir: Path,
    lock_fd: int,
) -> bool:
    names = [replica.name for stage in reversed(replicas) for replica in stage]
    has_colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    console = Console(sys.stdout, [_NAME, *names], has_colour=has_colour)
    stages = [[_child(config, replica, lock_fd) for replica in stage] for stage in replicas]
    supervisor = Supervisor(stages, console, name=_NAME, grace_s=config.grace_s + _CLOSING_S)
    console.write(_NAME, f"starting {', '.join(names)} with {config.model}; data in {data_dir}")
    is_clean = await supervisor.run(lambda elapsed_s: console.write_plain(_banner(config, gateway, elapsed_s)))
    console.write(_NAME, "stopped")
    return is_clean


def _child(config: UpSettings, replica: Replica, lock_fd: int) -> ChildSpec:
    is_healthy = (
        # Asked where it speaks plain HTTP, whatever clients speak.
        partial(probe.serves_http, "127.0.0.1", config.operator_port)
        if replica.service == "gateway"
        else partial(probe.serves_grpc, replica.address)
    )
    return ChildSpec(
        name=replica.name,
        # -P: a folder named `services` where the user happens to be must not be taken for this one.
        command=(sys.executable, "-P", "-m", f"services.{replica.service}", *replica.flags),
        is_healthy=is_healthy,
        # Should this process be killed, the data stays locked until its last user has finished.
        inherited_fds=(lock_fd,),
    )


def _banner(config: UpSettings, gateway: GatewaySettings, elapsed_s: float) -> str:
    host = _local(config.host)
    url = f"{gateway.scheme}://{f'[{host}]' if ':' in host else host}:{config.port}"
    needs_key = gateway.keys_file is not None and gateway.keys_file.exists()
    key_header = '-H "Authorization: Bearer $FENCEPOST_API_KEY" ' if needs_key else ""
    body = {"model": stack.model_id(config.model), "messages": [{"role": "user", "content": "Hello!"}]}
    lines = [
        "",
        f"  Ready after {elapsed_s:.1f} s: {url}/v1   Try:",
        "",
        f"  curl {url}/v1/chat/completions {key_header}-H 'Content-Type: application/json' \\",
        f"    -d {shlex.quote(json.dumps(body))}",
        "",
    ]
    if not needs_key:
        lines += [
            "  No API keys: everybody on this machine may use it. `fencepost key create --help` changes that.",
            "",
        ]
    lines += [f"  For its operator: http://127.0.0.1:{config.operator_port}/metrics, /health and /explain"]
    if ports := stack.metrics_ports(config):
        lines += [f"  Other metrics: 127.0.0.1:{ports.start}-{ports.stop - 1}/metrics"]
    lines += [""]
    return "\n".join([*lines, "  Ctrl-C stops everything and keeps the state on disk.", ""])


def _local(host: str) -> str:
    """Where this machine reaches a server that listens on ``host``."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)


def _check_services(config: UpSettings, data_dir: Path) -> GatewaySettings:
    """What the gateway is told. Raises SettingsError for what a service would refuse: an unknown variable, a value
    out of range, a certificate that cannot be used.
    """
    nowhere = Path("/")
    stages = stack.lay_out(config, data_dir=data_dir, model_dir=nowhere, run_dir=nowhere)
    for replica in (stage[0] for stage in stages):
        if replica.service != "gateway":
            settings.load(_SETTINGS_BY_SERVICE[replica.service], replica.service, replica.flags, os.environ)
    gateway = settings.load(GatewaySettings, "gateway", stages[0][0].flags, os.environ)
    if gateway.tls_cert_file is not None and gateway.tls_key_file is not None:
        tls.check(gateway.tls_cert_file, gateway.tls_key_file)
    return gateway


def _check_ports(config: UpSettings) -> None:
    """Raise OSError naming a port that cannot be had; the gateway would find out only after the model is there.

    Raises SettingsError for one that is given twice.
    """
    if config.operator_port == config.port:
        raise SettingsError(f"--operator-port: {config.port} is --port already; choose another")
    _check_port(config.host, config.port, "--port")
    _check_port("127.0.0.1", config.operator_port, "--operator-port")
    for port in stack.metrics_ports(config):
        _check_port("127.0.0.1", port, "--metrics-port")


def _check_port(host: str, port: int, flag: str) -> None:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind(address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise OSError(f"port {port} on {host} is in use; free it or choose another with {flag}") from None
        raise OSError(f"cannot listen on {host} port {port}: {error.strerror or error}") from None


@contextmanager
def _locked(data_dir: Path) -> Generator[int]:
    """Keep the data directory, made if need be, to this stack; yields the lock's descriptor.

    Raises OSError naming the directory. The kernel drops the lock when the last process that has it open ends.
    """
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock_fd = os.open(data_dir / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise OSError(f"--data-dir: cannot use {data_dir}: {error.strerror or error}") from None
    try:
        fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock_fd)
        raise OSError(f"{data_dir} is used by another `fencepost up`; stop it, or choose another --data-dir") from None
    try:
        yield lock_fd
    finally:
        os.close(lock_fd)


def _socket_root() -> str | None:
    """Where sockets go: the temporary folder unless its name is too long, since a socket's path has 103 bytes."""
    return None if len(os.fsencode(tempfile.gettempdir())) <= 64 else "/tmp"
