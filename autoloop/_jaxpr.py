"""The only door to JAX's internals, and the only place that names a JAX version.

Decides how a traced program is read (which equations hold loops, what a `scan` equation means in
the installed jax) and how it is put together again: unchanged stretches of equations run through
`jaxpr_as_fun`, which keeps custom derivative rules and each equation's context (XLA metadata,
`compute_on`, mesh); changed equations keep their primitive and get new bodies, so that names,
shardings, policies and rules survive.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from autoloop import _installed, _mesh
from autoloop._records import UnsupportedJaxError

jec: Any = _installed.module("jax.extend.core")
_core: Any = _installed.module("jax._src.core")

Aval = Any
Jaxpr = Any  # jax <= 0.11: ClosedJaxpr around Jaxpr; from 0.12: one class that is both
Flat = Callable[..., Sequence[Any]]  # takes and returns flat values

# Equations that hold jaxprs we may rewrite: primitive name -> parameter. Any other equation with
# a jaxpr inside (custom_linear_solve, shard_map, pallas_call...) is left untouched. The derivative
# rule of a custom_jvp/custom_vjp call stands in other parameters, so it survives a new body.
_BODIES: Mapping[str, tuple[str, ...]] = {
    "scan": ("jaxpr",),
    "jit": ("jaxpr",),
    "pjit": ("jaxpr",),  # the name of `jit` until jax 0.6, still used by some releases after it
    "closed_call": ("call_jaxpr",),
    "eval_jaxpr": ("call_jaxpr",),  # closed_call's name from jax 0.12
    "remat2": ("jaxpr",),
    "checkpoint": ("jaxpr",),
    "cond": ("branches",),
    "while": ("cond_jaxpr", "body_jaxpr"),
    "custom_jvp_call": ("call_jaxpr",),
    "custom_vjp_call": ("call_jaxpr",),
}
#: What autoloop needs of jax beyond what jax documents.
_NEEDS: Mapping[str, tuple[str, ...]] = {
    "jax": ("ShapeDtypeStruct", "jit", "make_jaxpr", "typeof"),
    "jax.core": ("Tracer",),
    "jax.extend.core": ("ClosedJaxpr", "Jaxpr", "Literal", "Var", "jaxpr_as_fun"),
    "jax._src.core": ("trace_state_clean",),
    "jax._src.lax.lax": ("_convert_element_type",),
}
#: On the way to a loop these run exactly once, so a Python loop on the host may take their place.
CALLS = frozenset(_BODIES) - {"scan", "cond", "while"}


# ---------------------------------------------------------------- reading


@dataclass(frozen=True)
class Scan:
    """What one `scan` equation means, whatever the jax version: inputs are consts, carry, xs."""

    body: Jaxpr
    num_consts: int
    num_carry: int
    length: int
    reverse: bool
    unroll: int
    in_avals: tuple[Aval, ...]
    out_avals: tuple[Aval, ...]

    def split_inputs(self, values: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        """(consts, carry, xs) of the equation's flat inputs, or of the body's (where xs are one x)."""
        end = self.num_consts + self.num_carry
        return list(values[: self.num_consts]), list(values[self.num_consts : end]), list(values[end:])

    def split_outputs(self, values: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """(carry, ys) of the equation's flat outputs, or of the body's (where ys are one y)."""
        return list(values[: self.num_carry]), list(values[self.num_carry :])


def read_scan(eqn: Any) -> Scan:
    """Reads a scan equation.

    Raises:
        UnsupportedJaxError: the equation's parameters are not those of a jax we know.
    """
    params = eqn.params
    try:
        if "num_consts" in params:  # jax <= 0.11
            num_consts, num_carry = params["num_consts"], params["num_carry"]
        else:  # jax 0.12: trees of the inputs
            num_consts, num_carry = (len(part) for part in params["ft_in"].unpack()[:2])
        return Scan(
            body=params["jaxpr"],
            num_consts=num_consts,
            num_carry=num_carry,
            length=params["length"],
            reverse=params["reverse"],
            unroll=int(params["unroll"]),
            in_avals=tuple(v.aval for v in eqn.invars),
            out_avals=tuple(v.aval for v in eqn.outvars),
        )
    except (KeyError, AttributeError, TypeError, ValueError) as error:
        raise UnsupportedJaxError(
            f"autoloop/_jaxpr.py cannot read a scan equation of jax {jax.__version__} "
            f"(parameters: {', '.join(sorted(params))}): {error!r}"
        ) from error


def carry_names(scan: Scan) -> list[str]:
    """What the user's body calls each carry; "" where jax does not know it, as under `grad` and `vmap`."""
    names = inner(scan.body).debug_info.arg_names or ()
    known = len(names) == len(in_avals(scan.body))
    return scan.split_inputs(names)[1] if known else [""] * scan.num_carry


def bodies(eqn: Any) -> list[Jaxpr]:
    """The closed jaxprs inside an equation that we may rewrite, in order."""
    found = [eqn.params[name] for name in _BODIES.get(eqn.primitive.name, ()) if name in eqn.params]
    flat = [j for value in found for j in (value if isinstance(value, tuple) else (value,))]
    return [j if isinstance(j, jec.ClosedJaxpr) else jec.ClosedJaxpr(j, ()) for j in flat]


def inner(jaxpr: Jaxpr) -> Any:
    """The open jaxpr inside a closed one."""
    return jaxpr.jaxpr  # from jax 0.12 this is the jaxpr itself


def equations(jaxpr: Jaxpr) -> Iterator[Any]:
    """All equations of a jaxpr, those of jaxprs inside it included, each once."""
    for eqn in inner(jaxpr).eqns:
        yield eqn
        for value in eqn.params.values():
            for sub in value if isinstance(value, (tuple, list)) else (value,):
                if isinstance(sub, (jec.ClosedJaxpr, jec.Jaxpr)):
                    yield from equations(sub if hasattr(sub, "jaxpr") else jec.ClosedJaxpr(sub, ()))


def direct_equations(jaxpr: Jaxpr) -> Sequence[Any]:
    """The equations of a jaxpr itself."""
    return list(inner(jaxpr).eqns)


def in_avals(jaxpr: Jaxpr) -> tuple[Aval, ...]:
    """Abstract values of a jaxpr's inputs, constants excluded."""
    return tuple(jaxpr.in_avals)


def out_avals(jaxpr: Jaxpr) -> tuple[Aval, ...]:
    """Abstract values of a jaxpr's outputs."""
    return tuple(jaxpr.out_avals)


def effects(jaxpr: Jaxpr) -> tuple[str, ...]:
    """Names of the side effects a jaxpr declares, sorted; empty for a pure program."""
    return tuple(sorted(set(map(effect_name, inner(jaxpr).effects))))


def effect_name(effect: Any) -> str:
    """The name of one side effect."""
    return type(effect).__name__.removesuffix("Effect")


# ---------------------------------------------------------------- tracing


@dataclass(frozen=True)
class Traced:
    """A user's function traced for one signature: flat inputs to flat outputs."""

    jaxpr: Jaxpr
    in_tree: Any
    out_tree: Any
    donated: tuple[bool, ...]


def trace(jitted: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Traced | None:
    """Traces through `jitted.trace`, so that arguments mean what they mean to `jax.jit`.

    Returns None when the function closes over tracers of an outer trace: such a program can be
    neither kept nor run on its own.
    """
    traced = jitted.trace(*args, **kwargs)
    with _installed.reading():
        donated = tuple(leaf.donated for leaf in jax.tree.leaves(traced.args_info))
        # A tracer closed over becomes a leading input that no argument stands for.
        closes = len(traced.jaxpr.in_avals) != len(donated) or any(map(is_tracer, traced.jaxpr.consts))
        return None if closes else Traced(traced.jaxpr, traced.in_tree, jax.tree.structure(traced.out_info), donated)


def close(fun: Flat, avals: Sequence[Aval]) -> Jaxpr:
    """The closed jaxpr of a flat function at these avals, over which mesh axes they vary included."""
    return jax.make_jaxpr(lambda *args: list(fun(*args)))(*avals)


def struct(aval: Aval, sharding: Any = None) -> jax.ShapeDtypeStruct:
    """An aval as what `jax.jit(...).trace` takes."""
    place = _mesh.explicit(aval) if sharding is None else sharding
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type, sharding=place)


@functools.cache
def missing() -> str:
    """What the installed jax lacks of what we need, as one sentence; "" if nothing."""
    return _installed.lacks(_NEEDS)


def under_trace() -> bool:
    """Whether the caller runs inside a transformation, whatever it was given."""
    return not _core.trace_state_clean()


def counter(jitted: Any) -> Callable[[], int]:
    """What tells for how many signatures a jitted function was called; a method, for the hot path asks often."""
    return getattr(jitted, "_cache_size", int)


def dispatch_anew(jitted: Any) -> None:
    """Lets jit's fast dispatch take signatures whose first trace raised; what is compiled stays."""
    # Without this jax would serve them through Python for ever, 100 us a call and more.
    getattr(jitted, "_clear_cache", bool)()


def coordination() -> Any:
    """The client of the service that the processes of a program share; None without `jax.distributed`."""
    return importlib.import_module("jax._src.distributed").global_state.client


def is_tracer(value: Any) -> bool:
    """Whether a leaf belongs to a transformation in progress."""
    return isinstance(value, jax.core.Tracer)


# ---------------------------------------------------------------- putting together


def as_fun(jaxpr: Jaxpr) -> Flat:
    """A closed jaxpr as a function of its flat inputs."""
    return lambda *args: list(jec.jaxpr_as_fun(jaxpr)(*args))


def conform(value: Any, aval: Aval) -> Any:
    """`value` with the weak type of `aval`: a loop re-emitted must not change a dtype's strength."""
    have = jax.typeof(value)
    if have.dtype == aval.dtype and have.weak_type == aval.weak_type:
        return value
    # The public convert_element_type can't make a weak type.
    convert = importlib.import_module("jax._src.lax.lax")._convert_element_type
    return convert(value, aval.dtype, weak_type=aval.weak_type)


def conform_all(values: Iterable[Any], avals: Iterable[Aval]) -> list[Any]:
    """`conform` over flat values."""
    return [conform(v, a) for v, a in zip(values, avals, strict=True)]


def rebuild(eqn: Any, new_bodies: Sequence[Jaxpr], **params: Any) -> Flat:
    """The equation with other bodies (and parameters), everything else kept, as a function."""
    outvars = [jec.Var(v.aval) for v in eqn.outvars]  # dropped outputs too: callers count on all
    changed = eqn.replace(params={**with_bodies(eqn, new_bodies), **params}, outvars=outvars)
    wanted = [i for i, v in enumerate(eqn.invars) if not isinstance(v, jec.Literal)]
    inputs = [eqn.invars[i] for i in wanted]
    run = as_fun(assemble([changed], inputs, outvars, bodies(eqn)[0]))
    return lambda *args: run(*(args[i] for i in wanted))


def with_bodies(eqn: Any, new_bodies: Sequence[Jaxpr]) -> dict[str, Any]:
    """An equation's parameters with other bodies."""
    todo, params = list(new_bodies), dict(eqn.params)
    for name in _BODIES[eqn.primitive.name]:
        old = eqn.params[name]
        many = isinstance(old, tuple)
        params[name] = tuple(_like(body, todo.pop(0)) for body in old) if many else _like(old, todo.pop(0))
    return params


def _like(old: Jaxpr, new: Jaxpr) -> Jaxpr:
    """`new` in the class of `old`: some parameters hold an open jaxpr."""
    if isinstance(old, jec.ClosedJaxpr):
        return new
    if new.consts:
        raise UnsupportedJaxError("autoloop/_jaxpr.py: a body that can hold no constants got some")
    return new.jaxpr


def assemble(eqns: Sequence[Any], invars: Sequence[Any], outvars: Sequence[Any], model: Jaxpr) -> Jaxpr:
    """Some equations as a closed jaxpr without constants; `model` lends the class of its debug info."""
    seen: set[Any] = set()
    fresh: list[Any] = []
    for var in invars:  # an equation may use a variable twice: its second slot gets a spare
        fresh.append(jec.Var(var.aval) if var in seen else var)
        seen.add(var)
    effs = frozenset[Any]().union(*(e.effects for e in eqns))
    info_class = type(inner(model).debug_info)
    info = info_class("autoloop", "autoloop", ("",) * len(fresh), ("",) * len(outvars))
    return jec.ClosedJaxpr(jec.Jaxpr((), fresh, list(outvars), list(eqns), effs, info), ())
