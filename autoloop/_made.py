"""A call made of specs, some of whose values the user makes: `make_inputs`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from autoloop import _signature, _specs
from autoloop._call import Call, leaf_names
from autoloop._function import Args, Function, Kwargs
from autoloop._options import Options

_NOTE = "arguments were made by make_inputs, not real"


def call(function: Function, options: Options, args: Args, kwargs: Kwargs) -> Call:
    """The call of `warmup`'s arguments, with the values that the user's `make_inputs` makes for specs.

    Raises:
        TypeError: what `make_inputs` returned is no dict of parameters.
        ValueError: a value of another shape or dtype than its spec.
    """
    make, kwargs = _maker(function, options, kwargs)
    specs = Call.keeping(function, args, kwargs)
    if make is None or not _specs.has_specs(list(specs.leaves)):
        return specs
    made = Call.keeping(function, *_filled(function, args, kwargs, make(*args, **kwargs)))
    if made.key != specs.key:
        raise ValueError(f"make_inputs made other arguments than the specs say: {_odd(function, specs, made)}")
    return replace(made, notes=(_NOTE,))


def _maker(function: Function, options: Options, kwargs: Kwargs) -> tuple[Callable[..., Any] | None, Kwargs]:
    """The function that makes values, and the keywords without it, unless the user's function has one of its name."""
    if "make_inputs" not in kwargs or "make_inputs" in _parameters(function):
        return options.make_inputs, kwargs
    return kwargs["make_inputs"], {name: value for name, value in kwargs.items() if name != "make_inputs"}


def _parameters(function: Function) -> list[str]:
    try:
        return list(inspect.signature(function.fun).parameters)
    except (TypeError, ValueError):  # some callables do not tell
        return []


def _filled(function: Function, args: Args, kwargs: Kwargs, values: Any) -> tuple[Args, Kwargs]:
    names = _parameters(function)
    known = [*names[: len(args)], *kwargs]
    if not isinstance(values, Mapping) or not set(values) <= set(known):
        got = sorted(map(str, values)) if isinstance(values, Mapping) else type(values).__name__
        raise TypeError(f"make_inputs must return a dict whose names are among {', '.join(known)}; got {got}")
    filled = tuple(values.get(name, arg) for name, arg in zip(names, args, strict=False))
    return (*filled, *args[len(filled) :]), {name: values.get(name, value) for name, value in kwargs.items()}


def _odd(function: Function, specs: Call, made: Call) -> str:
    if specs.key.tree != made.key.tree:
        return "their structure differs"
    names, texts = leaf_names(function, specs), (map(_signature.aval_text, c.leaves) for c in (specs, made))
    found = [f"{name} is {now}, its spec {was}" for name, was, now in zip(names, *texts, strict=True) if was != now]
    return ", ".join(found) or "a static argument differs"
