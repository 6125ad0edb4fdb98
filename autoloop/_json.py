"""JSON that somebody else may have written: each name once, numbers of a size that a program can mean."""

from __future__ import annotations

import json
import os
import re
import stat
from typing import Any

#: No number of ours has more digits; Python takes seconds to read one of a million.
_MOST_DIGITS = 40
#: What may be half a character: files and sqlite take none.
_HALF = re.compile(r"\\u[dD][89a-fA-F]")


def loads(text: Any) -> Any:
    """What a JSON text says.

    Raises:
        ValueError: it is no JSON, is nested too deep, names a thing twice, holds a number that is far too
            long or half a character.
    """
    try:
        data = json.loads(text, object_pairs_hook=_once, parse_int=_int)
    except RecursionError as error:
        raise ValueError(f"it is nested too deep ({error})") from None
    except TypeError as error:
        raise ValueError(str(error)) from None
    if isinstance(text, str) and _HALF.search(text):
        try:
            json.dumps(data, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"it holds half a character ({error.reason})") from None
    return data


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice!r:.60} is named twice")
    return found


def _int(text: str) -> int:
    if len(text) > _MOST_DIGITS:
        raise ValueError(f"it holds a number of {len(text)} digits")
    return int(text)


def read_file(path: str | os.PathLike[str], most_bytes: int) -> str:
    """The text of a regular file.

    Raises:
        OSError: it can't be read.
        ValueError: it is too large, no file that has an end, or no UTF-8.
    """
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise ValueError("it is not a regular file")
    with open(path, "rb") as file:
        found = file.read(most_bytes + 1)
    if len(found) > most_bytes:
        size = os.path.getsize(path)
        raise ValueError(f"it has {size} bytes; a file of over {most_bytes} bytes is refused")
    try:
        return found.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not JSON: {error}") from None
