"""What may lie in the store's folder: text that nobody else could have planted.

diskcache 5.6.3 unpickles rows marked as pickles even under its JSON disk (CVE-2025-69872), so the disk
class here refuses such rows for keys and for values.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Any

import diskcache
from diskcache.core import MODE_PICKLE

#: How diskcache names the files of large rows; any other name could lead out of the folder.
_OWN_FILE = re.compile(r"[0-9a-f]{2}[/\\][0-9a-f]{2}[/\\][0-9a-f]{28}\.val")
#: A row over this many bytes is no record.
_MOST_BYTES = 50_000_000


class RefusedError(ValueError):
    """A row that is no text of ours."""


class TextDisk(diskcache.Disk):  # type: ignore[misc]  # diskcache has no types
    """Stores text and nothing else; a row that would be unpickled is an error, which is a miss."""

    def put(self, key: Any) -> Any:
        if not isinstance(key, str):
            raise TypeError(f"keys are texts; got {type(key).__name__}")
        return super().put(key)

    def get(self, key: Any, raw: Any) -> Any:
        if not raw:
            raise RefusedError("a pickled key was refused")
        return super().get(key, raw)

    def store(self, value: Any, read: bool, key: Any = diskcache.UNKNOWN) -> Any:
        if not isinstance(value, str):
            raise TypeError(f"values are texts; got {type(value).__name__}")
        return super().store(value, read, key=key)

    def fetch(self, mode: Any, filename: Any, value: Any, read: bool) -> Any:
        if mode == MODE_PICKLE:
            raise RefusedError("a pickled row was refused")
        if filename is not None:
            self._check_file(filename)
        return super().fetch(mode, filename, value, read)

    def remove(self, file_path: Any) -> None:
        """Drops the file of a row; a row that names a file that is not of the store has none."""
        if _OWN_FILE.fullmatch(str(file_path)):
            super().remove(file_path)

    def _check_file(self, filename: Any) -> None:
        if not _OWN_FILE.fullmatch(str(filename)):
            raise RefusedError(f"a row that names the file {filename!r:.60} was refused")
        size = (Path(self._directory) / filename).stat().st_size
        if size > _MOST_BYTES:
            raise RefusedError(f"a row of {size} bytes was refused: over {_MOST_BYTES} are")


def make_private(folder: Path) -> None:
    """Makes the folder for this user only; refuses one that somebody else could have planted."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise OSError(f"{folder} is a link or a file, not a folder")
    if hasattr(os, "geteuid") and found.st_uid != os.geteuid():
        raise OSError(f"{folder} belongs to user {found.st_uid}, not to {os.geteuid()}")
    if found.st_mode & 0o077:
        folder.chmod(0o700)
