"""The table of programs that tests multiply with forms and transformations, and what compares them.

A row is a small function with loops, and arguments for it: lengths 2 to 7, sizes 2 to 4, because
every row is compiled some dozens of times. A form added to `FORMS` is covered with nothing to edit.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from autoloop import _apply, _form, _jaxpr, _legal, _outline, _parts
from autoloop._forms import FORMS
from autoloop._loops import Loop, find_loops
from autoloop._plan import Choice, Plan

FORMS_BY_NAME: _form.Forms = {form.name: form for form in FORMS}

#: Largest error between two forms, relative to the largest magnitude of an output.
RTOL = {
    "float64": 1e-12,
    "complex128": 1e-12,
    "float32": 1e-5,
    "complex64": 1e-5,
    "float16": 5e-3,
    "bfloat16": 4e-2,
}

#: Forms that stand inside a form in plans with two choices; `unroll` inside those not named.
ALL = None
INSIDE = {"python": ALL, "eager": ("inline", "python")}


@dataclass(frozen=True)
class Program:
    """A row: `make_args` makes concrete arguments, `grad` names those to differentiate."""

    name: str
    fun: Callable[..., Any]
    make_args: Callable[[], tuple[Any, ...]]
    grad: tuple[int, ...] = ()
    vmap: bool = True
    x64: bool = False

    @contextlib.contextmanager
    def args(self) -> Iterator[tuple[Any, ...]]:
        """The arguments, inside the precision that the program is about."""
        with jax.enable_x64(self.x64):
            yield self.make_args()


# ---------------------------------------------------------------- comparing


def assert_same(expected: Any, got: Any, note: str = "", *, weak_types: bool = True) -> None:
    """Same tree, shapes, dtypes, weak types and values; NaN and inf in the same places."""
    want, tree = jax.tree_util.tree_flatten_with_path(expected)
    have, got_tree = jax.tree_util.tree_flatten_with_path(got)
    assert got_tree == tree, f"{note}: outputs are {got_tree}, not {tree}"
    for (path, a), (_, b) in zip(want, have, strict=True):
        _assert_same_leaf(a, b, f"{note}: output{jax.tree_util.keystr(path)}", weak_types)


def _assert_same_leaf(want: Any, have: Any, where: str, weak_types: bool) -> None:
    a, b = jax.typeof(want), jax.typeof(have)
    kinds = [(t.dtype, t.shape, weak_types and getattr(t, "weak_type", False)) for t in (a, b)]
    assert kinds[0] == kinds[1], f"{where} is {kinds[1]}, not {kinds[0]} (dtype, shape, weak type)"
    if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
        want, have = jax.random.key_data(want), jax.random.key_data(have)
    x, y = np.asarray(want), np.asarray(have)
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        np.testing.assert_array_equal(y, x, where)
        return
    x, y = (v.astype(complex if np.iscomplexobj(v) else float) for v in (x, y))
    special = ~(np.isfinite(x) & np.isfinite(y))
    np.testing.assert_array_equal(y[special], x[special], f"{where} (NaN and inf)")
    scale = np.max(np.abs(x[~special]), initial=0.0)
    error = np.max(np.abs(y[~special] - x[~special]), initial=0.0)
    allowed = RTOL[a.dtype.name] * scale
    assert error <= allowed, f"{where} is off by {error:.1e}, allowed is {allowed:.1e}\n{y}\nnot\n{x}"


# ---------------------------------------------------------------- transformations


def weighted_sum(outputs: Any) -> Any:
    """A scalar in which every float of the outputs has a weight of its own."""
    total: Any = 0.0
    for position, leaf in enumerate(jax.tree.leaves(outputs)):
        if jnp.issubdtype(jax.typeof(leaf).dtype, jnp.inexact):
            real = jnp.real(leaf)
            weights = jnp.cos(position + jnp.arange(real.size)).reshape(real.shape)
            total += jnp.sum(real * weights.astype(real.dtype))
    return total


def in_pairs(leaf: Any) -> Any:
    """The argument of two members of a batch: as it is, and another one."""
    leaf = jnp.asarray(leaf)
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        other = jax.random.wrap_key_data(jax.random.key_data(leaf) + jnp.uint32(1))
    else:
        other = ~leaf if leaf.dtype == bool else leaf + 1
    return jnp.stack([leaf, other])


# ---------------------------------------------------------------- plans


def outline(fun: Callable[..., Any], *args: Any) -> tuple[_outline.Block, tuple[Loop, ...]]:
    """A function's traced program and its loops."""
    traced = _jaxpr.trace(jax.jit(fun), args, {})
    assert traced is not None, "the function closes over tracers"
    block = _outline.outline(traced.jaxpr)
    return block, find_loops(block)


def as_it_is(part: _parts.Part) -> _jaxpr.Flat:
    """What runs a part, loops put together again from their own bodies."""
    if isinstance(part.what, _outline.Node):
        return _jaxpr.rebuild(part.what.eqn, _jaxpr.bodies(part.what.eqn))
    return _jaxpr.as_fun(part.what.jaxpr)


def put_together(block: _outline.Block, *values: Any) -> list[Any]:
    """Evaluates a program that was cut at every equation that is a loop or holds one."""
    parts = [(part, as_it_is(part)) for part in _parts.cut(block, block.nodes)]
    return _parts.Wires(block.jaxpr, parts).run(values)


def run_plan(fun: Callable[..., Any], plan: Plan | str, *args: Any) -> Any:
    """`fun(*args)` with its loops as planned; also under jit, grad and vmap but for Python loops."""
    plan = Plan.parse(plan)
    leaves, tree = jax.tree.flatten(args)
    out_trees = []

    def flat(*values: Any) -> list[Any]:
        outs, out_tree = jax.tree.flatten(fun(*jax.tree.unflatten(tree, values)))
        out_trees.append(out_tree)
        return outs

    jaxpr = _jaxpr.close(flat, [jax.typeof(leaf) for leaf in leaves])
    block = _outline.outline(jaxpr)
    reason = _legal.why_not(plan, find_loops(block), FORMS_BY_NAME)
    assert reason is None, reason
    applied = _apply.Applied(plan, FORMS_BY_NAME)
    if _legal.on_host(plan, FORMS_BY_NAME):
        outs = applied.build_block(block)(*map(jnp.asarray, leaves))
        outs = _jaxpr.conform_all(outs, _jaxpr.out_avals(jaxpr))
    else:
        outs = applied.run_block(block, *leaves)
    return jax.tree.unflatten(out_trees[0], outs)


def legal_plans(fun: Callable[..., Any], args: tuple[Any, ...]) -> list[Plan]:
    """As written, every choice for every loop, and some plans with several choices."""
    _, loops = outline(fun, *args)
    found = [Plan(), *(Plan((choice,)) for loop in loops for choice in _choices(loop))]
    found += _everywhere(loops)
    found += _nested_plans(loops)
    return list(dict.fromkeys(p for p in found if _legal.why_not(p, loops, FORMS_BY_NAME) is None))


def split_by_host(plans: Iterable[Plan]) -> tuple[list[Plan], list[Plan]]:
    """(plans that are one program, plans with Python loops)."""
    one, host = [], []
    for plan in plans:
        (host if _legal.on_host(plan, FORMS_BY_NAME) else one).append(plan)
    return one, host


def differentiable(plans: Iterable[Plan]) -> list[Plan]:
    """The plans of forms that JAX can differentiate in reverse."""
    return [p for p in plans if all(FORMS_BY_NAME[c.form].reverse_differentiable for c in p.choices)]


def one_per_form(plans: Iterable[Plan]) -> list[Plan]:
    """Of the plans with one choice, the first of each loop and form."""
    found: dict[tuple[Any, ...], Plan] = {}
    for plan in plans:
        if len(plan.choices) == 1:
            found.setdefault((plan.choices[0].path, plan.choices[0].form), plan)
    return list(found.values())


def _choices(loop: Loop) -> list[Choice]:
    """Forms and parameters worth a try; not all of them are legal."""
    found = []
    for form in FORMS:
        rungs = [k for ladder in form.ladders(loop) for k in ladder]
        extra = [_uneven(loop)] if form.takes else [None]
        found += [Choice(loop.path, form.name, k) for k in (*rungs, *extra)]
    return found


def _uneven(loop: Loop) -> int:
    """The smallest number that does not divide the length, or 1 where none is shorter than it."""
    return next((k for k in range(2, loop.length) if loop.length % k), 1)


def _everywhere(loops: Sequence[Loop]) -> list[Plan]:
    """The same form for every loop."""
    return [Plan(tuple(_choice(loop, form) for loop in loops)) for form in FORMS]


def _nested_plans(loops: Sequence[Loop]) -> list[Plan]:
    """Plans for the first nest, by what stands around what."""
    inner = next((loop for loop in loops if len(loop.path) == 2), None)
    if inner is None:
        return []
    outer = next(loop for loop in loops if loop.path == inner.path[:1])
    plans = []
    for form in FORMS:
        names = INSIDE.get(form.name, ("unroll",))
        inside = [f for f in FORMS if names is ALL or f.name in names]
        plans += [Plan((_choice(outer, form), _choice(inner, f))) for f in inside]
    return plans


def _choice(loop: Loop, form: _form.Form) -> Choice:
    """The form with the first parameter on its ladders."""
    first = next((k for ladder in form.ladders(loop) for k in ladder), 1 if form.takes else None)
    return Choice(loop.path, form.name, first)


# ---------------------------------------------------------------- the table

_rows: list[Program] = []


def _program(make_args: Callable[[], tuple[Any, ...]], **flags: Any) -> Callable[[Any], Any]:
    """Makes the function below a row of the table."""

    def add(fun: Callable[..., Any]) -> Callable[..., Any]:
        _rows.append(Program(fun.__name__, fun, make_args, **flags))
        return fun

    return add


def ramp(*shape: int, dtype: Any = np.float32) -> jax.Array:
    """Different numbers of moderate size and both signs."""
    size = int(np.prod(shape))
    return jnp.asarray((np.sin(1.7 * np.arange(size) + 0.3) * 0.9).reshape(shape), dtype)


def _rnn(w: Any, h: Any, xs: Any, **params: Any) -> Any:
    def step(h: Any, x: Any) -> Any:
        h = jnp.tanh(w @ h + x)
        return h, h.sum()

    return lax.scan(step, h, xs, **params)


def _rnn_args() -> tuple[Any, ...]:
    return ramp(3, 3), ramp(3), ramp(5, 3)


def _decay(c: Any, x: Any) -> Any:
    c = 0.5 * c + jnp.sin(x)
    return c, c * x


@functools.cache
def _a_jax_array() -> jax.Array:
    with jax.ensure_compile_time_eval():
        return ramp(3) + 2


# ------------------------------------------------ shapes of a loop


@_program(_rnn_args, grad=(0, 1, 2))
def recurrent(w, h, xs):
    return _rnn(w, h, xs)


@_program(_rnn_args, grad=(0, 2))
def reverse(w, h, xs):
    return _rnn(w, h, xs, reverse=True)


@_program(lambda: (ramp(3),), grad=(0,))
def counted(x):
    return lax.scan(lambda c, _: (c * 0.9 + x, c.max()), x, None, length=5)


@_program(lambda: (ramp(3), ramp(0, 3)), grad=(0,))
def length_zero(c, xs):
    return lax.scan(_decay, c, xs)


@_program(lambda: (ramp(3), ramp(1, 3)), grad=(0, 1))
def length_one(c, xs):
    return lax.scan(_decay, c, xs)


@_program(lambda: (ramp(4, 3),), grad=(0,))
def no_carry(xs):
    return lax.scan(lambda c, x: (c, jnp.cos(x).sum()), None, xs)[1]


@_program(lambda: (ramp(3), ramp(4, 3)), grad=(0, 1))
def no_outputs(c, xs):
    return lax.scan(lambda c, x: (jnp.cos(c) * x, None), c, xs)


@_program(lambda: (ramp(0), ramp(4, 0, 2)), grad=(0,))
def size_zero(c, xs):
    return lax.scan(lambda c, x: (c * 2, x.T), c, xs)


@_program(lambda: (ramp(3), ramp(4, 3)), grad=(0, 1))
def own_unroll(c, xs):
    return lax.scan(_decay, c, xs, unroll=2)


@_program(lambda: (ramp(3), ramp(5, 3)), grad=(0, 1))
def own_unroll_with_remainder(c, xs):
    return lax.scan(_decay, c, xs, reverse=True, unroll=3)


@_program(lambda: (ramp(3), ramp(4, 3)), grad=(0, 1))
def own_full_unroll(c, xs):
    return lax.scan(_decay, c, xs, unroll=True)


# ------------------------------------------------ what goes in and out


@_program(lambda: (ramp(3),), grad=(0,))
def closed_over_numpy(x):
    w, table = np.float32([0.5, -1, 2]), np.arange(12, dtype=np.float32).reshape(4, 3)
    return lax.scan(lambda c, t: (jnp.sin(c) * w + t, c @ w), x, table)


@_program(lambda: (ramp(3),), grad=(0,))
def closed_over_jax(x):
    w = _a_jax_array()
    return lax.scan(lambda c, t: (jnp.sin(c) * w + t, c @ w), x, jnp.outer(jnp.arange(4.0), w))


@_program(lambda: (ramp(3), ramp(3) + 1, ramp(5, 3)), grad=(0, 2))
def carry_swapped(a, b, xs):
    return lax.scan(lambda c, x: ((c[1] * 0.5 + x, c[0]), c[0].sum()), (a, b), xs)


@_program(lambda: (ramp(3), ramp(3) + 1), grad=(0, 1))
def carry_only_swapped(a, b):
    return lax.scan(lambda c, _: ((c[1], c[0]), None), (a, b), None, length=3)


@_program(lambda: (ramp(3), ramp(3) + 1), grad=(0, 1))
def carry_becomes_one_value_twice(a, b):
    return lax.scan(lambda c, _: ((c[1] + 1,) * 2, c), (a, b), None, length=3)


@_program(lambda: (ramp(3), ramp(3) + 1, ramp(5, 3)), grad=(0, 1))
def carry_passed_through(a, b, xs):
    return lax.scan(lambda c, x: ((c[0] * 0.5 + x, c[1]), c[1]), (a, b), xs)


@_program(lambda: (ramp(3), ramp(5, 3)), grad=(0, 1))
def carry_replaced_by_const_and_x(a, xs):
    return lax.scan(lambda c, x: ((a, x), c[1]), (a * 2, a), xs)


@_program(lambda: (ramp(3), ramp(5, 3)), grad=(0, 1))
def same_init_twice(z, xs):
    return lax.scan(lambda c, x: ((c[0] + x, c[1] * x), c[1]), (z, z), xs)


@_program(lambda: (ramp(3), ramp(5, 3)), grad=(0, 1))
def one_value_twice(c, xs):
    c, ys = lax.scan(lambda c, x: (c + x, (c, c)), c, xs)
    return c, ys, c, ys[0]


@_program(lambda: (ramp(3), ramp(5, 3)), grad=(0, 1))
def argument_returned(c, xs):
    return lax.scan(_decay, c, xs), xs, c


@_program(lambda: (ramp(3), ramp(5, 3)), grad=(0, 1))
def xs_as_ys(c, xs):
    return lax.scan(lambda c, x: (c - x, x), c, xs)


@_program(lambda: (ramp(3),), grad=(0,))
def constants_as_outputs(x):
    return lax.scan(lambda c, t: (c + t, (x, 2.0, jnp.int32(3))), x, jnp.arange(4.0)), 7


@_program(lambda: (ramp(2),), grad=(0,))
def literals_as_inputs(x):
    return lax.scan(lambda c, t: ((c[0] * 2 + t, c[1] + x), c[0]), (1, x), jnp.arange(4))


@_program(lambda: (2.0, 3, True, ramp(4)), grad=(0, 3))
def python_scalars(scale, count, flag, xs):
    return lax.scan(lambda c, x: (c * scale + jnp.where(flag, x, count), c + count), scale, xs)


@_program(lambda: (np.float32([1, 2]), np.ones((3, 2), np.float32), np.int32(3)), grad=(0, 1))
def numpy_arguments(c, xs, n):
    return lax.scan(lambda c, x: (c * 0.5 + x, c * n), c, xs)


@_program(lambda: ({"w": ramp(2, 2), "b": (ramp(2), None)}, [ramp(3, 2), ramp(3)]), grad=(0,))
def trees(params, data):
    def step(c, x):
        h = jnp.tanh(params["w"] @ c["h"] + params["b"][0] + x[0])
        return {"h": h, "n": c["n"] + 1, "none": None}, {"y": (h * x[1], None), "n": c["n"]}

    c, ys = lax.scan(step, {"h": params["b"][0], "n": 0, "none": None}, data)
    return {"c": c, "ys": ys, "nothing": None, "empty": ()}


# ------------------------------------------------ dtypes


@_program(lambda: (jax.random.key(0), ramp(3)), grad=(1,))
def key_in_carry(key, x):
    def step(c, _):
        key, sub = jax.random.split(c[0])
        return (key, c[1] * 0.5 + jax.random.normal(sub, (3,))), c[1]

    return lax.scan(step, (key, x), None, length=3)


@_program(lambda: (jax.random.split(jax.random.key(1), 3), ramp(2)), grad=(1,))
def keys_as_xs(keys, x):
    return lax.scan(lambda c, k: (c + jax.random.uniform(k, (2,)), c), x, keys)


@_program(lambda: (jax.random.key(2),))
def keys_as_ys(key):
    def step(key, i):
        return jax.random.fold_in(key, i), (key, jax.random.split(key))

    return lax.scan(step, key, jnp.arange(3), reverse=True)


@_program(lambda: (jax.random.PRNGKey(3),))
def raw_key_in_carry(key):
    def step(key, _):
        key, sub = jax.random.split(key)
        return key, jax.random.bits(sub, (2,))

    return lax.scan(step, key, None, length=3)


@_program(lambda: (ramp(3, dtype=jnp.bfloat16), ramp(4, 3, dtype=jnp.bfloat16)), grad=(0, 1))
def bfloat16(c, xs):
    return lax.scan(_decay, c, xs)


@_program(lambda: (ramp(3, dtype=jnp.float16), ramp(4, 3, dtype=jnp.float16)), grad=(0, 1))
def float16(c, xs):
    return lax.scan(_decay, c, xs)


@_program(lambda: (ramp(3, 3, dtype=float), ramp(3, dtype=float), ramp(4, 3, dtype=float)), grad=(0,), x64=True)
def float64(w, h, xs):
    return _rnn(w, h, xs), lax.scan(lambda n, x: (n + 1, x * n), 0, xs)


@_program(lambda: (ramp(2, dtype=np.complex64) * (1 + 2j), ramp(4, 2)), grad=(0, 1))
def complex64(c, xs):
    return lax.scan(lambda c, x: (c * 1j + x, c.conj() * c), c, xs)


@_program(lambda: (jnp.int32([1, 2]), jnp.arange(8).reshape(4, 2).astype(jnp.uint8)))
def integers(c, xs):
    return lax.scan(lambda c, x: (c * 3 + x, (x * 100, c // 2)), c, xs)


@_program(lambda: (jnp.asarray(True), jnp.asarray([True, False, True])))
def bools(c, xs):
    return lax.scan(lambda c, x: (c ^ x, c & ~x), c, xs)


@_program(lambda: (ramp(4),), grad=(0,))
def carry_stays_weak(xs):
    return lax.scan(lambda c, x: (c * 0.5 + 1, x * c), 1.0, xs)


@_program(lambda: (ramp(4),), grad=(0,))
def carry_becomes_strong(xs):
    return lax.scan(lambda c, x: (c + x, c), 0.0, xs)


@_program(lambda: (ramp(2),), grad=(0,))
def nested_weak_carry(x):
    def outer(c, t):
        inner, _ = lax.scan(lambda d, s: (d * 0.5 + 2, None), c, None, length=2)
        return inner, x * t

    return lax.scan(outer, 1.0, jnp.arange(3.0))


@_program(lambda: (jnp.float32([1, -1, 0]), jnp.float32([[1, 0, 0], [0, 0, 1], [2, 0, 0]])))
def nans_and_infs(c, xs):
    return lax.scan(lambda c, x: (c / x, (jnp.log(c), 0 * c)), c, xs)


# ------------------------------------------------ several loops


@_program(_rnn_args, grad=(0, 2))
def in_sequence(w, h, xs):
    h, ys = _rnn(w, h, xs)
    total, sums = lax.scan(lambda c, y: (c + y, c), ys[0] * 2, ys)
    back, _ = lax.scan(lambda c, x: (jnp.sin(c) * x[0] + x[1], None), total, (ys, sums), reverse=True)
    return back * h, sums


@_program(lambda: (ramp(2, 2), ramp(3, 4, 2)), grad=(0, 1))
def two_deep(w, xs):
    def row(c, xs):
        c, ys = lax.scan(lambda c, x: (jnp.tanh(w @ c + x), c[0]), c, xs)
        return c * 0.5, (ys, c)

    return lax.scan(row, w[0], xs)


@_program(lambda: (ramp(2),), vmap=False)
def four_deep(x):
    def nest(depth, c):
        if depth == 0:
            return jnp.sin(c) + x
        return lax.fori_loop(0, depth + 1, lambda i, c: nest(depth - 1, c), c)

    return nest(4, x)


@_program(lambda: (ramp(3, 2), ramp(2)), grad=(0, 1))
def two_side_by_side_inside(xs, c):
    def step(c, x):
        a, _ = lax.scan(lambda c, t: (c * x + t, None), c, jnp.arange(3.0), reverse=True)
        b, ys = lax.scan(lambda c, t: (c - t, c * t), a, jnp.arange(2.0))
        return jnp.tanh(b), ys

    return lax.scan(step, c, xs)


@_program(lambda: (ramp(4),), grad=(0,))
def jitted_inner_called_twice(xs):
    total = jax.jit(lambda c, xs: lax.scan(lambda c, x: (c + jnp.sin(x), c * x), c, xs))
    c, ys = total(xs[0], xs)
    return total(c, ys)


# ------------------------------------------------ what makes loops


@_program(lambda: (ramp(3),), grad=(0,))
def fori(x):
    return lax.fori_loop(1, 5, lambda i, c: c * 0.5 + x * i, x)


@_program(lambda: (ramp(4, 3),), grad=(0,))
def mapped(xs):
    return lax.map(lambda x: {"sum": x.sum(), "sorted": jnp.sort(x)}, xs)


@_program(lambda: (ramp(5, 2),), grad=(0,))
def mapped_in_batches(xs):
    return lax.map(lambda x: x * x.sum(), xs, batch_size=2)


@_program(lambda: (ramp(2, 2), ramp(3, 2), ramp(3, 4, 2)), grad=(0, 2))
def vmap_of_a_scan(w, h, xs):
    return jax.vmap(_rnn, (None, 0, 0))(w, h, xs)


@_program(lambda: (ramp(3, 4), ramp(2)), grad=(0, 1))
def scan_of_a_vmap_of_a_scan(xs, h):
    def step(h, x):
        run = jax.vmap(lambda h0: lax.scan(lambda c, t: (c * 0.5 + t, c), h0, x))
        c, ys = run(h)
        return c, ys.sum()

    return lax.scan(step, h, xs)


@_program(_rnn_args, grad=(0,))
def gradient(w, h, xs):
    return jax.value_and_grad(lambda w, xs: _rnn(w, h, xs)[1].sum(), (0, 1))(w, xs)


@_program(_rnn_args, grad=(0,))
def gradient_of_a_reverse_scan(w, h, xs):
    return jax.grad(lambda w: _rnn(w, h, xs, reverse=True)[0].sum())(w)


@_program(lambda: (ramp(2),))
def gradient_of_a_nest(w):
    def row(c, _):
        return lax.fori_loop(0, 2, lambda i, c: jnp.sin(w * c), c), None

    return jax.grad(lambda w: lax.scan(row, w, None, length=3)[0].sum())(w)


@_program(lambda: (ramp(2), ramp(2, 2)))
def hessian(c, xs):
    return jax.hessian(lambda c: lax.scan(lambda c, x: (jnp.sin(c) * x, None), c, xs)[0].prod())(c)


@_program(lambda: (ramp(2), jnp.arange(3)), grad=(0,))
def tangent(c, ns):
    return jax.jvp(lambda c: lax.scan(lambda c, n: (jnp.sin(c) * n, c), c, ns), (c,), (c * 2,))


@_program(lambda: (jnp.float32([1, 2, 4, 8]), ramp(3) * 5))
def loop_hidden_in_a_library(table, xs):
    return lax.scan(lambda n, x: (n + jnp.searchsorted(table, x + n), table[n % 4]), 0, xs)


# ------------------------------------------------ loops that some forms are for


@_program(lambda: (ramp(3),), grad=(0,))
def affine_recurrence(x):
    return lax.scan(lambda c, t: (c * jnp.cos(t) + x, c), x, jnp.arange(4.0))


@_program(lambda: (jnp.float32(2),), grad=(0,))
def masked_by_cond(a):
    def step(state):
        new = 0.5 * (state[0] + a / state[0])
        return new, jnp.abs(new - state[0]) < 1e-2

    def body(state, _):
        return lax.cond(state[1], lambda state: state, step, state), None

    return lax.scan(body, (a, False), None, length=7)[0]


@_program(lambda: (jnp.float32([2, 3]),), grad=(0,))
def masked_by_select(a):
    def body(c, x):
        return jnp.where(c.max() < 0.3, c, c * 0.5 - x), c

    return lax.scan(body, a, jnp.arange(6) / 64)


@_program(lambda: (jnp.float32([2, 3]),))
def masked_inside_a_loop(a):
    def body(c, t):
        done = c.sum() < 1
        return jax.tree.map(lambda old, new: jnp.where(done, old, new), c, c * t), None

    return lax.scan(lambda c, t: (lax.scan(body, c + t, jnp.full(5, t))[0], c), a, jnp.float32([0.5, 0.25]))


# ------------------------------------------------ what stands around a loop


@_program(_rnn_args, grad=(0, 2))
def inside_nested_jit(w, h, xs):
    @jax.jit
    def inner(h, xs):
        return jax.jit(functools.partial(_rnn, w))(h, xs)

    return inner(h * 2, xs)


@_program(_rnn_args, grad=(0, 2))
def inside_remat(w, h, xs):
    run = jax.checkpoint(_rnn, policy=jax.checkpoint_policies.dots_saveable)
    return run(w, h, xs)


@_program(lambda: (ramp(2), ramp(3, 2)))
def gradient_of_remat(c, xs):
    run = jax.checkpoint(lambda c: lax.scan(_decay, c, xs)[1])
    return jax.grad(lambda c: run(c).sum())(c)


@_program(lambda: (ramp(3),), grad=(0,))
def constants_inside_remat_and_cond(x):
    w, table = _a_jax_array(), np.arange(6, dtype=np.float32).reshape(2, 3)

    def run(x):
        return lax.scan(lambda c, t: (jnp.sin(c) * w + t, None), x, table)[0]

    return jax.checkpoint(run)(x), lax.cond(x[0] > 0, run, jnp.cos, x)


@_program(lambda: (ramp(2), ramp(3, 2)), grad=(0, 1))
def remat_of_the_body(c, xs):
    @jax.checkpoint
    def step(c, x):
        return lax.scan(lambda c, t: (jnp.sin(c * x) + t, None), c, jnp.arange(3.0))[0], c

    return lax.scan(step, c, xs)


@_program(lambda: (True, ramp(2), ramp(3, 2)), grad=(1, 2))
def inside_cond(flag, c, xs):
    def one(c):
        return lax.scan(_decay, c, xs)

    def other(c):
        c, _ = lax.scan(lambda c, x: (c - x, None), c, xs)
        return lax.scan(lambda c, x: (c, c * x), c, xs, reverse=True)

    return lax.cond(flag, one, other, c)


@_program(lambda: (ramp(2), ramp(3, 2)), grad=(0, 1))
def inside_cond_inside_scan(c, xs):
    def step(c, x):
        run = functools.partial(lax.fori_loop, 0, 3, lambda i, c: jnp.sin(c) + i)
        return lax.cond(c[0] > 0.5, run, lambda c: c + x, c), c

    return lax.scan(step, c, xs)


@_program(lambda: (1, ramp(2), ramp(3, 2)))
def inside_switch(which, c, xs):
    branches = [lambda c, k=k: lax.scan(lambda c, x: (c * k - x, c), c, xs) for k in range(3)]
    return lax.switch(which, branches, c)


@_program(lambda: (ramp(2), ramp(3, 2)))
def inside_while(c, xs):
    def keep_going(state):
        total, _ = lax.scan(lambda c, x: (c + x.sum(), None), state[0], xs)
        return total < 4

    def body(state):
        return state[0] + 1, lax.scan(_decay, state[1], xs)[0]

    return lax.while_loop(keep_going, body, (jnp.float32(0), c))


@_program(lambda: (ramp(2), 3))
def loop_of_unknown_length(c, n):
    return lax.fori_loop(0, n, lambda i, c: lax.scan(lambda c, x: (c * x, None), c, c)[0] + i, c)


@_program(lambda: (ramp(3),))
def no_loop_to_plan(x):
    return lax.while_loop(lambda c: c.sum() < 9, lambda c: c + jnp.abs(x), x)


@_program(lambda: (ramp(3), ramp(4, 3)), grad=(0, 1))
def inside_custom_jvp(c, xs):
    @jax.custom_jvp
    def run(c, xs):
        return lax.scan(_decay, c, xs)[0]

    @run.defjvp
    def rule(primals, tangents):  # not the true derivative: a lost rule shows
        return run(*primals), 7 * tangents[0] + tangents[1].sum(0)

    return run(c, xs), jax.jvp(lambda c: run(c, xs), (c,), (c,))


@_program(lambda: (ramp(3), ramp(4, 3)), grad=(0, 1))
def inside_custom_vjp(c, xs):
    @jax.custom_vjp
    def run(c, xs):
        return lax.scan(_decay, c, xs)[0]

    def forward(c, xs):
        return run(c, xs), xs

    def backward(xs, g):  # not the true derivative: a lost rule shows
        return 7 * g, 3 * lax.scan(lambda c, x: (c, c * x), g, xs)[1]

    run.defvjp(forward, backward)
    return run(c, xs), jax.grad(lambda c: run(c, xs).sum())(c)


@_program(lambda: (ramp(3), ramp(4, 3)), grad=(0, 1))
def custom_vjp_of_the_body(c, xs):
    @jax.custom_vjp
    def clipped(c, x):
        return lax.fori_loop(0, 2, lambda i, c: c * 0.5 + x, c)

    clipped.defvjp(lambda c, x: (clipped(c, x), None), lambda _, g: (jnp.clip(g, -0.1, 0.1), 5 * g))
    return lax.scan(lambda c, x: (clipped(c, x), c), c, xs)


PROGRAMS = tuple(_rows)
