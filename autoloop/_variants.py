"""Programs that stand in for a user's function while it is tuned: under `grad`, and without its prints."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from autoloop import _jaxpr, _prints, _signature
from autoloop._function import Args, Function, Kwargs
from autoloop._plan import Plan
from autoloop._plans import runs_in_trace
from autoloop._program import Program


@dataclass(frozen=True)
class _Differentiated(Function):
    """(outputs, gradients) of a function; its loops run as planned and are then differentiated."""

    def emit(self, plan: Plan, args: Args, kwargs: Kwargs, strict: bool = False) -> Any:
        leaves, tree, static = self.flatten(args, kwargs)
        smooth = [i for i, leaf in enumerate(leaves) if _is_inexact(jax.typeof(leaf))]

        def run(*values: Any) -> tuple[list[Any], list[Any]]:
            whole = list(leaves)
            for position, value in zip(smooth, values, strict=True):
                whole[position] = value
            inner_args, inner_kwargs = self.unflatten(whole, tree, static)
            outs = jax.tree.leaves(Function.emit(self, plan, inner_args, inner_kwargs, strict))
            return _split(outs, lambda out: _is_inexact(jax.typeof(out)))

        outs, pullback, rest = jax.vjp(run, *(leaves[i] for i in smooth), has_aux=True)
        return outs, rest, pullback([_cotangent(out) for out in outs])


def _split(values: Sequence[Any], chosen: Callable[[Any], bool]) -> tuple[list[Any], list[Any]]:
    return [v for v in values if chosen(v)], [v for v in values if not chosen(v)]


def _is_inexact(aval: Any) -> bool:
    return bool(jnp.issubdtype(aval.dtype, jnp.inexact))


def _cotangent(out: Any) -> Any:
    """Cheap to make, and no two alike: where outputs sum to a constant, ones have a gradient of zero."""
    steps = jnp.arange(out.size, dtype=jnp.float32).reshape(out.shape)
    return jnp.cos(steps).astype(out.dtype)


@dataclass(frozen=True)
class GradProgram(Program):
    """A program whose candidates are forward and backward pass in one; its loops are the forward ones."""

    shortens: ClassVar[bool] = False
    note: ClassVar[str] = (
        "tuned as forward and backward pass together; not eligible there: Python loops (python, eager), "
        "XLA options, and until, whose while JAX can't differentiate in reverse"
    )

    def why_not(self, plan: Plan) -> str | None:
        """Why a plan can't run under `grad`; None if it can."""
        if not runs_in_trace(plan):
            return f"{plan}: under grad a plan must be one differentiable program without XLA options"
        return super().why_not(plan)


def under_grad(program: Program) -> GradProgram:
    """The program to tune for calls that are differentiated in reverse.

    Raises:
        ValueError: there is nothing to differentiate.
    """
    for what, avals in (
        ("argument", _jaxpr.in_avals(program.traced.jaxpr)),
        ("output", _jaxpr.out_avals(program.traced.jaxpr)),
    ):
        if not any(map(_is_inexact, avals)):
            raise ValueError(
                f"under='grad': {program.function.name} has no {what} of a float or complex dtype, so there "
                f"is nothing to differentiate; warm it up without `under`"
            )
    options = {k: v for k, v in program.function.jit_options.items() if not k.startswith("donate")}
    function = _Differentiated(program.function.fun, options)
    traced = dataclasses.replace(program.traced, donated=(False,) * len(program.traced.donated))
    return GradProgram(function, program.key, traced, program.block, program.loops)


@dataclass(frozen=True)
class _QuietProgram(Program):
    """A program without its prints; what the one with prints can't run, it does not run either."""

    loud: Program

    def why_not(self, plan: Plan) -> str | None:
        """Why a plan can't run the program with its prints, or this one; None if it can run both."""
        return self.loud.why_not(plan) or super().why_not(plan)


@dataclass(frozen=True)
class _QuietGradProgram(_QuietProgram, GradProgram):
    """The same of forward and backward pass."""


def quiet(program: Program) -> Program:
    """The program without its prints, as a function of its flat argument leaves; itself if it has none."""
    if not _prints.PRINT_EFFECTS.intersection(program.effects):
        return program
    silent, kind = of_leaves(program, _jaxpr.as_fun(_prints.without_prints(program.traced.jaxpr))), _QuietProgram
    if isinstance(program, GradProgram):
        silent, kind = under_grad(silent), _QuietGradProgram
    return kind(silent.function, silent.key, silent.traced, silent.block, silent.loops, program)


def of_leaves(program: Program, flat: _jaxpr.Flat) -> Program:
    """Another function of a program's flat argument leaves, as a program of the same name."""

    def run(*leaves: Any) -> list[Any]:
        return list(flat(*leaves))

    for name in ("__name__", "__qualname__", "__module__"):
        setattr(run, name, getattr(program.function.fun, name, "function"))
    donated = tuple(i for i, given in enumerate(program.traced.donated) if given)
    function = Function(run, {"donate_argnums": donated})
    structs = tuple(jax.ShapeDtypeStruct(s, d, weak_type=w, sharding=p) for s, d, w, p in program.key.avals)
    leaves, tree, static = function.flatten(structs, {})
    found = Program.trace(function, _signature.call_key(tree, leaves, static), structs, {})
    assert found is not None
    return found
