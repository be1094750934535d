"""Settings of the kvstore."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from services.process import ServerSettings
from services.settings import byte_size, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(ServerSettings):
    """Flags ``--…`` and variables ``FENCEPOST_KVSTORE_…``."""

    listen: str = setting("127.0.0.1:7404", help="address to serve on: host:port or unix:path")
    data_dir: Path = setting(Path("data/kv"), help="folder that holds the database; created when missing")
    ssd_bytes: int = setting(
        10 * 2**30, help="most bytes of pages, manifests and records together", parse=byte_size, minimum=1
    )
    disk_reserve_bytes: int = setting(
        512 * 2**20, help="free bytes to leave on the disk; below them nothing is written", parse=byte_size, minimum=0
    )
    max_writers: int = setting(8, help="Writes served at the same time", minimum=1)
    write_idle_s: float = setting(60.0, help="seconds a Write's client may stay silent", minimum=0.1)
    lease_s: float = setting(60.0, help="seconds that a Match protects what it found", minimum=0.1, maximum=600)
    response_ttl_s: float = setting(30 * 86_400.0, help="seconds a stored response lives by default", minimum=1)
    replay_ttl_s: float = setting(7 * 86_400.0, help="seconds a replay record lives by default", minimum=1)
    sweep_s: float = setting(300.0, help="seconds between two sweeps of expired records", minimum=0.1)
    shared_memory_dir: str = setting(
        "", help="folder in memory, shared with engines of this host: state is read through it; empty: off", parse=str
    )
    io_threads: int = setting(4, help="threads for blocking database calls", minimum=1)
