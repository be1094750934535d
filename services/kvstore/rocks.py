"""The open RocksDB: its column families and their options, how it is opened, and repaired where it is damaged."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from rocksdict import BlockBasedOptions, ColumnFamily, DBCompressionType, Options, Rdict, ReadOptions, WriteOptions

from services.kvstore.errors import DataDirectoryError

Family = Literal["pages", "manifests", "index", "records"]
FAMILIES: tuple[Family, ...] = ("pages", "manifests", "index", "records")
DIRECTORY = "segments"
"""The family of ChunkLog's directory."""

_FORMAT_TEXT = "fencepost kvstore format 3\n"
_MAX_OPEN_FILES = 512
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Rocks:
    """Open handles; ``column_families`` are what batches want, ``families`` what everything else does.

    Emptied at close: after a failure close() alone does not unlock the directory, the last reference to a handle does,
    and tracebacks of failed calls still refer to this object.
    """

    database: Rdict
    families: dict[str, Rdict]
    column_families: dict[str, ColumnFamily]
    no_wal: WriteOptions
    is_repaired: bool

    def close(self) -> None:
        """Give the directory back."""
        # Families first: an open one keeps the directory locked.
        for handle in (*self.families.values(), self.database):
            try:
                handle.close()
            except Exception as error:  # noqa: BLE001 - after a failed flush close() reports that failure again
                _log.warning("closing the database: %s", error)
            del handle
        self.families.clear()
        self.column_families.clear()
        del self.database


def open_rocks(directory: Path) -> Rocks:
    """Open or create. Raises DataDirectoryError."""
    path = directory / "rocksdb"
    try:
        try:
            database, is_repaired = _open(path), False
        except Exception as error:
            is_damaged = "Corruption" in str(error) or "No such file" in str(error)
            if not is_damaged or "LOCK" in str(error):
                raise
            # Rebuilds its bookkeeping from the tables that are whole; what is lost with the others is a shorter hit.
            _log.error("repairing %s: %s", path, error)
            Rdict.repair(str(path), _database_options())
            database, is_repaired = _open(path), True
    except Exception as error:  # noqa: BLE001 - rocksdict raises nothing more precise
        if "LOCK" in str(error):
            raise DataDirectoryError(f"{directory} is in use by another process") from None
        raise DataDirectoryError(f"cannot open {directory}: {error}") from None
    no_wal = WriteOptions()
    # The stub declares a method where the binding has a property.
    cast(Any, no_wal).disable_wal = True
    families = {name: database.get_column_family(name) for name in (*FAMILIES, DIRECTORY)}
    # Every chunk is checked by its own checksum.
    unverified = ReadOptions()
    unverified.set_verify_checksums(False)
    families["pages"].set_read_options(unverified)
    return Rocks(
        database,
        families,
        {name: database.get_column_family_handle(name) for name in (*FAMILIES, DIRECTORY)},
        no_wal,
        is_repaired,
    )


def check_format(directory: Path) -> None:
    """The file FORMAT says what wrote the directory; it is there before the database is. Raises DataDirectoryError."""
    marker = directory / "FORMAT"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if marker.exists():
            if marker.read_bytes() != _FORMAT_TEXT.encode():
                raise DataDirectoryError(
                    f"{directory} was written by another version (see its file FORMAT); move it away to start anew"
                )
        elif any(entry.name != "lost+found" for entry in directory.iterdir()):
            raise DataDirectoryError(f"{directory} is not empty and has no file FORMAT; it is not a data directory")
        else:
            marker.write_text(_FORMAT_TEXT)
    except OSError as error:
        raise DataDirectoryError(f"cannot use {directory}: {error.strerror}") from None


def page_options() -> Options:
    """Options of the family ``pages`` and of the files made for it."""
    options = Options(raw_mode=True)
    options.set_compression_type(DBCompressionType.none())
    # Two levels: files are added below, deletions above, and one goes into the other when a file is rewritten.
    options.set_disable_auto_compactions(True)
    options.set_num_levels(2)
    options.set_target_file_size_base(2**30)
    table = BlockBasedOptions()
    # The page cache of the system holds the files already.
    table.disable_cache()
    # Where a blob lies in several segments, the others are ruled out without reading a block.
    table.set_bloom_filter(10, False)
    options.set_block_based_table_factory(table)
    return options


def _open(path: Path) -> Rdict:
    families = {name: Options(raw_mode=True) for name in (*FAMILIES, DIRECTORY)}
    families["pages"] = page_options()
    return Rdict(str(path), _database_options(), column_families=families)


def _database_options() -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    options.set_keep_log_file_num(2)
    options.set_stats_dump_period_sec(0)
    # Bounds the log that a restart replays.
    options.set_max_total_wal_size(64 * 2**20)
    # A store of a terabyte has more files than a process may open.
    options.set_max_open_files(_MAX_OPEN_FILES)
    # Chunks of a page lie behind one another; without the system's readahead cold reads take twice as long.
    options.set_advise_random_on_open(False)
    return options
