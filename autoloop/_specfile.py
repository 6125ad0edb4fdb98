"""Argument specs as text and JSON: `f32[64,128]` for an array, as the parts of a signature write it.

One signature is `{"args": [SPEC, ...], "kwargs": {NAME: SPEC}}`, or only the list of its arguments. A SPEC is
the text of an array, a number, true, false or null, a list, an object (a dict), `{"tuple": [...]}`, or
`{"value": "text"}` for a text that is a static argument.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from autoloop import _signature, _specs

#: (positional arguments, keyword arguments), of arrays and specs.
Signature = tuple[tuple[Any, ...], dict[str, Any]]

_ARRAY = re.compile(r"([a-z]\w*(?:<\w+>)?)\[((?:\d+(?:,\d+)*)?)\](\*?)")
#: XLA counts elements in 64 bits.
_MOST_DIGITS = 18
#: No tree of arguments is so deep; Python's own limit differs between its versions.
_DEEPEST = 100
_LONG = {"bf": "bfloat", "f": "float", "u": "uint", "i": "int", "c": "complex"}
#: Objects with one of these names alone are not dicts of the user's.
_MARKS = ("tuple", "value", "dict")


class SpecError(ValueError):
    """A value that has no spec as text, or a text that is no spec."""


# ---------------------------------------------------------------- to text


def to_data(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """A signature as JSON types.

    Raises:
        SpecError: naming an argument that JSON can't hold.
    """
    found: dict[str, Any] = {"args": [_data(arg, f"argument {i}") for i, arg in enumerate(args)]}
    if kwargs:
        found["kwargs"] = {name: _data(value, f"argument {name}") for name, value in sorted(kwargs.items())}
    return found


def _data(value: Any, where: str) -> Any:
    if value is None or type(value) in (bool, int, float):
        return value
    if type(value) is str:
        return {"value": value}
    if type(value) is list:
        return [_data(item, where) for item in value]
    if type(value) is tuple:
        return {"tuple": [_data(item, where) for item in value]}
    if type(value) is dict and all(type(name) is str for name in value):
        found = {name: _data(item, where) for name, item in value.items()}
        return {"dict": found} if len(found) == 1 and next(iter(found)) in _MARKS else found
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return _signature.aval_text(value)
    raise SpecError(f"{where} holds a {type(value).__name__}, which a spec in JSON can't say")


# ---------------------------------------------------------------- from text


def array(text: str) -> jax.ShapeDtypeStruct:
    """The spec of an array: `f32[64,128]`, `i32[]`, `bf16[8]*` (weakly typed), `key<fry>[]`.

    Raises:
        SpecError: the text is none.
    """
    found = _ARRAY.fullmatch(text)
    if found is None:
        raise SpecError(f"an array is written as f32[64,128] or i32[]; got {text!r:.60}")
    sizes = [size for size in found[2].split(",") if size]
    if any(len(size) > _MOST_DIGITS for size in sizes):
        raise SpecError(f"no axis is as long as that of {text!r:.60}")
    shape = tuple(map(int, sizes))
    return jax.ShapeDtypeStruct(shape, _dtype(found[1]), weak_type=bool(found[3]))


def _dtype(text: str) -> Any:
    if text.startswith("key<"):
        try:
            return _specs.key_dtype(text)
        except ValueError as error:
            raise SpecError(f"unknown kind of key {text!r}: {error}") from None
    found = re.fullmatch(r"(bf|f|u|i|c)(\d.*)", text)
    try:
        dtype = np.dtype(_LONG[found[1]] + found[2] if found else text)
    except TypeError:
        dtype = np.dtype(object)
    if dtype.kind not in "biufcV":  # V: what numpy makes of bfloat16 and its like
        raise SpecError(f"unknown dtype {text!r}; write f32, bf16, i32, u8, bool, c64 and the like")
    return dtype


def from_data(data: Any) -> Signature:
    """The arguments of one signature in JSON types.

    Raises:
        SpecError: the data is none.
    """
    data = {"args": data} if isinstance(data, list) else data
    if not isinstance(data, dict) or not data or set(data) - {"args", "kwargs"}:
        raise SpecError(f'a signature is [SPEC, ...] or {{"args": [...], "kwargs": {{...}}}}; got {data!r:.60}')
    args, kwargs = data.get("args", []), data.get("kwargs", {})
    if not isinstance(args, list) or not isinstance(kwargs, dict):
        raise SpecError(f"args must be a list and kwargs an object; got {data!r:.60}")
    return tuple(map(_value, args)), {name: _value(item) for name, item in kwargs.items()}


def _value(data: Any, depth: int = 0) -> Any:
    if depth > _DEEPEST:
        raise SpecError(f"an argument is nested deeper than {_DEEPEST} lists and objects")
    value = functools.partial(_value, depth=depth + 1)
    if isinstance(data, str):
        return array(data)
    if isinstance(data, list):
        return [*map(value, data)]
    if isinstance(data, dict):
        mark = next(iter(data)) if len(data) == 1 else ""
        if mark == "value":
            return data["value"]
        inner = data[mark] if mark in _MARKS else data
        if mark == "tuple" and isinstance(inner, list):
            return tuple(map(value, inner))
        if not isinstance(inner, dict):
            raise SpecError(f"{mark!r} must hold {'a list' if mark == 'tuple' else 'an object'}; got {inner!r:.60}")
        return {name: value(item) for name, item in inner.items()}
    return data


def several(data: Any) -> list[Signature]:
    """The signatures of JSON types: one, or a list of them.

    Raises:
        SpecError: the data is neither.
    """
    listed = isinstance(data, list) and data and all(isinstance(item, (list, dict)) for item in data)
    return [from_data(item) for item in (data if listed else [data])]
