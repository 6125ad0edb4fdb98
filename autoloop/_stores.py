"""The stores that this process has open, one object per folder."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path

from autoloop import _config
from autoloop._config import Settings
from autoloop._store import Store

stores: dict[Hashable, Store] = {}


def store_of(settings: Settings) -> Store:
    """The store that these settings name; one object per folder and process."""
    name = (_config.cache_dir(settings), settings.wisdom)
    if name not in stores:
        stores[name] = Store(name[0], settings.wisdom)
    return stores[name]


def close_store(folder: Path) -> None:
    """Closes the stores in a folder and forgets them, so that it can be removed."""
    for name, store in list(stores.items()):
        if store.folder == folder:
            store.close()
            del stores[name]
