"""Puts the kvstore together: database, stores, servicers, sweeper."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import grpc.aio
from fencepost.kvstore.v1 import record_pb2_grpc, snapshot_pb2_grpc

from services.health import IsReady, always
from services.kvstore.config import Config
from services.kvstore.limits import Limits
from services.kvstore.record_servicer import RecordServicer
from services.kvstore.records import RecordStore
from services.kvstore.snapshot_servicer import SnapshotServicer
from services.kvstore.store import open_store


@asynccontextmanager
async def build(config: Config, server: grpc.aio.Server) -> AsyncGenerator[Mapping[str, IsReady]]:
    """Open the data directory and register both services; yields their names. Raises DataDirectoryError."""
    limits = Limits(
        cap_bytes=config.ssd_bytes,
        disk_reserve_bytes=config.disk_reserve_bytes,
        max_writers=config.max_writers,
        lease_s=config.lease_s,
        response_ttl_s=config.response_ttl_s,
        replay_ttl_s=config.replay_ttl_s,
        sweep_s=config.sweep_s,
    )
    shared = Path(config.shared_memory_dir) if config.shared_memory_dir else None
    async with open_store(config.data_dir, limits, io_threads=config.io_threads) as store:
        records = RecordStore(store)
        await records.recount()
        snapshot_pb2_grpc.add_SnapshotServiceServicer_to_server(
            SnapshotServicer(store, records, config.write_idle_s, shared), server
        )
        record_pb2_grpc.add_RecordServiceServicer_to_server(RecordServicer(records), server)
        sweeper = asyncio.create_task(records.sweep_forever())
        try:
            yield {"fencepost.kvstore.v1.SnapshotService": always, "fencepost.kvstore.v1.RecordService": always}
        finally:
            sweeper.cancel()
            with suppress(asyncio.CancelledError):
                await sweeper
