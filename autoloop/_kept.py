"""Leaves that JAX can't trace, as the activation function in a model: they ride along as static values.

`jax.jit` refuses them; `equinox.filter_jit` makes them static, and so does this. An argument that as a
whole is no array still has to be named static, as with `jax.jit`; numbers of Python are traced, as there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax

from autoloop import _mesh
from autoloop._signature import Statics

Arguments = tuple[tuple[Any, ...], Mapping[str, Any]]


@jax.tree_util.register_static
@dataclass(frozen=True)
class Kept:
    """A leaf as a part of its tree's structure: a call with an equal one is the same, with another one is not.

    Equal means: of one type, too. A leaf that can't be hashed may change unseen, so it is not kept.
    """

    value: Any
    kind: type


def _hashable(value: Any) -> bool:
    try:
        hash(value)
    except Exception:  # whatever a hash of the user's raises
        return False
    return True


def keep(statics: Statics, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Arguments | None:
    """The arguments with such leaves kept; None if there are none."""
    static, (rest, named) = statics.split(args, kwargs)
    given = [*rest, *named.values()]
    wrapped = [arg if jax.tree.all(jax.tree.map(_traceable, arg)) else _inside(arg) for arg in given]
    if all(a is b for a, b in zip(given, wrapped, strict=True)):
        return None
    count = len(rest)
    return statics.join(static, (tuple(wrapped[:count]), dict(zip(named, wrapped[count:], strict=True))))


def _inside(arg: Any) -> Any:
    whole = jax.tree_util.treedef_is_leaf(jax.tree.structure(arg))
    return _wrapped(arg) if not whole and jax.tree.all(jax.tree.map(_keepable, arg)) else arg


def _keepable(leaf: Any) -> bool:
    return _traceable(leaf) or _hashable(leaf)


def _wrapped(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf if _traceable(leaf) else Kept(leaf, type(leaf)), tree)


def free(tree: Any) -> Any:
    """The tree with its kept leaves as they were."""
    return jax.tree.map(lambda leaf: leaf.value if isinstance(leaf, Kept) else leaf, tree, is_leaf=_is_kept)


def call(fun: Callable[..., Any], statics: Statics, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """`fun` with its kept leaves as they were; those of its results are kept then."""
    static, dynamic = statics.split(args, kwargs)
    held = any(map(_is_kept, jax.tree.leaves(dynamic, is_leaf=_is_kept)))
    if held:
        args, kwargs = statics.join(static, free(dynamic))
    try:
        result = fun(*args, **kwargs)
    except jax.errors.ConcretizationTypeError as error:
        _advise(error, dynamic)
        raise
    return _wrapped(result) if held else result


def _is_kept(leaf: Any) -> bool:
    return isinstance(leaf, Kept)


def _traceable(leaf: Any) -> bool:
    try:
        _mesh.type_of(leaf)
    except TypeError:
        return False
    return True


def _advise(error: jax.errors.ConcretizationTypeError, dynamic: Any) -> None:
    """Names the Python numbers inside arguments: a library may mean one of them to be static."""
    found = jax.tree_util.tree_flatten_with_path(dynamic)[0]
    inside = [jax.tree_util.keystr(path[2:]) for path, leaf in found if len(path) > 2 and _is_number(leaf)]
    if inside:
        error.add_note(
            f"autoloop: the arguments hold Python numbers ({', '.join(inside)}), which are traced, as under jax.jit. "
            f"If one is meant to be static, as under equinox.filter_jit, split the argument: "
            f"arrays, static = equinox.partition(model, equinox.is_array), name `static` in static_argnames, "
            f"and put them together inside with equinox.combine(arrays, static)"
        )


def _is_number(leaf: Any) -> bool:
    if not _traceable(leaf) or (aval := _mesh.type_of(leaf)).shape:
        return False
    return bool(aval.weak_type or aval.dtype == bool)  # JAX has no weak booleans
