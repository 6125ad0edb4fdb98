"""What the installed jax lacks of what `_jaxpr.py` needs, and what jaxprs that it can't read become."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator, Mapping
from typing import Any

import jax

from autoloop._records import UnsupportedJaxError

#: What reading a jaxpr raises that is written otherwise than we know.
_MISREAD = (AssertionError, AttributeError, ImportError, LookupError, TypeError, ValueError)


def module(name: str) -> Any:
    """A module of jax, None where it has no such module: `lacks` says so when a decorated function is called."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def lacks(needs: Mapping[str, tuple[str, ...]]) -> str:
    """Which of these names, by module, jax lacks, as one sentence; "" if none."""
    names = [(where, name) for where, wanted in needs.items() for name in wanted]
    gone = [f"{where}.{name}" for where, name in names if not hasattr(module(where), name)]
    return f"autoloop/_jaxpr.py needs what jax {jax.__version__} lacks: {', '.join(gone)}" if gone else ""


@contextlib.contextmanager
def reading() -> Iterator[None]:
    """For blocks that only read jaxprs: what goes wrong there is that this jax writes them otherwise than we know.

    Raises:
        UnsupportedJaxError: instead of what went wrong.
    """
    try:
        yield
    except _MISREAD as error:
        text = f"autoloop/_jaxpr.py cannot read the jaxprs of jax {jax.__version__}: {error!r}"
        raise UnsupportedJaxError(text) from error
