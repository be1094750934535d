"""The keys that are good now: the file's, read again when it changes.

    no file yet ──the file appears──▶ keys are required, until this process ends

Nothing that happens to the file afterwards opens the door again: while it is damaged or gone, the last good keys stay.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path

from services.gateway.tenants import key_file
from services.gateway.tenants.caller import DEFAULT, Caller
from services.gateway.tenants.key import Key, digest_of, parts_of
from services.gateway.tenants.key_file import KeyFileError, Stamp

CHECK_EVERY_S = 1.0

_NOBODY = Key("", bytes(32), DEFAULT, "", datetime.min)
"""No secret is known to have its digest; unknown ids are compared with it, so that they take as long as known ones."""
_log = logging.getLogger(__name__)


class KeyRing:
    """Owned by the event loop's thread.

    The file is looked at with one ``stat``, at most once in ``CHECK_EVERY_S`` seconds; it is small, and read only when
    it has changed.
    """

    def __init__(self, path: Path | None, *, is_required: bool, clock: Callable[[], float] = time.monotonic) -> None:
        """``path`` None: there are no keys. ``is_required``: also while there is no file yet.

        Raises KeyFileError when there is a file that cannot be used.
        """
        self._path = path
        self._is_required = is_required
        self._clock = clock
        self._key_by_id: Mapping[str, Key] = {}
        self._seen: Stamp | None = None
        self._trouble = ""
        self._next_check_s = clock() + CHECK_EVERY_S
        if path is not None:
            self._load(path)

    @property
    def is_required(self) -> bool:
        """Whether a request needs a key."""
        self._refresh()
        return self._is_required

    def caller(self, text: str) -> Caller | None:
        """Whom the key stands for; None for one that is not known or was revoked. Both take the same time."""
        self._refresh()
        key_id, secret = parts_of(text) or ("", text)
        key = self._key_by_id.get(key_id, _NOBODY)
        is_right = key.opens_with(digest_of(secret))
        return key.caller if is_right and key is not _NOBODY and key.revoked is None else None

    def _refresh(self) -> None:
        now_s = self._clock()
        if self._path is None or now_s < self._next_check_s:
            return
        self._next_check_s = now_s + CHECK_EVERY_S
        try:
            if key_file.stamp_of(self._path) != self._seen or self._trouble:
                self._load(self._path)
        except KeyFileError as error:
            # A file that is there makes keys a must, readable or not.
            self._is_required = True
            self._report(str(error))

    def _load(self, path: Path) -> None:
        found = key_file.read_keys(path)
        if found is None:
            if self._is_required and self._seen is not None:
                self._report(f"{path} is gone")
            return
        self._seen, keys = found
        self._key_by_id = {key.key_id: key for key in keys}
        self._is_required = True
        self._trouble = ""
        _log.info("API keys are required; %s has %d in use", path, sum(key.revoked is None for key in keys))

    def _report(self, trouble: str) -> None:
        """Log once, not every second."""
        if trouble != self._trouble:
            self._trouble = trouble
            _log.error("API keys: %s; until that is mended, those read last stay in use", trouble)
