"""Runs a function in every legal plan and compares with plain jax: an assertion for users' tests."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from autoloop import _agree, _host
from autoloop._bound import Bound
from autoloop._decorate import autoloop
from autoloop._dispatch import Autoloop
from autoloop._function import Function
from autoloop._plan import Plan
from autoloop._plans import check_plan, runs_in_trace

#: What plans can be run under.
UNDER = ("plain", "jit", "grad", "vmap")

_Run = Callable[..., Any]


def _checked_under(under: Sequence[str]) -> Sequence[str]:
    if not under or any(word not in UNDER for word in under):
        raise ValueError(f"under must be some of {', '.join(UNDER)}; got {under!r}")
    return under


@functools.cache
def _known(options: tuple[tuple[str, str], ...]) -> bool:
    """Whether the installed XLA knows a plan's options: a tuning skips those that it does not."""
    try:
        jax.jit(lambda: 0, compiler_options=_host.compiler_options(options))()
    except jax.errors.JaxRuntimeError:
        return False
    return True


class _Case:
    """One function at some arguments, taken apart into its dynamic leaves."""

    def __init__(self, looped: Autoloop[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self._looped = looped
        self._function: Function = looped._function
        self._tolerance: _agree.Tolerance = looped._options.tolerance
        self._leaves, self._tree, self._static = self._function.flatten(args, kwargs)
        self._inexact = [i for i, x in enumerate(self._leaves) if jnp.issubdtype(jax.typeof(x).dtype, jnp.inexact)]

    def problems(self, word: str, plans: Sequence[Plan]) -> list[str]:
        """What disagrees under one word of `UNDER`."""
        run = {"plain": self._plain, "jit": self._jit, "grad": self._grad, "vmap": self._vmap}[word]
        expected = _agree.to_host(run(self._function.plain))
        found = []
        for plan in plans:
            if word != "plain" and not runs_in_trace(plan):
                continue
            with _naming(f"in plan {plan}, under {word}"):
                outs = run(self._looped.using(plan))
            _, reason = _agree.disagreement(expected, outs, self._tolerance)
            found += [f"{plan}, under {word}: {reason}"] if reason else []
        return found

    def _call(self, run: _Run, leaves: Sequence[Any]) -> list[Any]:
        args, kwargs = self._function.unflatten(leaves, self._tree, self._static)
        outs: list[Any] = jax.tree.leaves(run(*args, **kwargs))
        return outs

    def _fresh(self) -> list[Any]:
        """The leaves, copied: the function may donate them."""
        return [jnp.copy(x) if isinstance(x, jax.Array) else x for x in self._leaves]

    def _plain(self, run: _Run) -> list[Any]:
        return self._call(run, self._fresh())

    def _jit(self, run: _Run) -> list[Any]:
        outs: list[Any] = jax.jit(lambda leaves: self._call(run, leaves))(self._fresh())
        return outs

    def _vmap(self, run: _Run) -> list[Any]:
        outs: list[Any] = jax.vmap(lambda leaves: self._call(run, leaves))([*map(_two, self._fresh())])
        return outs

    def _grad(self, run: _Run) -> list[Any]:
        if not self._inexact:
            raise ValueError("under grad: the function has no argument of floating or complex numbers")

        def total(inexact: list[Any]) -> Any:
            given = dict(zip(self._inexact, inexact, strict=True))
            leaves = [given.get(i, x) for i, x in enumerate(self._leaves)]
            return _weighted_sum(self._call(run, leaves))

        gradients: list[Any] = jax.grad(total)([jnp.copy(self._leaves[i]) for i in self._inexact])
        return gradients


def _two(leaf: Any) -> Any:
    """A batch of two: the leaf, and it again or, if it is inexact, three quarters of it."""
    value = jnp.asarray(leaf)
    return jnp.stack([value, value * 0.75 if jnp.issubdtype(value.dtype, jnp.inexact) else value])


def _weighted_sum(outs: Sequence[Any]) -> Any:
    """A real number that depends on every element of the inexact outputs, on each one differently."""
    total = jnp.zeros(())
    for out in outs:
        if jnp.issubdtype(out.dtype, jnp.inexact):
            total += (jnp.real(out) * jnp.cos(jnp.arange(out.size)).reshape(out.shape)).sum()
    return total


@contextlib.contextmanager
def _naming(note: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        error.add_note(note)
        raise


def assert_forms_agree(
    fn: Callable[..., Any],
    /,
    *args: Any,
    under: str | Sequence[str] = ("plain",),
    plans: Sequence[str | Plan] | None = None,
    **kwargs: Any,
) -> list[Plan]:
    """Runs a function in every legal plan and compares with the function under plain `jax.jit`.

    Every plan is compiled once for each entry of `under`, so give small arguments: loops of three to
    seven iterations find what loops of thousands do. Tolerances are those of the decorator.

    Args:
        fn: a function decorated with `autoloop`, or a plain one.
        *args: its arguments, with values; nothing is donated.
        under: among `"plain"` (called at top level), `"jit"` (inside another jit), `"grad"` (the
            gradient of the sum of its inexact outputs) and `"vmap"` (two calls as one batch). In the
            last three only plans that can be part of a trace are run.
        plans: the plans to run instead of all legal ones.
        **kwargs: its arguments.

    Returns:
        The plans that were run.

    Raises:
        AssertionError: naming each plan that disagrees, under what, and by how much.
        ValueError: an unknown word in `under`, or plans that do not fit.
        Exception: what the function raises; a note says in which plan.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from autoloop.testing import assert_forms_agree
        >>> def total(xs):
        ...     return jax.lax.scan(lambda c, x: (c + x, None), 0.0, xs)[0]
        >>> plans = assert_forms_agree(total, jnp.ones(3), plans=["0=inline", "0=unroll(2)"])
        >>> print(*plans)
        0=inline 0=unroll(2)
    """
    wanted = _checked_under((under,) if isinstance(under, str) else under)
    if isinstance(fn, Bound):
        args = (fn.__self__, *args)
        fn = fn.__func__
    looped = fn if isinstance(fn, Autoloop) else autoloop(fn)
    found = looped.plans(*args, **kwargs) if plans is None else map(check_plan, plans)
    chosen = [plan for plan in found if plans is not None or _known(plan.options)]
    case = _Case(looped, args, kwargs)
    problems = [problem for word in wanted for problem in case.problems(word, chosen)]
    if problems:
        raise AssertionError("\n".join([f"{len(problems)} plans disagree with plain jax:", *problems]))
    return chosen
