"""The kvstore's database against plain files: bandwidth, bytes that reach the disk, and disk use under churn.

Each round writes and reads the same bytes both ways, in changing order. Cold means that the files were dropped from the
page cache. Churn holds conversations at the cap: a turn adds pages and a tail, the tail before it goes; room is made by
conversations, half of them the longest unused and half at random, of which shared first pages stay; or, scattered, by
the last two pages of one. Amplification counts all bytes written by this process, over those of the values.
The last line is one JSON object.

    python -m bench.kvstore [--json] [--rounds 5] [--directory DIR]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from services.kvstore.background import Background
from services.kvstore.database import Batch, Database
from services.kvstore.format import chunk_key
from services.kvstore.garbage import Garbage
from services.kvstore.state import BlobId, Span, new_blob_id

MIB = 2**20
CHUNK_BYTES = 192 * 1024
PAGE_CHUNKS = 32
TURN_PAGES = 4
HOP_CHUNKS = 21
READ_TURNS = 12
CAP_BYTES = 1_536 * MIB
OPEN_CONVERSATIONS = 12
SHARED_EVERY = 8
Row = tuple[bytes, bytes]


def page(rng: random.Random, data: Sequence[bytes], num_chunks: int = PAGE_CHUNKS) -> tuple[BlobId, list[Row]]:
    """Chunks of a new blob. Values repeat, which nothing here makes use of."""
    blob_id = new_blob_id()
    spans = [Span(layer, 0, 0, CHUNK_BYTES) for layer in range(num_chunks)]
    return blob_id, [(chunk_key(blob_id, span), rng.choice(data)) for span in spans]


def write_store(database: Database, rows: Sequence[Row], name: bytes) -> None:
    """As a Write does it: some chunks at a time, a flush, and a row that makes them count."""
    for start in range(0, len(rows), HOP_CHUNKS):
        database.put_chunks(rows[start : start + HOP_CHUNKS])
    database.flush_pages()
    batch = Batch()
    batch.put("manifests", name, bytes(1_000))
    database.write_durably(batch)


def write_plain(path: Path, rows: Sequence[Row]) -> None:
    with path.open("wb", buffering=0) as file:
        for _, value in rows:
            file.write(value)
        os.fsync(file.fileno())


def drop_caches(directory: Path) -> None:
    """Drop the files from the page cache."""
    os.sync()
    for path in directory.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def disk_bytes(directory: Path) -> int:
    """What the files take; those that vanish meanwhile take nothing."""
    total = 0
    for path in directory.rglob("*"):
        try:
            total += path.stat().st_blocks * 512
        except FileNotFoundError:
            continue
    return total


def written_bytes() -> int:
    """Bytes this process has caused to be written."""
    os.sync()
    lines = Path("/proc/self/io").read_text().splitlines()
    counts = {name: int(value) for name, value in (line.split(": ") for line in lines)}
    return counts["write_bytes"] - counts["cancelled_write_bytes"]


def timed(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def bandwidth(root: Path, rounds: int, data: Sequence[bytes]) -> tuple[dict[str, float], dict[str, float]]:
    """Medians in GB/s, and ratios of the store to plain files, each the median of its rounds."""
    seconds: defaultdict[str, list[float]] = defaultdict(list)
    place = bytearray(READ_TURNS * TURN_PAGES * PAGE_CHUNKS * CHUNK_BYTES)
    view = memoryview(place)
    for round_ in range(rounds):
        rng = random.Random(round_)
        turns = [[row for _ in range(TURN_PAGES) for row in page(rng, data)[1]] for _ in range(READ_TURNS)]
        plain, store = root / "plain", root / "store"
        plain.mkdir()
        database = Database(store, 4)

        def write_all_plain(turns: list[list[Row]] = turns, plain: Path = plain) -> None:
            for number, rows in enumerate(turns):
                write_plain(plain / str(number), rows)

        def write_all_store(turns: list[list[Row]] = turns, database: Database = database) -> None:
            for number, rows in enumerate(turns):
                write_store(database, rows, number.to_bytes(48, "big"))

        def read_plain(copy: bool, plain: Path = plain, turns: list[list[Row]] = turns) -> None:
            at = 0
            for number, rows in enumerate(turns):
                with (plain / str(number)).open("rb", buffering=0) as file:
                    for _ in range(0, len(rows), HOP_CHUNKS):
                        part = file.read(HOP_CHUNKS * CHUNK_BYTES) if copy else None
                        end = at + (len(part) if part is not None else 0)
                        if part is None:
                            end = at + file.readinto(view[at : at + HOP_CHUNKS * CHUNK_BYTES])
                        else:
                            view[at:end] = part
                        at = end

        def read_store(copy: bool, database: Database = database, turns: list[list[Row]] = turns) -> None:
            at = 0
            for rows in turns:
                keys = [key for key, _ in rows]
                for start in range(0, len(keys), HOP_CHUNKS):
                    for value in database.get_many("pages", keys[start : start + HOP_CHUNKS]):
                        assert value is not None
                        if copy:
                            view[at : at + CHUNK_BYTES] = value
                            at += CHUNK_BYTES

        writes = [("write_plain", write_all_plain), ("write_store", write_all_store)]
        for name, function in writes if round_ % 2 else writes[::-1]:
            seconds[name].append(timed(function))
        reads: list[tuple[str, Callable[[], None]]] = [
            ("plain", lambda: read_plain(False)),
            ("plain_copy", lambda: read_plain(True)),
            ("store", lambda: read_store(False)),
            ("store_copy", lambda: read_store(True)),
        ]
        for name, function in reads if round_ % 2 else reads[::-1]:
            drop_caches(root)
            seconds[f"cold_{name}"].append(timed(function))
            seconds[f"warm_{name}"].append(timed(function))
        assert bytes(view[: 2 * CHUNK_BYTES]) == turns[0][0][1] + turns[0][1][1]
        source = bytes(len(place))
        seconds["memcpy"].append(timed(lambda source=source: view.__setitem__(slice(None), source)))
        database.close()
        shutil.rmtree(plain)
        shutil.rmtree(store)
    size = len(place)
    speed = {name: round(size / statistics.median(values) / 1e9, 2) for name, values in seconds.items()}
    pairs = [("write", "write_plain", "write_store")]
    pairs += [(f"{t}_read{c}", f"{t}_plain{c}", f"{t}_store{c}") for t in ("warm", "cold") for c in ("", "_copy")]
    pairs += [("warm_read_over_memcpy", "memcpy", "warm_store"), ("write_over_memcpy", "memcpy", "write_store")]
    ratios = {
        f"{name}_over_plain" if "over" not in name else name: round(
            statistics.median(a / b for a, b in zip(seconds[base], seconds[ours], strict=True)), 3
        )
        for name, base, ours in pairs
    }
    return speed, ratios


@dataclass(slots=True)
class Conversation:
    """Its pages in order, some of them shared, and the tail of its last turn."""

    pages: list[BlobId] = field(default_factory=list[BlobId])
    shared: bool = False
    tail: BlobId | None = None
    used: int = 0


async def churn(root: Path, data: Sequence[bytes], turnover: float, *, is_scattered: bool) -> dict[str, float]:
    """Fill to the cap, then turn over ``turnover`` caps; bytes to the disk over bytes handed over, before and after."""
    rng = random.Random(1)
    database = Database(root / "churn", 2)
    background = Background()
    garbage = Garbage(database, background, CAP_BYTES)
    sizes: dict[BlobId, int] = {}
    live: list[Conversation] = []
    speaking: list[Conversation] = []
    result: dict[str, float] = {}
    used = handed = turn = 0
    peak, start, marks = 0, time.perf_counter(), [(0, written_bytes())]

    async def forget(blob_ids: Sequence[BlobId]) -> None:
        nonlocal used
        used -= sum(sizes.pop(blob_id) for blob_id in blob_ids)
        await garbage.discard(blob_ids)

    while handed < (1 + turnover) * CAP_BYTES:
        turn += 1
        if len(speaking) < OPEN_CONVERSATIONS:
            speaking.append(Conversation(shared=rng.randrange(SHARED_EVERY) == 0))
            live.append(speaking[-1])
        conversation = rng.choice(speaking)
        if len(conversation.pages) > 6 * TURN_PAGES:
            speaking.remove(conversation)
        conversation.used = turn
        blobs = [page(rng, data) for _ in range(rng.randint(1, TURN_PAGES))]
        tail, tail_rows = page(rng, data, rng.randint(1, PAGE_CHUNKS // 2))
        rows = [row for _, chunks in blobs for row in chunks] + tail_rows
        num_bytes = sum(len(value) for _, value in rows)
        while used + num_bytes > CAP_BYTES:
            may_go = [c for c in live if len(c.pages) > c.shared]
            victim = min(may_go, key=lambda c: c.used) if rng.random() < 0.5 else rng.choice(may_go)
            gone = victim.pages[max(victim.shared, len(victim.pages) - 2 if is_scattered else 0) :]
            del victim.pages[len(victim.pages) - len(gone) :]
            if victim.tail is not None:
                gone.append(victim.tail)
                victim.tail = None
            if not victim.pages:
                live.remove(victim)
                speaking = [c for c in speaking if c is not victim]
            await forget(gone)
        if len(kept := [c for c in live if c.shared]) * 10 * PAGE_CHUNKS * CHUNK_BYTES > CAP_BYTES:
            # Even what is shared falls out of use.
            kept[0].shared = False
        if "written_over_handed" not in result and used + num_bytes > 0.9 * CAP_BYTES:
            await background.settle()
            result["written_over_handed"] = (written_bytes() - marks[0][1]) / handed
        if len(marks) == 1 and handed > (1 + turnover / 3) * CAP_BYTES:
            await background.settle()
            marks.append((handed, written_bytes()))
        await database.run(write_store, database, rows, turn.to_bytes(48, "big"))
        old, conversation.tail = conversation.tail, tail
        conversation.pages += [blob_id for blob_id, _ in blobs]
        for blob_id, chunks in (*blobs, (tail, tail_rows)):
            sizes[blob_id] = sum(len(value) for _, value in chunks)
        handed += num_bytes
        used += num_bytes
        await forget([] if old is None else [old])
        peak = max(peak, disk_bytes(root / "churn"))
    await background.settle()
    marks.append((handed, written_bytes()))
    result["churn_written_over_handed"] = (marks[2][1] - marks[1][1]) / (marks[2][0] - marks[1][0])
    result["disk_over_cap"] = peak / CAP_BYTES
    result["churn_gb_s"] = handed / (time.perf_counter() - start) / 1e9
    database.close()
    shutil.rmtree(root / "churn")
    return {name: round(value, 3) for name, value in result.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print the last line only")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--turnover", type=float, default=4.0, help="caps written after the first")
    parser.add_argument("--directory", type=Path, help="on the disk to measure; default: the temporary directory")
    arguments = parser.parse_args()
    data = [random.Random(seed).randbytes(CHUNK_BYTES) for seed in range(64)]
    root = Path(tempfile.mkdtemp(prefix="bench-kvstore-", dir=arguments.directory))
    try:
        speed, ratios = bandwidth(root, arguments.rounds, data)
        report: dict[str, Any] = {"gb_s": speed, "ratios": ratios}
        if not arguments.json:
            print(json.dumps(report, indent=1))
        report |= asyncio.run(churn(root, data, arguments.turnover, is_scattered=False))
        scattered = asyncio.run(churn(root, data, arguments.turnover, is_scattered=True))
        report |= {f"scattered_{name}": value for name, value in scattered.items() if name != "written_over_handed"}
    finally:
        shutil.rmtree(root)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
