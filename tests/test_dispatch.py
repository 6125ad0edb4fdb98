"""The decorator end to end: what a call returns, when it tunes, and which plan runs where."""

import dataclasses
import functools
import inspect
import json
import re
import sys
import threading
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import assert_same, one_per_form, ramp
from jax import lax
from jax.experimental import io_callback

import autoloop as package
from autoloop import AutoloopWarning, Plan, Status, _call, _decide, _dispatch, _stores, _tune, autoloop
from autoloop._forms import FORMS
from autoloop._plans import ALL_FORMS
from autoloop._program import Miss

#: form -> the plan that wins where only that form is allowed, on one loop of three iterations
WINNERS = {"inline": "0=inline", "python": "0=python(1)", "eager": "0=eager"}
HOST = ("python", "eager")

XS = ramp(3, 2)


def winners(*names):
    return pytest.mark.parametrize("form", names or tuple(WINNERS))


def total(xs, scale=0.5):
    """One loop of three iterations; the name of the function in most tests here."""
    return lax.scan(lambda c, x: (c * scale + x, c.sum()), jnp.zeros(xs.shape[1:]), xs)


def nested(w, xs):
    def outer(c, x):
        c, ys = lax.scan(lambda d, y: (jnp.tanh(d @ w + y), d.sum()), c, jnp.stack([x, x]))
        return c, ys

    return lax.scan(outer, jnp.zeros(2), xs)


def scans(fun, *args):
    """How many scan equations a function's program holds, traced anew."""
    return str(jax.make_jaxpr(lambda *args: fun(*args))(*args)).count("scan[")


def tuned(form, fun=total, **options):
    return autoloop(fun, forms=[form], **options)


pytestmark = pytest.mark.usefixtures("quick")


# ------------------------------------------------ one call, and the next


@winners()
def test_the_first_call_tunes_and_later_calls_do_not(form, tunings):
    fun = tuned(form)
    for _ in range(3):
        assert_same(jax.jit(total)(XS), fun(XS))
        assert tunings == [f"{__name__}.total"]
    assert str(fun.plan(XS)) == WINNERS[form]


@dataclasses.dataclass
class Pair:
    left: object
    right: object


jax.tree_util.register_dataclass(Pair, ["left", "right"], [])


def with_key(key, xs):
    return lax.scan(lambda k, x: (jax.random.split(k)[0], x + jax.random.normal(k, ())), key, xs[:, 0])


def with_tree(tree, xs):
    def step(c, x):
        return Pair(c.right + x, c.left), {"sum": c.left + tree["b"], "none": None}

    return lax.scan(step, Pair(tree["a"][0], tree["a"][1]), xs)


def with_static(xs, power, name="plain", *, times=1):
    start = {"plain": 0.0, "one": 1.0}[name]
    return times, lax.scan(lambda c, x: (c + x.sum() ** power, c), jnp.float32(start), xs)[0]


def with_scalars(a, b, xs):
    return a, b, lax.scan(lambda c, x: (c * a + x.sum(), b), jnp.float32(0), xs)


TREE = {"a": (ramp(2), jnp.zeros(2)), "b": ramp(2), "none": None}

CALLS = {
    "arrays": (total, {}, (XS,), {}),
    "numpy arrays": (total, {}, (np.asarray(XS),), {}),
    "64-bit numpy arrays": (total, {}, (np.asarray(XS, np.float64),), {}),
    "a default": (total, {}, (XS,), {}),
    "a keyword": (total, {}, (XS,), {"scale": 0.25}),
    "only keywords": (total, {}, (), {"scale": jnp.float32(2), "xs": XS}),
    "weak scalars": (with_scalars, {}, (2.0, 3, XS), {}),
    "strong scalars": (with_scalars, {}, (jnp.float32(2), np.int32(3), XS), {}),
    "booleans": (with_scalars, {}, (True, False, XS), {}),
    "a tree with None and a node of the user's": (with_tree, {}, (TREE, XS), {}),
    "a typed key": (with_key, {}, (jax.random.key(3), XS), {}),
    "a raw key": (with_key, {}, (jax.random.PRNGKey(3), XS), {}),
    "a key of another kind": (with_key, {}, (jax.random.key(3, impl="rbg"), XS), {}),
    "a static number": (with_static, {"static_argnums": 1}, (XS, 2), {}),
    "a static name": (
        with_static,
        {"static_argnames": ("name", "power")},
        (XS,),
        {"name": "one", "power": 2},
    ),
    "a static default": (with_static, {"static_argnames": "name"}, (XS, 2), {}),
    "statics by place and name": (
        with_static,
        {"static_argnums": (1, 2)},
        (XS, 3),
        {"name": "one", "times": 2},
    ),
    "no arguments": (lambda: total(jnp.asarray(np.ones((3, 2)))), {}, (), {}),
}


@winners("inline", "python")
@pytest.mark.parametrize("name", CALLS)
def test_arguments_mean_what_they_mean_to_jit(name, form, tunings, request):
    fun, options, args, kwargs = CALLS[name]
    ours = tuned(form, fun, **options)
    for _ in range(2):
        assert_same(jax.jit(fun, **options)(*args, **kwargs), ours(*args, **kwargs))
    assert len(tunings) == 1
    assert str(ours.plan(*args, **kwargs)) == WINNERS[form]


def test_a_call_of_a_one_program_winner_is_left_to_jit(tunings, monkeypatch):
    fun = tuned("inline")
    fun(XS)
    fun(XS)
    monkeypatch.setattr(_dispatch.Call, "of", None)  # any Python of ours beyond __call__ would need it
    assert_same(jax.jit(total)(XS), fun(XS))


def python_calls(fun, *args):
    """How many functions written in Python a call runs."""
    count = 0

    def notice(_frame, event, _):
        nonlocal count
        count += event == "call"

    sys.setprofile(notice)
    try:
        fun(*args)
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("pin", [False, True])
@winners()
def test_a_later_signature_is_dispatched_as_fast_as_the_first(form, pin):
    """jax takes the slow way for ever through a signature whose first trace raised, as a miss does."""
    fun = autoloop(total).using(WINNERS[form]) if pin else tuned(form)
    values = [ramp(3, n) for n in (2, 4, 5)]
    for xs in values + values:
        fun(xs)
    counts = {python_calls(fun, xs) for xs in values}
    assert len(counts) == 1
    if form == "inline":
        assert counts.pop() <= python_calls(jax.jit(total).lower(XS).compile(), XS)


@pytest.mark.parametrize("pin", [False, True])
def test_no_key_is_made_in_python_for_a_python_loop(pin, monkeypatch):
    fun = autoloop(total).using("0=python(1)") if pin else tuned("python")
    fun(XS)
    expected = fun(XS)  # the first call that jit's dispatch finds the loop for
    monkeypatch.setattr(_call.Call, "of", lambda *args: pytest.fail("a call was taken apart"))
    assert_same(fun(XS), expected)


def test_an_error_of_a_pinned_loop_has_no_context_of_ours():
    def broken(xs):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as error:
        autoloop(broken).using("0=python(1)")(XS)
    assert error.value.__context__ is None


def test_each_signature_is_tuned_once(tunings):
    fun = tuned("inline")
    calls = [
        lambda: fun(XS),
        lambda: fun(ramp(4, 2)),
        lambda: fun(XS.astype(jnp.bfloat16)),
        lambda: fun(XS, 0.5),
        lambda: fun(XS, jnp.float32(0.5)),
    ]
    for count, call in enumerate(calls, 1):
        call()
        call()
        assert len(tunings) == count


@winners()
def test_settings_of_jax_make_signatures(form, tunings):
    fun = tuned(form, lambda xs: lax.scan(lambda c, x: (c + x, c), jnp.zeros((), xs.dtype), xs))
    ints = np.arange(3)
    plain = jax.jit(fun.__wrapped__)
    for count in (1, 1):
        assert_same(plain(ints), fun(ints))
        assert len(tunings) == count
    with jax.enable_x64(True):
        for count in (2, 2):
            assert_same(plain(ints), fun(ints))
            assert len(tunings) == count
    with jax.default_matmul_precision("float32"):
        assert_same(plain(ints), fun(ints))
    assert len(tunings) == 3
    assert_same(plain(ints), fun(ints))
    assert len(tunings) == 3


@winners()
def test_static_values_make_signatures(form, tunings):
    fun = tuned(form, with_static, static_argnames=("power", "name"))
    plain = jax.jit(with_static, static_argnames=("power", "name"))
    for power in (1, 2, 1, 2):
        assert_same(plain(XS, power), fun(XS, power))
    assert len(tunings) == 2
    assert_same(plain(XS, 1, name="one"), fun(XS, 1, name="one"))
    assert len(tunings) == 3


def of_type(xs, flag):
    kind = {bool: 1.0, int: 2.0, float: 3.0}[type(flag)]
    return lax.scan(lambda c, x: (c + kind * x, c), 0.0, xs[:, 0])


@pytest.mark.parametrize(
    "form",
    [
        "inline",
        *(
            pytest.param(
                form,
            )
            for form in HOST
        ),
    ],
)
def test_static_values_of_another_type_are_other_values(form):
    fun, plain = tuned(form, of_type, static_argnums=1), jax.jit(of_type, static_argnums=1)
    for flag in (1, True, 1.0):
        assert_same(plain(XS, flag), fun(XS, flag))


def test_a_function_without_loops_is_not_tuned(tunings):
    fun = autoloop(lambda x: x * 2)
    assert_same(jnp.float32(6), fun(jnp.float32(3)))
    assert tunings == []
    assert str(fun.plan(jnp.float32(3))) == "as-written"
    assert "no loop" in fun.report(jnp.float32(3)).verdict


def test_it_looks_like_the_function():
    fun = autoloop(total)
    assert fun.__name__ == "total"
    assert fun.__doc__ == total.__doc__
    assert fun.__wrapped__ is total
    assert inspect.signature(fun) == inspect.signature(total)
    assert repr(fun) == f"<autoloop {__name__}.total>"
    assert repr(fun.using("0=inline")) == f"<autoloop {__name__}.total using 0=inline>"
    assert fun.using("0=inline").__wrapped__ is total


# ------------------------------------------------ kinds of functions


class Model:
    def __init__(self, scale):
        self.scale = scale

    @autoloop(static_argnums=0, forms=["inline"])
    def run(self, xs):
        return total(xs, self.scale)

    @classmethod
    @autoloop(static_argnums=0, forms=["inline"])
    def of_class(cls, xs):
        return total(xs, len(cls.__name__))

    @staticmethod
    @autoloop(forms=["inline"])
    def of_nobody(xs):
        return total(xs)


@dataclasses.dataclass
class Node:
    scale: jax.Array

    @autoloop(forms=["inline"])
    def run(self, xs):
        return total(xs, self.scale)


jax.tree_util.register_dataclass(Node, ["scale"], [])


class Callable:
    """A callable without a name, with attributes of its own."""

    def __init__(self):
        self.scale = 2.0

    def __call__(self, xs):
        return total(xs, self.scale)


KINDS = {
    "a method": (lambda: Model(2.0).run, 2.0),
    "a method of the class": (lambda: functools.partial(Model.run, Model(2.0)), 2.0),
    "a classmethod": (lambda: Model.of_class, 5.0),
    "a classmethod of an object": (lambda: Model(1.0).of_class, 5.0),
    "a staticmethod": (lambda: Model.of_nobody, 0.5),
    "a method of a tree": (lambda: Node(jnp.float32(2)).run, 2.0),
    "a bound method": (lambda: autoloop(Callable().__call__, forms=["inline"]), 2.0),
    "a partial": (lambda: autoloop(functools.partial(total, scale=2.0), forms=["inline"]), 2.0),
    "a callable object": (lambda: autoloop(Callable(), forms=["inline"]), 2.0),
    "a jitted function": (lambda: autoloop(jax.jit(total), forms=["inline"]), 0.5),
    "a lambda": (lambda: autoloop(lambda xs: total(xs, 2.0), forms=["inline"]), 2.0),
}


@pytest.mark.parametrize(("make", "scale"), [pytest.param(*kind, id=name) for name, kind in KINDS.items()])
def test_kinds_of_functions(make, scale, tunings):
    fun = make()
    for _ in range(2):
        assert_same(jax.jit(total)(XS, scale), fun(XS))
    assert len(tunings) <= 1  # the classes above keep what earlier rows tuned


def test_two_objects_of_a_static_self_are_two_signatures():
    for scale in (2.0, 3.0, 2.0):
        assert_same(jax.jit(total)(XS, scale), Model(scale).run(XS))


# ------------------------------------------------ under a trace


TRACES = {
    "jit": lambda f: jax.jit(lambda xs: f(xs)),
    "grad": lambda f: jax.grad(lambda xs: jnp.sum(f(xs)[0])),
    "vmap": lambda f: lambda xs: jax.vmap(f)(jnp.stack([xs, 2 * xs])),
    "scan": lambda f: lambda xs: lax.scan(lambda c, x: (c, f(x)), 0.0, jnp.stack([xs, 2 * xs]))[1],
    "checkpoint": lambda f: jax.grad(lambda xs: jnp.sum(jax.checkpoint(f)(xs)[0])),
    "cond": lambda f: lambda xs: lax.cond(xs[0, 0] > 0, f, lambda y: jax.tree.map(jnp.zeros_like, f(y)), xs),
}


@functools.cache
def transformed(name):
    return TRACES[name](jax.jit(total))(XS)


@pytest.mark.parametrize("name", TRACES)
@pytest.mark.parametrize("form", [None, "inline", "eager"], ids=["untuned", "inline", "eager"])
def test_in_a_trace_it_never_tunes_and_gives_the_same(form, name, tunings):
    fun = tuned(form or "inline")
    if form is not None:
        fun(XS)
    before = len(tunings)
    assert_same(transformed(name), TRACES[name](fun)(XS))
    assert len(tunings) == before == (form is not None)


def test_shapes_are_asked_for_without_tuning(tunings):
    fun = autoloop(total)
    assert jax.eval_shape(fun, XS) == jax.eval_shape(total, XS)
    assert tunings == []


def test_in_a_trace_a_one_program_winner_is_used_and_a_host_winner_is_not():
    for form, wanted in (("inline", 0), ("python", 1), ("eager", 1)):
        fun = tuned(form)
        assert scans(fun, XS) == 1
        fun(XS)
        assert scans(fun, XS) == wanted
        fun.forget(XS)


def test_in_a_trace_the_best_plan_that_is_one_program_stands_for_a_host_winner():
    fun = tuned("eager")
    record = fun.warmup(XS)
    written, eager = record.trials
    inline = eager.replace(plan="0=inline", ratio=0.7, ratio_low=0.7, ratio_high=0.7)
    put_record(fun, XS, record.replace(trials=(written, eager, inline)))
    again = tuned("eager")
    assert scans(again, XS) == 0
    assert str(again.plan(XS)) == "0=eager"
    slow = inline.replace(ratio=0.99, ratio_low=0.98, ratio_high=1.0)
    put_record(fun, XS, record.replace(trials=(written, eager, slow)))
    assert scans(tuned("eager"), XS) == 1


def put_record(fun, args, record):
    """Puts a record where the store has the one in force."""
    store = _stores.store_of(package._config.current())
    ((key, _),) = [item for item in store.items() if item[1].key == fun.report(args).key]
    store.put(key, record)


OPTION = "xla_backend_optimization_level=1"


def with_winner(plan, fun=total):
    """A function whose record in the store names `plan` for `XS`."""
    record = tuned("inline", fun).warmup(XS)
    trials = (*record.trials, record.trials[1].replace(plan=plan, ratio=0.25))
    put_record(tuned("inline", fun), XS, record.replace(winner=plan, trials=trials))
    return tuned("inline", fun)


@pytest.mark.parametrize("plan", [OPTION, f"0=inline {OPTION}", f"0=python(1) {OPTION}"])
def test_a_winner_with_xla_options_runs_at_top_level_and_another_plan_in_a_trace(plan, tunings):
    fun = with_winner(plan)
    for _ in range(2):
        assert_same(jax.jit(total)(XS), fun(XS))
        for name in ("jit", "grad", "vmap"):
            assert_same(transformed(name), TRACES[name](fun)(XS))
    assert str(fun.plan(XS)) == plan
    assert scans(fun, XS) == 0  # inline, the best plan without options
    assert len(tunings) == 1


def test_plans_of_other_xla_options_stand_beside_each_other(tunings):
    other = ramp(4, 2)
    tuned("inline").warmup(other)
    fun = with_winner(OPTION)
    for _ in range(3):
        for xs in (XS, other):
            assert_same(jax.jit(total)(xs), fun(xs))
    assert [str(fun.plan(xs)) for xs in (XS, other)] == [OPTION, "0=inline"]
    assert len(tunings) == 2


def test_an_error_of_the_users_in_a_trace_is_not_taken_for_one_of_the_options():
    mine = ValueError("two rows")

    def picky(xs):
        if xs.shape[0] == 2:
            raise mine
        return total(xs)

    fun = with_winner(OPTION, picky)
    fun(XS)
    for call in (fun, jax.jit(lambda xs: fun(xs))):
        with pytest.raises(ValueError, match="two rows") as caught:
            call(ramp(2, 2))
        assert caught.value is mine
        assert mine.__context__ is None


CONCRETE = {
    "a numpy array": lambda f: jax.jit(lambda y: f(np.asarray(XS))[0] + y),
    "an array": lambda f: jax.jit(lambda y: f(XS)[0] + y),
}


@winners("inline", "eager")
@pytest.mark.parametrize("transform", [pytest.param(t, id=name) for name, t in CONCRETE.items()])
def test_in_a_trace_it_does_not_tune_on_values_either(transform, form, tunings):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AutoloopWarning)
        assert_same(transform(total)(2.0), transform(tuned(form))(2.0))
    assert tunings == []


@winners()
def test_a_function_that_closes_over_tracers_runs_as_written(form, tunings):
    def whole(make, w):
        return make(lambda xs: lax.scan(lambda c, x: (c * w + x.sum(), c), jnp.float32(0), xs)[0])(XS)

    def ours(fun):
        return tuned(form, fun)

    for transform in (jax.jit, jax.grad, lambda f: lambda w: jax.vmap(f)(jnp.stack([w, 2 * w]))):
        wanted = transform(functools.partial(whole, jax.jit))(jnp.float32(0.5))
        assert_same(wanted, transform(functools.partial(whole, ours))(jnp.float32(0.5)))
    assert tunings == []


@winners()
def test_without_jit_the_function_runs_in_python(form, tunings):
    runs = []

    def counted(xs):
        def step(c, x):
            runs.append(1)
            return c + x.sum(), c

        return lax.scan(step, jnp.float32(0), xs)

    fun = tuned(form, counted)
    with jax.disable_jit():
        wanted = counted(XS)
        runs.clear()
        assert_same(wanted, fun(XS))
        assert len(runs) == 3
        assert tunings == []
    assert_same(jax.jit(counted)(XS), fun(XS))
    assert len(tunings) == 1
    with jax.disable_jit():
        runs.clear()
        assert_same(wanted, fun(XS))
    assert len(runs) == 3


# ------------------------------------------------ donation


def advance(state, xs):
    return {"a": state["a"] + total(xs)[0], "k": jax.random.split(state["k"])[0]}


def make_state():
    return {"a": ramp(2), "k": jax.random.key(1)}


@pytest.mark.parametrize(
    ("form", "options"),
    [
        ("inline", {"donate_argnums": 0}),
        ("inline", {"donate_argnames": "state"}),
        ("python", {"donate_argnums": 0}),
        ("eager", {"donate_argnames": ["state"]}),
    ],
)
def test_the_call_donates_and_trials_do_not(form, options, monkeypatch):
    state, deleted = make_state(), []
    real = _tune.tune

    def watched(*args, **kwargs):
        found = real(*args, **kwargs)
        deleted.append([leaf.is_deleted() for leaf in jax.tree.leaves(state)])
        return found

    monkeypatch.setattr(_tune, "tune", watched)
    fun = tuned(form, advance, **options)
    wanted = jax.jit(advance)(make_state(), XS)
    for count in range(3):
        state = make_state()
        assert_same(wanted, fun(state, XS))
        assert [leaf.is_deleted() for leaf in jax.tree.leaves(state)] == [True, True]
        assert not XS.is_deleted()
        assert deleted == [[False, False]], count
    assert str(fun.plan(make_state(), XS)) == WINNERS[form]


@winners()
def test_donated_arguments_of_numpy_are_left_alone(form):
    def add(state, xs):
        return state + total(xs)[0]

    fun = tuned(form, add, donate_argnums=0)
    for _ in range(2):
        state = np.ones(2, np.float32)
        assert_same(jax.jit(add)(state, XS), fun(state, XS))
        np.testing.assert_array_equal(state, np.ones(2, np.float32))


@winners()
def test_an_output_that_is_an_argument_is_a_buffer_of_its_own(form):
    def both(x, xs):
        return x, x, total(xs)[0]

    fun = tuned(form, both)
    for _ in range(2):
        x = ramp(2)
        one, other, _ = fun(x, XS)
        pointers = {v.unsafe_buffer_pointer() for v in (x, one, other)}
        assert len(pointers) == 3
        x.delete()
        assert_same(ramp(2), one)


# ------------------------------------------------ the user's errors


class Ours(Exception):
    """An error of the user's."""


def chain(error):
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


@winners()
def test_an_error_while_tracing_reaches_the_user_unchanged(form, tunings):
    mine = Ours("mine")

    def broken(xs):
        def step(c, x):
            raise mine

        return lax.scan(step, 0.0, xs)

    fun = tuned(form, broken)
    for call in (fun, fun, fun.warmup, fun.plan, fun.plans, jax.jit(fun), jax.grad(fun)):
        with pytest.raises(Ours) as caught:
            call(XS)
        assert caught.value is mine
        assert mine.__context__ is None
        assert not any(isinstance(error, Miss) for error in chain(mine))
    assert tunings == []


def checked(xs):
    def check(x):
        if x < 0:
            raise Ours("negative")
        return x

    def step(c, x):
        return c + jax.pure_callback(check, jax.ShapeDtypeStruct((), jnp.float32), x), c

    return lax.scan(step, jnp.float32(0), xs)


@winners()
def test_an_error_while_running_reaches_the_user_as_from_jit(form):
    bad, good = jnp.float32([1, -1, 2]), jnp.float32([1, 2, 3])
    with pytest.raises(Exception, match="negative") as of_jit:
        jax.block_until_ready(jax.jit(checked)(bad))
    fun = tuned(form, checked)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AutoloopWarning)  # the tuning says that it failed
        with pytest.raises(Exception, match="negative") as ours:
            jax.block_until_ready(fun(bad))
    assert type(ours.value) is type(of_jit.value)
    assert not any(isinstance(error, Miss) for error in chain(ours.value))
    assert_same(jax.jit(checked)(good), fun(good))


@winners()
def test_an_error_after_tuning_reaches_the_user_as_from_jit(form, tunings):
    bad, good = jnp.float32([1, -1, 2]), jnp.float32([1, 2, 3])
    fun = tuned(form, checked)
    fun(good)
    # jit raises the one from its first call and the other from later ones.
    with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match="Ours: negative"):
        jax.block_until_ready(fun(bad))
    assert_same(jax.jit(checked)(good), fun(good))
    assert len(tunings) == 1


BAD_CALLS = {
    "an unhashable static": ((XS, [1]), {}),
    "an argument that is no array": (("text", 1), {}),
    "too few arguments": ((), {}),
    "too many arguments": ((XS, 1, 2, 3, 4, 5), {}),
    "an unknown keyword": ((XS, 1), {"unknown": 1}),
    "a shape that does not fit": ((jnp.ones(()), 1), {}),
}


def raised(call, *args, **kwargs):
    """The error that a call raises: its first line without addresses, its type and those behind it."""
    with pytest.raises((TypeError, ValueError, IndexError)) as caught:
        call(*args, **kwargs)
    return re.sub(r"0x\w+", "", str(caught.value).splitlines()[0]), [*map(type, chain(caught.value))]


@pytest.mark.parametrize("form", [None, "inline", "python"], ids=["untuned", "inline", "python"])
@pytest.mark.parametrize("name", BAD_CALLS)
def test_a_bad_call_is_the_error_of_jit(name, form, tunings, request):
    args, kwargs = BAD_CALLS[name]
    fun = tuned(form or "inline", with_static, static_argnums=1)
    if form is not None:
        fun(XS, 1)
    before = len(tunings)
    assert raised(fun, *args, **kwargs) == raised(jax.jit(with_static, static_argnums=1), *args, **kwargs)
    assert len(tunings) == before


def test_an_interrupt_ends_the_tuning_and_the_next_call_tunes(monkeypatch, tunings):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    fun = tuned("inline")
    with monkeypatch.context() as patch:
        patch.setattr(_tune, "tune", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fun(XS)
    assert_same(jax.jit(total)(XS), fun(XS))
    assert len(tunings) == 1


# ------------------------------------------------ side effects


def printing(xs):
    def step(c, x):
        jax.debug.print("x is {}", x[0])
        return c + x.sum(), c

    return lax.scan(step, jnp.float32(0), xs)


@winners("unroll", *WINNERS)
def test_prints_happen_once_a_call_and_never_in_trials(form, tunings, capfd):
    fun = tuned(form, printing)
    wanted = jax.jit(printing)(XS)
    jax.effects_barrier()
    once = sorted(capfd.readouterr().out.splitlines())  # prints that are not ordered come as they like
    assert len(once) == 3
    for call in (fun, fun, jax.jit(lambda xs: fun(xs))):
        assert_same(wanted, call(XS))
        jax.effects_barrier()
        assert sorted(capfd.readouterr().out.splitlines()) == once
    record = fun.warmup(XS)
    jax.effects_barrier()
    assert capfd.readouterr().out == ""
    assert (record.winner == "as-written") == (not ALL_FORMS[form].keeps_effects)
    assert tunings == [f"{__name__}.printing"]


def ordered(xs):
    def step(c, x):
        jax.debug.print("x is {}", x[0], ordered=True)
        return c + x.sum(), c

    c, ys = lax.scan(step, jnp.float32(0), xs)
    jax.debug.print("end {}", c, ordered=True)
    return c, ys


@winners("unroll", "inline")
def test_ordered_prints_keep_their_order(form, capfd):
    fun = tuned(form, ordered)
    jax.block_until_ready(jax.jit(ordered)(XS))
    jax.effects_barrier()
    once = capfd.readouterr().out
    for _ in range(2):
        jax.block_until_ready(fun(jnp.copy(XS)))
        jax.effects_barrier()
        assert capfd.readouterr().out == once
    assert not fun.plan(XS).as_written


def recording(seen):
    def fun(xs):
        def step(c, x):
            io_callback(lambda v: seen.append(float(v)), None, x[0], ordered=True)
            return c + x.sum(), c

        return lax.scan(step, jnp.float32(0), xs)

    return fun


@pytest.mark.parametrize("allow", [False, True])
def test_other_side_effects_are_repeated_only_where_that_is_allowed(allow, tunings):
    seen = []
    fun = tuned("inline", recording(seen), allow_side_effects=allow)
    jax.block_until_ready(fun(XS))
    jax.effects_barrier()
    assert (len(seen) > 3) == allow == bool(tunings)
    record = fun.report(XS)
    assert record.winner == ("0=inline" if allow else "as-written")
    assert allow or "allow_side_effects=True" in record.verdict
    seen.clear()
    jax.block_until_ready(fun(XS))
    jax.effects_barrier()
    assert seen == [float(x[0]) for x in XS]


# ------------------------------------------------ functions that call each other


def test_a_function_sees_the_loops_of_decorated_functions_it_calls(tunings):
    inner = tuned("inline")

    def outer(xs):
        return lax.scan(lambda c, x: (c + inner(x[None] * XS)[0], c), jnp.zeros(2), xs)

    fun = autoloop(outer, forms=["inline"])
    assert {str(plan) for plan in fun.plans(XS)} == {
        "as-written",
        "0=inline",
        "0/0=inline",
        "0=inline 0/0=inline",
    }
    wanted = jax.jit(lambda xs: lax.scan(lambda c, x: (c + total(x[None] * XS)[0], c), jnp.zeros(2), xs))(XS)
    for _ in range(2):
        assert_same(wanted, fun(XS))
    assert [name.split(".")[-1] for name in tunings] == ["outer"]
    inner(XS)
    assert len(tunings) == 2


@winners(*HOST)
def test_a_host_program_around_a_decorated_function(form, tunings):
    inner = tuned(form)
    inner(XS)
    fun = tuned(form, lambda xs: lax.scan(lambda c, x: (c + inner(x[None] * XS)[0], c), jnp.zeros(2), xs))
    wanted = jax.jit(lambda xs: lax.scan(lambda c, x: (c + total(x[None] * XS)[0], c), jnp.zeros(2), xs))(XS)
    for _ in range(2):
        assert_same(wanted, fun(XS))
    assert len(tunings) == 2


# ------------------------------------------------ threads


@winners()
def test_threads_that_call_first_at_once_tune_once(form, tunings):
    fun, start = tuned(form), threading.Barrier(4)
    found = [None] * 4

    def call(number):
        start.wait()
        found[number] = [fun(XS), fun(XS)]

    threads = [threading.Thread(target=call, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for results in found:
        for result in results:
            assert_same(jax.jit(total)(XS), result)
    assert len(tunings) == 1
    assert str(fun.plan(XS)) == WINNERS[form]


@pytest.fixture
def impatient(monkeypatch):
    """A function whose tuning takes until it is told to go on, and that nobody waits for."""
    real, begun, go_on = _tune.tune, threading.Event(), threading.Event()

    def slow(*args, **kwargs):
        begun.set()
        assert go_on.wait(60)
        return real(*args, **kwargs)

    monkeypatch.setattr(_tune, "tune", slow)
    monkeypatch.setattr(_decide, "_PATIENCE", -1 / 30)  # of the budget of 30 s, and 1 s more
    fun = tuned("inline")
    first = threading.Thread(target=fun, args=(XS,))
    first.start()
    assert begun.wait(60)

    def finish():
        go_on.set()
        first.join()

    yield fun, finish
    finish()


def test_another_thread_does_not_wait_for_a_tuning_for_ever(impatient):
    fun, finish = impatient
    assert_same(jax.jit(total)(XS), fun(XS))
    finish()
    assert str(fun.plan(XS)) == "0=inline"
    assert_same(jax.jit(total)(XS), fun(XS))


def test_a_thread_that_did_not_wait_does_not_keep_the_winner_out(impatient):
    fun, finish = impatient
    fun(XS)
    finish()
    assert scans(fun, XS) == 0


# ------------------------------------------------ devices


DEVICES = """
import json
import fakes, jax, jax.numpy as jnp, numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from autoloop import _config, _decide, _stores, _program, autoloop

fakes.make_quick()
tunings = fakes.count_tunings()
first, second = jax.devices()
mesh = Mesh(np.array([first, second]), "x")
xs = np.linspace(0, 1, 12, dtype=np.float32).reshape(3, 4)
places = {
    "nowhere": xs,
    "first": jax.device_put(xs, first),
    "second": jax.device_put(xs, second),
    "split": jax.device_put(xs, NamedSharding(mesh, P(None, "x"))),
}

def total(xs):
    return lax.scan(lambda c, x: (c * 0.5 + x, c.sum()), jnp.zeros(xs.shape[1:]), xs)

found = {}
for form in ("inline", "python"):
    fun = autoloop(total, forms=[form])
    for round in range(3):
        for name, value in places.items():
            before = len(tunings)
            wanted, got = jax.jit(total)(value), fun(value)
            for a, b in zip(jax.tree.leaves(wanted), jax.tree.leaves(got)):
                np.testing.assert_allclose(np.asarray(b), np.asarray(a), rtol=1e-6)
                assert b.sharding.device_set == a.sharding.device_set, (form, name, b.sharding, a.sharding)
            found[f"{form} {name} {round}"] = len(tunings) - before
    found[f"{form} plans"] = sorted({str(fun.plan(value)) for value in places.values()})
    fun.forget()

# Another plan for the second device than for the first.
fun = autoloop(total, forms=["inline"])
for name in ("first", "second"):
    fun.warmup(places[name])
store = _stores.store_of(_config.current())
((key, record),) = [item for item in store.items() if item[1].key["sharding"]]
store.put(key, record.replace(winner="as-written"))
again, ran, call = autoloop(total, forms=["inline"]), [], _program.OneProgram.__call__
_program.OneProgram.__call__ = lambda self, *args: ran.append(*self.planned.plans.values()) or call(self, *args)
for _ in range(3):
    again(places["first"])
    again(places["second"])
found["ran on second"] = str(ran[-1])
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def on_devices(module_python):
    return json.loads(module_python(DEVICES, XLA_FLAGS="--xla_force_host_platform_device_count=2"))


PLACES = ("nowhere", "first", "second", "split")


@winners("inline", "python")
def test_each_placement_has_a_decision_of_its_own(form, on_devices):
    assert on_devices[f"{form} plans"] == [WINNERS[form]]
    counts = [[on_devices[f"{form} {name} {number}"] for name in PLACES] for number in range(3)]
    # Data on the one device where jax would put it counts as not placed.
    assert counts == [[1, 0, 1, 1], [0] * 4, [0] * 4]


def test_each_placement_runs_its_own_plan(on_devices):
    assert on_devices["ran on second"] == "as-written"


# ------------------------------------------------ asking


def test_asking_never_tunes(tunings, own_store):
    fun = autoloop(total)
    assert fun.plan(XS) is None
    assert fun.report(XS) is None
    assert fun.plans(XS)[0] == Plan()
    assert jax.jit(lambda xs: fun.plan(xs) is None)(XS)
    assert fun.plan(jax.ShapeDtypeStruct(XS.shape, XS.dtype)) is None
    assert tunings == []


def test_after_tuning_values_tracers_and_specs_are_answered():
    fun, spec = tuned("inline"), jax.ShapeDtypeStruct(XS.shape, XS.dtype)
    fun(XS)
    seen = []
    jax.jit(lambda xs: seen.append(str(fun.plan(xs))))(XS)
    assert [str(fun.plan(XS)), str(fun.plan(spec)), *seen] == ["0=inline"] * 3
    assert fun.plan(ramp(5, 2)) is None


def test_the_report_is_the_record_and_prints_as_a_table():
    fun = tuned("inline", expected_calls=100)
    fun(XS)
    record = fun.report(XS)
    assert record.function == f"{__name__}.total"
    assert record.winner == "0=inline"
    assert [trial.plan for trial in record.trials] == ["as-written", "0=inline"]
    assert all(trial.ok for trial in record.trials)
    assert record.expected_calls == 100
    assert record.key["arguments"] == "f32[3,2]"
    text = str(record)
    assert record.verdict == "0=inline runs 2.00x as fast as written"
    for part in ("as-written", "chosen", "f32[3,2]", "plan in force: 0=inline (runs 2.00x as fast as written)"):
        assert part in text


def test_plans_are_those_that_tuning_tries():
    fun = autoloop(nested, forms=["inline", "python"])
    w = ramp(2, 2)
    assert [str(plan) for plan in fun.plans(w, XS)] == [
        "as-written",
        "0=inline",
        "0=python(1)",
        "0/0=inline",
        "0=inline 0/0=inline",
        "0=python(1) 0/0=inline",
        "0=python(1) 0/0=python(1)",
    ]
    fun(w, XS)
    tried = {trial.plan for trial in fun.report(w, XS).trials}
    assert tried <= {str(plan) for plan in fun.plans(w, XS)}
    assert len(tried) > 2
    fun = autoloop(total, forms=["inline", "python", "eager"])
    fun(XS)
    assert {trial.plan for trial in fun.report(XS).trials} == {str(plan) for plan in fun.plans(XS)}


# ------------------------------------------------ warming up and forgetting


@winners("inline", "python")
def test_warmup_from_specs_spares_the_call_its_tuning(form, tunings):
    def walk(key, state, xs, *, scale):
        def step(c, x):
            return c * scale + x + jax.random.normal(key, x.shape), c.sum()

        return lax.scan(step, state, xs)

    fun = tuned(form, walk, donate_argnums=1)
    args = (jax.random.key(0), ramp(2), XS)
    specs = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in args]
    record = fun.warmup(*specs, scale=0.5)
    assert record.winner == WINNERS[form]
    assert any("specs" in note for note in record.notes)
    assert len(tunings) == 1
    assert fun.warmup(*specs, scale=0.5) == record
    wanted = jax.jit(walk)(*args, scale=0.5)
    assert_same(wanted, fun(*args, scale=0.5))
    assert len(tunings) == 1


def test_warmup_with_values_uses_and_keeps_them(tunings):
    fun = tuned("inline", advance, donate_argnums=0)
    state = make_state()
    record = fun.warmup(state, XS)
    assert record.notes == ()
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(state))
    assert_same(jax.jit(advance)(make_state(), XS), fun(state, XS))
    assert len(tunings) == 1


def test_warmup_after_a_call_as_written_takes_effect(tunings, monkeypatch):
    monkeypatch.setenv("AUTOLOOP_MODE", "cached")
    fun = tuned("inline")
    fun(XS)
    assert scans(fun, XS) == 1
    monkeypatch.delenv("AUTOLOOP_MODE")
    assert fun.warmup(XS).winner == "0=inline"
    assert_same(jax.jit(total)(XS), fun(XS))
    assert scans(fun, XS) == 0
    assert len(tunings) == 1


@pytest.mark.parametrize("mode", ["off", "cached"])
def test_warmup_where_tuning_is_forbidden_says_so(mode, tunings):
    fun = tuned("inline")
    with (
        package.settings(mode=mode),
        pytest.raises(RuntimeError, match=f"total was not tuned: mode is '{mode}'"),
    ):
        fun.warmup(XS)
    assert tunings == []


def test_warmup_from_a_weak_spec():
    fun = tuned("inline")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AutoloopWarning)
        record = fun.warmup(XS, jax.ShapeDtypeStruct((), jnp.float32, weak_type=True))
    assert record.winner == "0=inline"


@winners("inline", "python")
def test_forget_drops_one_signature_from_memory_and_store(form, tunings):
    fun, other = tuned(form), ramp(4, 2)
    fun(XS)
    fun(other)
    fun.forget(XS)
    assert fun.plan(XS) is None
    assert fun.plan(other) is not None
    assert tuned(form).plan(XS) is None
    assert tuned(form).plan(other) is not None
    fun(other)
    assert len(tunings) == 2
    assert_same(jax.jit(total)(XS), fun(XS))
    assert len(tunings) == 3


def test_forget_takes_specs(tunings):
    fun = tuned("inline")
    fun(XS)
    fun.forget(jax.ShapeDtypeStruct(XS.shape, XS.dtype))
    assert fun.plan(XS) is None


def test_forget_without_arguments_drops_the_whole_function_and_no_other(tunings):
    fun, other = tuned("inline"), tuned("inline", nested)
    w = ramp(2, 2)
    fun(XS)
    fun(ramp(4, 2))
    other(w, XS)
    fun.forget()
    assert fun.plan(XS) is None
    assert fun.plan(ramp(4, 2)) is None
    assert tuned("inline").plan(XS) is None
    assert tuned("inline", nested).plan(w, XS) is not None


# ------------------------------------------------ pinning


@pytest.mark.parametrize("name", [form.name for form in FORMS])
def test_using_runs_each_form(name, tunings):
    fun, w = autoloop(nested), ramp(2, 2)
    plans = [plan for plan in one_per_form(fun.plans(w, XS)) if plan.choices[0].form == name]
    assert plans or name not in ("unroll", "inline", "python", "eager")
    for plan in plans:
        for pinned in (fun.using(plan), fun.using(str(plan))):
            assert_same(jax.jit(nested)(w, XS), pinned(w, XS))
    assert tunings == []
    assert fun.plan(w, XS) is None


@pytest.mark.parametrize("plan", ["as-written", "0=python(1) 0/0=unroll(2)", "0=unroll(3) 0/0=inline"])
def test_using_composes_and_can_be_transformed(plan, tunings):
    fun, w = autoloop(nested).using(plan), ramp(2, 2)

    def loss(f):
        return lambda w: jnp.sum(f(w, XS)[0])

    for _ in range(2):
        assert_same(jax.jit(nested)(w, XS), fun(w, XS))
    assert_same(jax.jit(nested)(w, XS), jax.jit(fun)(w, XS))
    assert_same(jax.grad(loss(nested))(w), jax.grad(loss(fun))(w))
    assert_same(jax.vmap(nested, (0, None))(w[None], XS), jax.vmap(fun, (0, None))(w[None], XS))
    assert tunings == []


def test_using_binds_donates_and_takes_statics():
    class Held:
        run = autoloop(lambda self, xs: total(xs), static_argnums=0).using("0=eager")

    assert_same(jax.jit(total)(XS), Held().run(XS))
    state = make_state()
    pinned = autoloop(advance, donate_argnums=0).using("0=python(1)")
    assert_same(jax.jit(advance)(make_state(), XS), pinned(state, XS))
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state))
    pinned = autoloop(with_static, static_argnames="power").using("0=inline")
    for power in (1, 2):
        assert_same(jax.jit(with_static, static_argnames="power")(XS, power=power), pinned(XS, power=power))


BAD_PLANS = [
    (5, TypeError, ["5", "a plan is a Plan or its text", "0/0=unroll(8)"]),
    ("0=unroll(0)", ValueError, ["0=unroll(0)", "at least 1", "got 0"]),
    ("0=python(0)", ValueError, ["0=python(0)", "at least 1", "got 0"]),
    ("0=foo", ValueError, ["0=foo", "'foo'", *ALL_FORMS]),
    ("0=unroll", ValueError, ["0=unroll", "unroll(NUMBER)"]),
    ("0=inline(3)", ValueError, ["0=inline(3)", "0=inline"]),
    ("unroll(8)", ValueError, ["unroll(8)", "PATH=FORM"]),
    ("0=unroll(-1)", ValueError, ["0=unroll(-1)", "at least 1", "got -1"]),
    ("", ValueError, ["write 'as-written'"]),
    ("0=inline 0=eager", ValueError, ["0=inline 0=eager", "once"]),
]

UNFIT_PLANS = [
    ("7=inline", ["7=inline", "no loop 7", "0, 0/0"]),
    ("0/0/0=inline", ["0/0/0=inline", "no loop 0/0/0", "0, 0/0"]),
    ("0=unroll(100)", ["0=unroll(100)", "3", "100"]),
    ("0=python(100)", ["0=python(100)", "1 to", "100"]),
    ("0/0=python(1)", ["0/0=python(1)", "Python loop around it", "as written"]),
]


@pytest.mark.parametrize(("plan", "error", "parts"), BAD_PLANS)
def test_a_bad_plan_is_an_error_when_it_is_named(plan, error, parts):
    with pytest.raises(error) as caught:
        autoloop(nested).using(plan)
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize(("plan", "parts"), UNFIT_PLANS)
def test_a_plan_that_does_not_fit_is_an_error_when_it_is_called(plan, parts):
    pinned = autoloop(nested).using(plan)
    with pytest.raises(ValueError, match="=") as caught:
        pinned(ramp(2, 2), XS)
    for part in parts:
        assert part in str(caught.value)


# ------------------------------------------------ forms that go wrong


@pytest.fixture
def broken_inline(monkeypatch):
    """Makes `inline` run `emit` instead."""
    form = ALL_FORMS["inline"]
    real = type(form).emit

    def use(emit):
        monkeypatch.setattr(type(form), "emit", lambda self, *args: emit(lambda: real(self, *args)))

    return use


def refuse(emit):
    raise NotImplementedError("not on this device")


BROKEN = {
    "raises": (refuse, Status.FAILED, "NotImplementedError: not on this device"),
    "is wrong": (lambda emit: [out + 1 for out in emit()], Status.WRONG, "is off by"),
    "has a NaN": (lambda emit: [out * jnp.nan for out in emit()], Status.WRONG, "NaN in other places"),
}


@pytest.mark.parametrize(("emit", "status", "reason"), [pytest.param(*b, id=name) for name, b in BROKEN.items()])
def test_a_form_that_goes_wrong_is_recorded_and_never_wins(emit, status, reason, broken_inline, tunings):
    broken_inline(emit)
    fun = tuned("inline")
    for _ in range(2):
        assert_same(jax.jit(total)(XS), fun(XS))
    record = fun.report(XS)
    assert record.winner == "as-written"
    assert record.trial("0=inline").status is status
    assert reason in record.trial("0=inline").reason
    assert len(tunings) == 1


def test_a_slightly_wrong_form_is_taken_within_the_tolerance(broken_inline):
    broken_inline(lambda emit: [out * (1 + 1e-3) for out in emit()])
    assert str(tuned("inline", rtol=1e-2).warmup(XS).winner) == "0=inline"
    tuned("inline").forget()
    assert tuned("inline", rtol=1e-4).warmup(XS).trial("0=inline").status is Status.WRONG
    tuned("inline").forget()
    assert tuned("inline", bitwise=True).warmup(XS).trial("0=inline").status is Status.WRONG


def test_a_form_that_needs_too_much_memory_is_skipped():
    record = tuned("inline", max_memory_bytes=1).warmup(XS)
    assert record.winner == "as-written"
    assert record.trial("0=inline").status is Status.SKIPPED
    assert "memory" in record.trial("0=inline").reason
