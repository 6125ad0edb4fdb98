"""Random JAX functions with loops: a hypothesis strategy, and what builds a function from what it drew.

A program is plain data (nested tuples), so that one that failed can be kept in a test as it was printed.
Its values have kinds: `f` float[3], `s` float, `i` int32, `b` bool, `k` a key, `c` complex[2], `z` float[0,2].
Every operation keeps floats within -1 and 1 and spreads no error, so that rounding does not grow
however deep the loops stand; what floats decide, they decide against a constant that they don't hit.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st
from jax import lax

KINDS = "fsibkcz"
#: The table of which slices are the xs of loops that no ys of the same length come before.
ROWS = 5
_CONSTANT = np.float32([0.3, -0.6, 0.9])

# ---------------------------------------------------------------- values


class Pool:
    """The values in sight, by kind, and stacks of values by kind and length; picked by a number, modulo."""

    def __init__(self, values: dict[str, list[Any]], stacks: dict[Any, list[Any]] | None = None) -> None:
        self.values = {kind: list(found) for kind, found in values.items()}
        self.stacks = {name: list(found) for name, found in (stacks or {}).items()}

    @classmethod
    def of_floats(cls, floats: list[Any]) -> Pool:
        """A pool of these float[3], and of constants."""
        dtype = floats[0].dtype
        return cls(
            {
                "f": floats,
                "s": [floats[0][0]],
                "i": [jnp.int32(2)],
                "b": [jnp.bool_(True)],
                "k": [jax.random.key(3)],
                "c": [lax.complex(floats[0][:2], floats[0][1:])],
                "z": [jnp.zeros((0, 2), dtype)],
            }
        )

    def copy(self) -> Pool:
        return Pool(self.values, self.stacks)

    def pick(self, kind: str, number: int) -> Any:
        """Number 0 is the newest value."""
        return self.values[kind][-1 - number % len(self.values[kind])]

    def picks(self, wanted: Any) -> list[Any]:
        return [self.pick(kind, number) for kind, number in wanted]

    def add(self, kind: str, value: Any) -> None:
        self.values[kind].append(value)

    def stack(self, kind: str, length: int, number: int) -> Any:
        """Values for each iteration: the ys of an earlier loop, else something made of a value."""
        found = self.stacks.get((kind, length), [])
        if found and number % 3:
            return found[-1 - number % len(found)]
        value = self.pick(kind, number)
        if kind == "k":
            return jax.random.split(value, length)
        steps = jnp.arange(length)
        if kind == "i":
            return (steps + value).astype(jnp.int32)
        if kind == "b":
            return (steps % 2 == 0) ^ value
        scale = jnp.cos(steps.astype(_real(value)))
        return scale.reshape(length, *(1,) * value.ndim).astype(value.dtype) * value


def _real(value: Any) -> Any:
    return jnp.real(value).dtype if jnp.issubdtype(value.dtype, jnp.inexact) else jnp.float32


#: name: (kinds of the operands, kind of the result, the operation); all have a slope of at most 1.
OPS: dict[str, Any] = {
    "sin": ("f", "f", jnp.sin),
    "mean": ("ff", "f", lambda a, b: (a + b) / 2),
    "less": ("ff", "f", lambda a, b: (a - b) / 2),
    "mul": ("ff", "f", lambda a, b: a * b / 2),
    "affine": ("fs", "f", lambda a, s: a * 0.5 + s / 2),
    "const": ("f", "f", lambda a: a * _CONSTANT.astype(a.dtype)),
    "roll": ("f", "f", lambda a: jnp.roll(a, 1)),
    "product": ("ff", "f", lambda a, b: jnp.outer(a, a) @ b / 9),
    "set": ("fis", "f", lambda a, i, s: a.at[i % 3].set(s)),
    "where": ("bff", "f", jnp.where),
    "draw": ("kf", "f", lambda k, a: (a + jax.random.uniform(k, (3,), a.dtype)) / 2),
    "sum": ("f", "s", lambda a: a.sum() / 3),
    "at": ("fi", "s", lambda a, i: a[i % 3]),
    "tanh": ("sf", "s", lambda s, a: jnp.tanh(s + a[0]) / 2),
    "ofint": ("i", "s", lambda i: (i % 8).astype(jnp.float32) / 8),
    "real": ("c", "s", lambda c: jnp.real(c).mean()),
    "inc": ("i", "i", lambda i: i + 1),
    "mix": ("ii", "i", lambda i, j: i * 3 - j),
    "half": ("ib", "i", lambda i, b: jnp.where(b, i // 2, i)),
    "bits": ("k", "i", lambda k: (jax.random.bits(k) >> 9).astype(jnp.int32)),
    "even": ("i", "b", lambda i: i % 2 == 0),
    "xor": ("bb", "b", lambda a, b: a ^ ~b),
    "below": ("s", "b", lambda s: s < 0.2718),
    "split": ("k", "k", lambda k: jax.random.split(k)[1]),
    "fold": ("ki", "k", jax.random.fold_in),
    "turn": ("c", "c", lambda c: c * np.complex64(0.6 + 0.8j).astype(c.dtype)),
    "conj": ("cc", "c", lambda a, b: (a.conj() + b) / 2),
    "join": ("fc", "c", lambda a, c: (lax.complex(a[:2], a[1:]) + c) / 2),
    "zero": ("z", "z", lambda z: z * 2),
}


def _cast(value: Any, like: Any) -> Any:
    """Floats of the precision of the program, whatever an operation made of them."""
    return value if value.dtype == like.dtype else value.astype(like.dtype)


# ---------------------------------------------------------------- statements


def run(statements: Any, pool: Pool) -> Pool:
    for name, *rest in statements:
        _STATEMENTS[name](pool, *rest)
    return pool


def _op(pool: Pool, name: str, numbers: Any) -> None:
    kinds, kind, fun = OPS[name]
    value = fun(*(pool.pick(k, n) for k, n in zip(kinds, numbers, strict=False)))
    pool.add(kind, _cast(value, pool.pick(kind, 0)))


def _scan(pool: Pool, shape: Any, carries: Any, xs: Any, statements: Any, ys: Any) -> None:
    """`carries`: (kind, number of the init, number of what it becomes); xs and ys: (kind, number)."""
    length, reverse, unroll, empty = shape
    init = pool.picks((kind, number) for kind, number, _ in carries)
    stacks = [pool.stack(kind, length, number) for kind, number in xs] or None

    def body(c: Any, x: Any) -> Any:
        inner = pool.copy()
        for (kind, *_), value in zip([*carries, *xs], [*c["carry"], *(x or ())], strict=True):
            inner.add(kind, value)
        run(statements, inner)
        new = [inner.pick(kind, number) for kind, _, number in carries]
        new = [_cast(value, old) for value, old in zip(new, c["carry"], strict=True)]
        return {"carry": new, "empty": empty}, (inner.picks(ys), None)

    unroll = max(length, 1) if unroll == 0 else unroll
    params = {"length": length, "reverse": reverse, "unroll": unroll}
    last, (out, _) = lax.scan(body, {"carry": init, "empty": empty}, stacks, **params)
    for (kind, *_), value in zip(carries, last["carry"], strict=True):
        pool.add(kind, value)
    for (kind, _), value in zip(ys, out, strict=True):
        pool.stacks.setdefault((kind, length), []).append(value)


def _inner(pool: Pool, statements: Any, outs: Any, values: Any = None) -> list[Any]:
    """What the statements make of a pool (with other values in it), as outputs."""
    inner = pool.copy() if values is None else Pool(values, pool.stacks)
    return run(statements, inner).picks(outs)


def _called(wrap: Any, pool: Pool, statements: Any, outs: Any, closed: bool) -> None:
    """The statements inside a call; what they read is closed over, or given as arguments."""
    if closed:
        found = wrap(lambda: _inner(pool, statements, outs))()
    else:
        found = wrap(lambda values: _inner(pool, statements, outs, values))(pool.values)
    _add_all(pool, outs, found)


def _add_all(pool: Pool, outs: Any, found: Any) -> None:
    for (kind, _), value in zip(outs, found, strict=True):
        pool.add(kind, _cast(value, pool.pick(kind, 0)))


def _cond(pool: Pool, number: int, branches: Any, outs: Any) -> None:
    def branch(statements: Any) -> Any:
        return lambda: [
            _cast(v, pool.pick(k, 0)) for v, (k, _) in zip(_inner(pool, statements, outs), outs, strict=True)
        ]

    if len(branches) == 2:
        found = lax.cond(pool.pick("b", number), *map(branch, branches))
    else:
        found = lax.switch(pool.pick("i", number) % len(branches), [*map(branch, branches)])
    _add_all(pool, outs, found)


def _while(pool: Pool, times: int, statements: Any, carries: Any) -> None:
    def body(state: Any) -> Any:
        inner = pool.copy()
        for (kind, _, _), value in zip(carries, state[1], strict=True):
            inner.add(kind, value)
        run(statements, inner)
        new = [inner.pick(kind, number) for kind, _, number in carries]
        return state[0] + 1, [_cast(value, old) for value, old in zip(new, state[1], strict=True)]

    init = jnp.int32(0), pool.picks((kind, number) for kind, number, _ in carries)
    _, last = lax.while_loop(lambda state: state[0] < times, body, init)
    for (kind, _, _), value in zip(carries, last, strict=True):
        pool.add(kind, value)


def _custom(rule: str, pool: Pool, statements: Any, numbers: Any) -> None:
    """A call with a derivative rule that is not the true one: a rule that is lost shows."""
    floats = [pool.pick("f", number) for number in numbers]

    def fun(*floats: Any) -> Any:
        # All inputs count: batched in one that does not, jax itself can't differentiate a custom_jvp call.
        return (run(statements, Pool.of_floats([*floats])).pick("f", 0) + sum(floats)) / 4

    if rule == "jvp":
        called: Any = jax.custom_jvp(fun)
        called.defjvp(lambda primals, tangents: (called(*primals), sum(tangents) * jnp.cos(primals[0]) / 4))
    else:
        called = jax.custom_vjp(fun)
        called.defvjp(
            lambda *primals: (called(*primals), primals),
            # Linear in g, as a derivative is: where zero gives something, jax's own scan and Python loop differ.
            lambda primals, g: tuple(lax.scan(lambda c, x: (c * (0.5 + x / 9), c), g, p)[1].mean(0) for p in primals),
        )
    pool.add("f", called(*floats))


def _vmap(pool: Pool, statements: Any, number: int) -> None:
    def member(value: Any) -> Any:
        inner = pool.copy()
        inner.add("f", value)
        return run(statements, inner).pick("f", 0)

    value = pool.pick("f", number)
    pool.add("f", jax.vmap(member)(jnp.stack([value, value / 2])).mean(0))


def _grad(pool: Pool, statements: Any, number: int) -> None:
    if holds_while(statements):
        return

    def total(value: Any) -> Any:
        inner = pool.copy()
        inner.add("f", value)
        return run(statements, inner).pick("f", 0).sum() / 3

    pool.add("f", jnp.tanh(jax.grad(total)(pool.pick("f", number))))


_STATEMENTS: dict[str, Any] = {
    "op": _op,
    "scan": _scan,
    "jit": functools.partial(_called, jax.jit),
    "remat": functools.partial(_called, jax.checkpoint),
    "cond": _cond,
    "while": _while,
    "custom_jvp": functools.partial(_custom, "jvp"),
    "custom_vjp": functools.partial(_custom, "vjp"),
    "vmap": _vmap,
    "grad": _grad,
}


def holds_while(program: Any) -> bool:
    """Whether a while stands somewhere in it, which JAX can't differentiate in reverse."""
    if isinstance(program, (tuple, list)):
        return "while" in program[:1] or any(map(holds_while, program))
    return False


def make_args() -> tuple[Any, ...]:
    """Arguments of every program: two float[3], a float, an int, a bool, a key, complex[2], float[0,2]."""
    f = jnp.sin(jnp.arange(6.0) * 1.7 + 0.3).reshape(2, 3) * 0.9
    c = lax.complex(f[0, :2], f[1, :2]) / 2
    return f[0], f[1], f[0, 0] / 2, jnp.int32(3), jnp.bool_(False), jax.random.key(1), c, jnp.zeros((0, 2), f.dtype)


#: Positions of the arguments that can be differentiated.
SMOOTH = (0, 1, 2)


def build(program: Any) -> Any:
    """The function of a program: (statements, outputs)."""
    statements, outs = program

    def fun(f: Any, g: Any, s: Any, i: Any, b: Any, k: Any, c: Any, z: Any) -> Any:
        pool = Pool({"f": [g, f], "s": [s], "i": [i], "b": [b], "k": [k], "c": [c], "z": [z]})
        run(statements, pool)
        stacks = {f"{kind}{length}": found[-1] for (kind, length), found in pool.stacks.items()}
        return {"values": pool.picks(outs), "stacks": stacks, "nothing": (None, {}, ())}

    return fun


# ---------------------------------------------------------------- the strategy

_numbers = st.integers(0, 5)
_kinds = st.sampled_from("ffffsibkcz")
_outs = st.lists(st.tuples(_kinds, _numbers), min_size=1, max_size=3).map(tuple)
_carries = st.lists(st.tuples(_kinds, _numbers, _numbers), max_size=3).map(tuple)
_ops = st.tuples(st.just("op"), st.sampled_from(sorted(OPS)), st.tuples(_numbers, _numbers, _numbers))
_stacked = st.lists(st.tuples(_kinds, _numbers), max_size=2).map(tuple)


def _scans(depth: int) -> Any:
    lengths = st.sampled_from((3, 2, 4, 5, 1, 0) if depth == 4 else (2, 3, 1, 0))
    shapes = st.tuples(lengths, st.booleans(), st.sampled_from((1, 1, 2, 3, 0)), st.sampled_from((None, ())))
    return st.tuples(st.just("scan"), shapes, _carries, _stacked, _bodies(depth - 1), _stacked)


def _wrapped(depth: int) -> Any:
    inside = _bodies(depth)
    conds = st.one_of(st.tuples(inside, inside), st.tuples(inside, inside, inside))
    floats = st.lists(_numbers, min_size=1, max_size=2).map(tuple)
    return st.one_of(
        st.tuples(st.sampled_from(("jit", "remat")), inside, _outs, st.booleans()),
        st.tuples(st.just("cond"), _numbers, conds, _outs),
        st.tuples(st.just("while"), st.integers(0, 3), inside, _carries),
        st.tuples(st.sampled_from(("custom_jvp", "custom_vjp")), inside, floats),
        st.tuples(st.sampled_from(("vmap", "grad")), inside, _numbers),
    )


@functools.cache
def _bodies(depth: int) -> Any:
    """Statements in which loops stand at most `depth` deep."""
    if depth == 0:
        return st.lists(_ops, max_size=3).map(tuple)
    statements = st.one_of(
        _ops, _ops, _ops, st.deferred(lambda: _scans(depth)), st.deferred(lambda: _wrapped(depth - 1))
    )
    return st.lists(statements, max_size=3).map(tuple)


@st.composite
def programs(draw: Any, depth: int = 4) -> Any:
    """Programs with at least one loop at top level, loops at most `depth` deep."""
    statements = draw(st.lists(st.one_of(_ops, _scans(depth), _wrapped(depth)), max_size=3).map(tuple))
    at = draw(st.integers(0, len(statements)))
    return (*statements[:at], draw(_scans(depth)), *statements[at:]), draw(_outs)
