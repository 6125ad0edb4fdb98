"""The decorator: checks its options and wraps the function."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypedDict, TypeVar, Unpack, overload

from autoloop import _options
from autoloop._dispatch import Autoloop
from autoloop._function import Function

P = ParamSpec("P")
R = TypeVar("R")


class Given(TypedDict, total=False):
    """The options as type checkers see them; `autoloop` says what they mean."""

    static_argnums: int | Sequence[int] | None
    static_argnames: str | Sequence[str] | None
    donate_argnums: int | Sequence[int] | None
    donate_argnames: str | Sequence[str] | None
    expected_calls: int | None
    budget_s: float
    margin: float
    rtol: float | None
    atol: float | None
    bitwise: bool
    forms: Sequence[str] | None
    max_memory_bytes: int | None
    progress: bool | None
    allow_side_effects: bool
    mode: str | None
    make_inputs: Callable[..., Mapping[str, Any]] | None


@overload
def autoloop(fun: Callable[P, R], /, **options: Unpack[Given]) -> Autoloop[P, R]: ...


@overload
def autoloop(**options: Unpack[Given]) -> Callable[[Callable[P, R]], Autoloop[P, R]]: ...


def autoloop(
    fun: Callable[P, R] | None = None,
    /,
    *,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Sequence[str] | None = None,
    donate_argnums: int | Sequence[int] | None = None,
    donate_argnames: str | Sequence[str] | None = None,
    **tuning: Any,
) -> Autoloop[P, R] | Callable[[Callable[P, R]], Autoloop[P, R]]:
    """Wraps a function with nested loops; runs them in the form that is fastest on this device.

    Args:
        fun: any function that `jax.jit` takes; its loops are `jax.lax.scan`, `fori_loop` with static
            bounds, `lax.map`, and what `jax.grad` and `jax.vmap` make of them.
        static_argnums: as `jax.jit`.
        static_argnames: as `jax.jit`.
        donate_argnums: as `jax.jit`; trials work on copies.
        donate_argnames: as `jax.jit`; trials work on copies.
        **tuning: `expected_calls=None` (None: only run time counts; n: building is spread over n
            calls), `budget_s=30.0` (seconds that one tuning may take), `margin=0.03` (how much faster a
            winner must be, relative), `rtol=None, atol=None` (how far results may differ, relative to
            each output's largest magnitude and absolute; None for the dtype's default),
            `bitwise=False` (every bit must be equal), `forms=None` (names of forms to allow),
            `max_memory_bytes=None` (of device memory that a candidate may need), `progress=None` (True:
            a bar over the outermost loop of each call and from the start of a tuning, see
            `autoloop.progress`; False: none; None: one over a tuning that takes long),
            `allow_side_effects=False` (trials may repeat `io_callback`s; prints are never repeated),
            `mode=None` (`tune`, `cached`, `strict` or `off` where neither `settings(...)` nor the
            environment says one), `make_inputs=None` (for `warmup` with specs: called with what `warmup` got,
            it returns a dict from names of parameters to values; what it leaves out is made).

    Returns:
        An `Autoloop`, called like the function. Errors that the function raises pass through it.

    Raises:
        TypeError: an option that does not exist, or of the wrong type.
        ValueError: an option's value that is not allowed.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from autoloop import autoloop
        >>> @autoloop(budget_s=5)
        ... def total(xs):
        ...     return jax.lax.scan(lambda c, x: (c + x, None), 0.0, xs)[0]
        >>> print(total(jnp.ones(3)))
        3.0
    """
    jit_options = {
        "static_argnums": static_argnums,
        "static_argnames": static_argnames,
        "donate_argnums": donate_argnums,
        "donate_argnames": donate_argnames,
    }
    options = _options.check(tuning)

    def decorate(function: Callable[P, R]) -> Autoloop[P, R]:
        if not callable(function):
            raise TypeError(f"autoloop wraps a function; got {function!r}")
        given = {name: value for name, value in jit_options.items() if value is not None}
        return Autoloop(Function(function, given), options)

    return decorate if fun is None else decorate(fun)
