"""What makes two calls the same: statics and keys as `jax.jit` sees them, and the named parts on disk."""

import contextlib
import functools
import json
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding

from autoloop import _jaxpr, _signature
from autoloop._signature import Statics, call_key

# Arguments that can be static (hashable) or not, and that a tree tells from each other.
A, B, C = (1.0,), (1.0, 1.0), (1.0, 1.0, 1.0)


def key_of(*args, static=(), **kwargs):
    leaves, tree = jax.tree.flatten((args, kwargs))
    return call_key(tree, leaves, static)


def traced(fun, *args):
    return _jaxpr.trace(jax.jit(fun), args, {})


def program_part(fun, *args):
    return _signature.program_part(traced(fun, *args).jaxpr)


# ------------------------------------------------ statics


def plain(a, b=B, *, c=C):
    return 0.0


def positional_only(a, /, b, c=C):
    return 0.0


def open_ended(a, *rest, c=C, **more):
    return 0.0


class Holder:
    def method(self, a, b=B):
        return 0.0


NUMS, NAMES = "static_argnums", "static_argnames"

STATICS = [
    (plain, (A, B), {}, {}),
    (plain, (A, B), {"c": C}, {NUMS: ()}),
    (plain, (A, B), {"c": C}, {NAMES: ()}),
    (plain, (A, B), {}, {NUMS: 0}),
    (plain, (A, B), {}, {NUMS: 1}),
    (plain, (A,), {"b": B}, {NUMS: 1}),
    (plain, (A,), {}, {NUMS: 1}),
    (plain, (A, B), {}, {NUMS: (1, 0)}),
    (plain, (), {"b": B, "a": A}, {NUMS: 0}),
    (plain, (A, B), {}, {NUMS: -1}),
    (plain, (A, B), {}, {NUMS: -2}),
    (plain, (A, B), {}, {NUMS: [0, -1]}),
    (plain, (A, B), {}, {NAMES: "b"}),
    (plain, (A,), {"b": B, "c": C}, {NAMES: "b"}),
    (plain, (A,), {}, {NAMES: ["b", "c"]}),
    (plain, (A, B), {"c": C}, {NAMES: ("c", "b")}),
    (plain, (), {"b": B, "a": A}, {NAMES: "b"}),
    (plain, (A, B), {"c": C}, {NUMS: 1, NAMES: "c"}),
    (plain, (A,), {"b": B, "c": C}, {NUMS: 1, NAMES: "c"}),
    (plain, (A,), {"b": B}, {NUMS: (), NAMES: ["b"]}),
    (positional_only, (A, B, C), {}, {NUMS: 2}),
    (positional_only, (A, B, C), {}, {NUMS: (0, 1)}),
    (open_ended, (A, B, C), {"c": C, "d": A}, {NUMS: 2}),
    (open_ended, (A,), {"c": C, "d": A}, {NUMS: 1}),
    (open_ended, (A, B, C), {"c": B, "d": A}, {NAMES: "d"}),
    (open_ended, (A, B, C), {"c": B, "d": A}, {NAMES: "c"}),
    (functools.partial(plain, A), (B,), {}, {NUMS: 0}),
    (functools.partial(plain, A), (), {"b": B}, {NUMS: 0}),
    (functools.partial(plain, A), (), {"b": B, "c": C}, {NAMES: "c"}),
    (Holder().method, (A, B), {}, {NUMS: 1}),
    (Holder().method, (A,), {"b": B}, {NAMES: "b"}),
]

NOT_AS_JIT = [
    (positional_only, (A, B, C), {}, {NAMES: "c"}),
    (positional_only, (A, B), {"c": C}, {NUMS: 2}),
    (positional_only, (A, B), {"c": C}, {NUMS: 1}),
    (positional_only, (A,), {"b": B, "c": C}, {NUMS: 0}),
    (positional_only, (A,), {"b": B, "c": C}, {NAMES: ["b", "c"]}),
    (plain, (A, B), {}, {NUMS: (), NAMES: ["b"]}),
    pytest.param(
        *(plain, (A,), {"b": B}, {NUMS: -1}),
        marks=pytest.mark.xfail(
            jax.__version_info__ >= (0, 12),
            strict=True,
            reason="_signature.py: Statics.split: from jax 0.12 -1 is the last parameter, before it was the last "
            "of the arguments given by position",
        ),
    ),
]


def check_split(fun, args, kwargs, options):
    statics = Statics(fun, options.get(NUMS), options.get(NAMES))
    static, dynamic = statics.split(args, kwargs)
    assert jax.tree.structure(dynamic) == jax.jit(fun, **options).trace(*args, **kwargs).in_tree
    assert statics.join(static, dynamic) == (args, kwargs)
    hash(static)


@pytest.mark.parametrize(("fun", "args", "kwargs", "options"), STATICS)
def test_statics_are_those_of_jit(fun, args, kwargs, options):
    check_split(fun, args, kwargs, options)


@pytest.mark.parametrize(("fun", "args", "kwargs", "options"), NOT_AS_JIT)
def test_statics_are_those_of_jit_in_corners(fun, args, kwargs, options):
    check_split(fun, args, kwargs, options)


def test_statics_of_a_callable_without_a_signature_go_by_what_is_given():
    # No signature, so names and numbers say nothing about each other.
    statics = Statics(max, 1, None)
    assert statics.split((A, B), {"key": C}) == (((1, B),), ((A,), {"key": C}))
    assert Statics(max, None, "key").split((A, B), {"key": C}) == ((("key", C),), ((A, B), {}))


def test_static_values_stay_with_their_places():
    statics = Statics(plain, (0, 1), None)
    assert statics.split((A, B), {})[0] != statics.split((B, A), {})[0]
    assert statics.split((A,), {"b": B})[0] == ((0, A), ("b", B))


def test_split_leaves_the_callers_arguments_alone():
    kwargs = {"b": B, "c": C}
    _, (_, dynamic) = Statics(plain, None, "b").split((A,), kwargs)
    dynamic["new"] = 1
    assert kwargs == {"b": B, "c": C}


# ------------------------------------------------ the call key


VALUES = {
    "int": lambda: 1,
    "float": lambda: 1.5,
    "bool": lambda: True,
    "complex": lambda: 1j,
    "numpy float32": lambda: np.float32(1),
    "numpy float64": lambda: np.float64(1),
    "numpy int64": lambda: np.int64(1),
    "numpy bool": lambda: np.bool_(True),
    "numpy complex128": lambda: np.complex128(1),
    "numpy floats": lambda: np.ones(3),
    "numpy ints": lambda: np.arange(3),
    "numpy bytes": lambda: np.arange(3, dtype=np.uint8),
    "numpy halves": lambda: np.ones(2, np.float16),
    "array": lambda: jnp.ones((2, 3)),
    "weak array": lambda: jnp.sin(1.0),
    "bfloat16": lambda: jnp.ones(2, jnp.bfloat16),
    "float8": lambda: jnp.ones(2, jnp.float8_e4m3fn),
    "key": lambda: jax.random.key(0),
    "keys": lambda: jax.random.split(jax.random.key(0, impl="rbg"), 3),
    "raw key": lambda: jax.random.PRNGKey(0),
    "empty": lambda: jnp.zeros((0, 2)),
    "tree": lambda: {"b": (jnp.ones(2), None), "a": [1, 2.0]},
    "none": lambda: None,
}


def traced_keys(value):
    """The key of a call with `value` as seen inside each transformation."""
    found = []

    def see():  # a fresh function each time: jax shares traces of one function between transformations
        return lambda x: found.append(key_of(x)) or 0.0

    jax.jit(see())(value)
    jax.eval_shape(see(), value)
    jax.vmap(see(), in_axes=None, axis_size=2)(value)
    jax.vmap(jax.jit(see()), in_axes=None, axis_size=2)(value)
    return found


@pytest.mark.parametrize("x64", [False, True], ids=["x32", "x64"])
@pytest.mark.parametrize("make", [pytest.param(make, id=name) for name, make in VALUES.items()])
def test_tracers_and_values_have_the_same_key(make, x64):
    with jax.enable_x64(x64):
        value = make()
        keys = [key_of(value), *traced_keys(value)]
        assert len(keys) == 5
        assert len(set(keys)) == 1, keys


def test_values_do_not_count_but_their_types_do():
    keys = {name: key_of(make()) for name, make in VALUES.items()}
    alike = [
        {"float", "weak array"},
        {"numpy float32", "numpy float64"},  # without x64 both are float32
        {"bool", "numpy bool"},
    ]
    for name, key in keys.items():
        same = next((group for group in alike if name in group), {name})
        assert {other for other in keys if keys[other] == key} == same
    assert key_of(jnp.ones(3)) == key_of(jnp.zeros(3))
    assert key_of(1.0) == key_of(2.0)


DIFFERENT = {
    "shape": (lambda: key_of(jnp.ones(3)), lambda: key_of(jnp.ones(4))),
    "rank": (lambda: key_of(jnp.ones(3)), lambda: key_of(jnp.ones((3, 1)))),
    "dtype": (lambda: key_of(jnp.ones(3)), lambda: key_of(jnp.ones(3, jnp.int32))),
    "weak type": (lambda: key_of(1.0), lambda: key_of(jnp.float32(1))),
    "a static value": (lambda: key_of(1.0, static=((0, 1),)), lambda: key_of(1.0, static=((0, 2),))),
    "a static place": (lambda: key_of(1.0, static=((0, 1),)), lambda: key_of(1.0, static=((1, 1),))),
    "a keyword": (lambda: key_of(1.0, 2.0), lambda: key_of(1.0, b=2.0)),
    "None": (lambda: key_of(1.0), lambda: key_of(1.0, None)),
    "a list or a tuple": (lambda: key_of([1.0]), lambda: key_of((1.0,))),
    "a name in a dict": (lambda: key_of({"a": 1.0}), lambda: key_of({"b": 1.0})),
    "a key's implementation": (
        lambda: key_of(jax.random.key(0)),
        lambda: key_of(jax.random.key(0, impl="rbg")),
    ),
    "typed and raw": (lambda: key_of(jax.random.key(0)), lambda: key_of(jax.random.PRNGKey(0))),
}


@pytest.mark.parametrize(("one", "other"), [pytest.param(*pair, id=name) for name, pair in DIFFERENT.items()])
def test_calls_that_jit_traces_anew_have_keys_of_their_own(one, other):
    assert one() == one()
    assert hash(one()) == hash(one())
    assert one() != other()


@pytest.mark.parametrize(("one", "other"), [(1, True), (1, 1.0), (0, False)])
def test_static_values_that_are_equal_but_of_another_type_differ(one, other):
    # jit traces anew here: the function may return another dtype for each.
    assert key_of(A, static=((0, one),)) != key_of(A, static=((0, other),))


CONTEXTS = {
    "x64": lambda: jax.enable_x64(True),
    "matmul precision": lambda: jax.default_matmul_precision("float32"),
    "dtype promotion": lambda: jax.numpy_dtype_promotion("strict"),
    "rank promotion": lambda: jax.numpy_rank_promotion("raise"),
    "prng": lambda: jax.default_prng_impl("rbg"),
    "threefry": lambda: jax.threefry_partitionable(not jax.config.jax_threefry_partitionable),
    "debug nans": lambda: jax.debug_nans(True),
    "debug infs": lambda: jax.debug_infs(True),
    "disable jit": lambda: jax.disable_jit(True),
    "default device": lambda: jax.default_device(jax.devices()[0]),
}


@pytest.mark.parametrize("context", [pytest.param(c, id=name) for name, c in CONTEXTS.items()])
def test_settings_of_jax_that_change_the_program_are_part_of_the_key(context):
    ints = jnp.arange(3)
    outside = key_of(ints)
    with context():
        assert key_of(ints) != outside
        inside = key_of(ints)
    assert key_of(ints) == outside
    with context():
        assert key_of(ints) == inside


def test_a_static_value_must_be_hashable():
    with pytest.raises(TypeError, match="unhashable"):
        key_of(1.0, static=((0, [1]),))


# ------------------------------------------------ placement


def test_data_where_jax_would_put_it_is_not_placed():
    device = jax.devices()[0]
    leaves = [
        np.ones(3),
        1.0,
        jnp.ones(3),
        jax.device_put(np.ones(3), device),
        jax.ShapeDtypeStruct((3,), jnp.float32),
        jax.ShapeDtypeStruct((3,), jnp.float32, sharding=SingleDeviceSharding(device)),
    ]
    assert _signature.placement(leaves) == (None,) * len(leaves)
    assert _signature.device_of(_signature.placement(leaves)) == (device, 1)
    assert _signature.sharding_part(_signature.placement(leaves)) == ""


def test_tracers_are_not_placed():
    found = []
    jax.jit(lambda x: found.append(_signature.placement([x])) or x)(1.0)
    assert found == [(None,)]


def test_the_default_device_may_be_named_by_its_platform():
    first = jax.devices()[0]
    assert _signature.default_device() == first
    with jax.default_device(first):
        assert _signature.default_device() == first
    with jax.default_device("cpu"):
        assert _signature.default_device() == jax.devices("cpu")[0]


TWO_DEVICES = """
import jax, json, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from autoloop._signature import device_of, placement, sharding_part

first, second = jax.devices()
mesh = Mesh(np.array([first, second]), "x")
places = {
    "first": jax.device_put(np.ones(4), first),
    "second": jax.device_put(np.ones(4), second),
    "split": jax.device_put(np.ones(4), NamedSharding(mesh, P("x"))),
    "copied": jax.device_put(np.ones(4), NamedSharding(mesh, P())),
    "spec": jax.ShapeDtypeStruct((4,), np.float32, sharding=NamedSharding(mesh, P("x"))),
}
found = {name: placement([np.ones(2), leaf]) for name, leaf in places.items()}
with jax.default_device(second):
    swapped = {name: placement([leaf]) == (None,) for name, leaf in places.items()}
print(json.dumps({
    "parts": {name: sharding_part(place) for name, place in found.items()},
    "devices": {name: [device_of(place)[0].id, device_of(place)[1]] for name, place in found.items()},
    "swapped": swapped,
    "same": found["split"] == found["spec"],
}))
"""


@pytest.fixture(scope="module")
def two_devices(module_python):
    return json.loads(module_python(TWO_DEVICES, XLA_FLAGS="--xla_force_host_platform_device_count=2"))


def test_each_placement_has_a_sharding_part_of_its_own(two_devices):
    parts = two_devices["parts"]
    assert parts.pop("first") == ""
    assert parts["split"] == parts.pop("spec")
    assert len(set(parts.values())) == 3
    assert all(part.startswith("-; ") for part in parts.values())
    assert two_devices["same"]


def test_the_device_is_where_the_data_is(two_devices):
    assert two_devices["devices"] == {
        "first": [0, 1],
        "second": [1, 1],
        "split": [0, 2],
        "copied": [0, 2],
        "spec": [0, 2],
    }


def test_the_default_device_decides_what_counts_as_placed(two_devices):
    assert [name for name, plain in two_devices["swapped"].items() if plain] == ["second"]


# ------------------------------------------------ the program


def decay(rate, length=4, dtype=jnp.float32, start=0.0):
    def fun(xs):
        step = lambda c, x: (c * jnp.asarray(rate, dtype) + x, c)  # a fresh function each time
        return lax.scan(step, jnp.asarray(start, dtype), xs[:length].astype(dtype))

    return fun


XS = np.linspace(0, 1, 8, dtype=np.float32)


def scaled_by(table):
    return lambda xs: lax.scan(lambda c, x: (c + x, c), 0.0, xs * table)


def renamed(xs):
    def some_other_name(state, element):
        new_state = state * jnp.asarray(0.5, jnp.float32) + element
        return new_state, state

    return lax.scan(some_other_name, jnp.asarray(0.0, jnp.float32), xs[:4].astype(jnp.float32))


SAME_PROGRAM = {
    "traced twice": (decay(0.5), decay(0.5)),
    "other names": (decay(0.5), renamed),
    "other constants": (scaled_by(np.ones(8, np.float32)), scaled_by(np.arange(8, dtype=np.float32))),
}

OTHER_PROGRAM = {
    "a literal": (decay(0.5), decay(0.25)),
    "a literal in its last digit": (decay(0.1), decay(0.10000001)),
    "another literal": (decay(0.5), decay(0.5, start=1.0)),
    "the length": (decay(0.5), decay(0.5, length=5)),
    "a dtype": (decay(0.5), decay(0.5, dtype=jnp.bfloat16)),
    "an equation": (decay(0.5), lambda xs: jax.tree.map(jnp.sin, decay(0.5)(xs))),
    "which output": (decay(0.5), lambda xs: decay(0.5)(xs)[::-1]),
    "which operand": (lambda xs: xs - 2 * xs, lambda xs: 2 * xs - xs),
    "a constant's dtype": (scaled_by(np.ones(8, np.float32)), scaled_by(np.ones(8, np.int32))),
    "a constant's shape": (scaled_by(np.ones(8, np.float32)), scaled_by(np.ones(1, np.float32))),
    "a parameter": (lambda xs: jnp.sum(xs.reshape(2, 4), 0), lambda xs: jnp.sum(xs.reshape(2, 4), 1)),
    "reverse": (
        lambda xs: lax.scan(lambda c, x: (c + x, c), 0.0, xs),
        lambda xs: lax.scan(lambda c, x: (c + x, c), 0.0, xs, reverse=True),
    ),
    "unroll": (
        lambda xs: lax.scan(lambda c, x: (c + x, c), 0.0, xs),
        lambda xs: lax.scan(lambda c, x: (c + x, c), 0.0, xs, unroll=2),
    ),
    "a branch": (
        lambda xs: lax.cond(xs[0] > 0, jnp.sin, jnp.cos, xs),
        lambda xs: lax.cond(xs[0] > 0, jnp.sin, jnp.tan, xs),
    ),
    "a condition": (
        lambda xs: lax.while_loop(lambda c: c[0] < 1, lambda c: c + 1, xs),
        lambda xs: lax.while_loop(lambda c: c[0] < 2, lambda c: c + 1, xs),
    ),
    "weak type": (lambda xs: 1.0, lambda xs: jnp.float32(1.0)),
}


@pytest.mark.parametrize(("one", "other"), [pytest.param(*pair, id=k) for k, pair in SAME_PROGRAM.items()])
def test_what_does_not_change_the_program_does_not_change_its_part(one, other):
    assert program_part(one, XS) == program_part(other, XS)


@pytest.mark.parametrize(("one", "other"), [pytest.param(*pair, id=k) for k, pair in OTHER_PROGRAM.items()])
def test_what_changes_the_program_changes_its_part(one, other):
    assert program_part(one, XS) == program_part(one, XS)
    assert program_part(one, XS) != program_part(other, XS)


@pytest.mark.parametrize("fun", [decay(0.123456), decay(1e-7)])
def test_how_numpy_prints_does_not_change_the_part(fun):
    before = program_part(fun, XS)
    with np.printoptions(precision=2, suppress=True):
        assert program_part(fun, XS) == before


#: Programs whose parameters hold sets, functions, objects with addresses, rules and meshes.
PROGRAMS = """
import dataclasses, functools, json
import jax, jax.numpy as jnp, numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from autoloop import _jaxpr, _signature

x, key = np.linspace(0, 1, 8, dtype=np.float32), jax.random.key(0)
mesh = Mesh(np.array(jax.devices()[:1]), "x")

@jax.custom_vjp
def square(x):
    return x * x

square.defvjp(lambda x: (x * x, x), lambda x, g: (2 * x * g,))

class Config:
    pass

def loop(step):
    return lambda x: lax.scan(step, x[0], x)

programs = {
    "scan": loop(lambda c, x: (jnp.tanh(c * 0.3 + x), c)),
    "custom jvp": loop(lambda c, x: (jax.nn.relu(c + x), jax.nn.silu(c))),
    "custom vjp": loop(lambda c, x: (square(c) + x, c)),
    "gradient": jax.grad(lambda x: jax.checkpoint(lambda y: loop(lambda c, x: (square(c) + x, c))(y)[0])(x)),
    "policy": jax.checkpoint(lambda x: jnp.dot(x, x), policy=jax.checkpoint_policies.dots_saveable),
    "cond": lambda x: lax.cond(x[0] > 0, jnp.sin, lambda y: loop(lambda c, x: (c * x, c))(y)[1], x),
    "while": lambda x: lax.while_loop(lambda c: c[0] < 3, lambda c: c + 1, x),
    "random": lambda x: x + jax.random.normal(key, (8,)) * jax.random.uniform(jax.random.PRNGKey(1), (8,)),
    "convolution": lambda x: lax.conv(x.reshape(1, 1, 8), np.ones((1, 1, 3), np.float32), (1,), "SAME"),
    "einsum": lambda x: jnp.einsum("ij,jk->ik", x.reshape(2, 4), x.reshape(4, 2)),
    "sort": lambda x: (jnp.sort(x), jnp.argsort(x), x.at[3].add(2.0), x[jnp.array([1, 2])]),
    "callback": lambda x: jax.pure_callback(lambda v: v, jax.ShapeDtypeStruct((8,), np.float32), x),
    "print": lambda x: jax.debug.print("{}", x),
    "sharding": lambda x: lax.with_sharding_constraint(x, NamedSharding(mesh, PartitionSpec("x"))),
    "inner jit": lambda x: jax.jit(jnp.cumsum)(x) + jax.jit(lambda y: y * 2, inline=False)(x),
    "linear solve": lambda x: jnp.linalg.solve(jnp.eye(8) + jnp.outer(x, x), x),
}
statics = [
    frozenset("abcdefgh"), ("a", (1, 2.5)), Config(), np.sin, functools.partial(np.add, 1), jnp.float32,
    np.dtype("int8"), None,
]

found = {}
for name, fun in programs.items():
    traced = _jaxpr.trace(jax.jit(fun), (x,), {})
    call = _signature.call_key(traced.in_tree, [x], tuple(enumerate(statics)))
    found[name] = _signature.parts(traced, call, _signature.placement([x]), "call")
"""


def test_parts_are_the_same_in_every_process(python):
    here = {"__name__": "__main__"}
    exec(PROGRAMS, here)
    found = [python(PROGRAMS + "print(json.dumps(found))", PYTHONHASHSEED=str(seed)) for seed in (1, 2)]
    assert json.loads(found[0]) == here["found"]
    assert found[0] == found[1]
    assert len({parts["program"] for parts in here["found"].values()}) == len(here["found"])


# ------------------------------------------------ the other parts


def parts_of(fun, *args, static=(), context="call"):
    places = _signature.placement(jax.tree.leaves(args))
    return _signature.parts(traced(fun, *args), key_of(*args, static=static), places, context)


PARTS = {
    "program",
    "skeleton",
    "arguments",
    "statics",
    "sharding",
    "device",
    "host",
    "versions",
    "flags",
    "schema",
    "context",
}


def test_parts_are_short_texts():
    parts = parts_of(decay(0.5), XS, static=((1, "text"),))
    assert set(parts) == PARTS
    assert all(isinstance(text, str) and "\n" not in text for text in parts.values())
    assert parts["arguments"] == "f32[8]"
    assert parts["statics"] == "1='text'"
    assert parts["device"] == f"{jax.devices()[0].platform} {jax.devices()[0].device_kind} x1"
    assert parts["versions"] == f"jax {jax.__version__}, jaxlib {jax.lib.__version__}"
    assert len(_signature.digest(parts)) == 64


@pytest.mark.parametrize("name", sorted(PARTS))
def test_the_digest_tells_every_part(name):
    parts = parts_of(decay(0.5), XS)
    assert _signature.digest({**parts, name: "other"}) != _signature.digest(parts)
    assert _signature.digest(dict(reversed(parts.items()))) == _signature.digest(parts)


TEXTS = {
    "f32[8]": lambda: np.ones(8, np.float32),
    "f32[]*": lambda: 1.0,
    "i32[]*": lambda: 1,
    "bool[]": lambda: True,
    "c64[]*": lambda: 1j,
    "bf16[2,0]": lambda: jnp.ones((2, 0), jnp.bfloat16),
    "f8_e4m3fn[2]": lambda: jnp.ones(2, jnp.float8_e4m3fn),
    "u8[3]": lambda: np.ones(3, np.uint8),
    "key<fry>[]": lambda: jax.random.key(0),
    "u32[2]": lambda: jax.random.PRNGKey(0),
    "i32[1] f32[2]": lambda: {"b": np.ones(2, np.float32), "a": np.ones(1, np.int32)},
    "": lambda: None,
}


@pytest.mark.parametrize(("text", "make"), TEXTS.items())
def test_arguments_read_as_jax_writes_them(text, make):
    assert _signature.arguments_part(key_of(make())) == text


def test_xla_flags_count_in_any_order(monkeypatch):
    key = key_of(1.0)

    def part(flags):
        monkeypatch.setenv("XLA_FLAGS", flags)
        return _signature.flags_part(key)

    assert part("--a=1 --b=2") == part(" --b=2   --a=1 ")
    assert part("--a=1") != part("--a=2")
    assert part("--a=1") != part("")


@pytest.mark.parametrize("context", [pytest.param(c, id=name) for name, c in CONTEXTS.items()])
def test_settings_of_jax_are_flags(context):
    ints = jnp.arange(3)
    outside = _signature.flags_part(key_of(ints))
    with context():
        assert _signature.flags_part(key_of(ints)) != outside


class _Device:
    """A device of another kind."""

    platform, device_kind = "gpu", "H200"
    client = SimpleNamespace(platform_version="cuda 12090")


def test_the_device_and_the_versions_are_parts(monkeypatch):
    before = parts_of(decay(0.5), XS)
    monkeypatch.setattr(jax, "__version__", "0.0.1")
    monkeypatch.setattr(_signature, "version", lambda package: "0.0.2")
    monkeypatch.setattr(_signature, "device_of", lambda places: (_Device(), 4))
    after = parts_of(decay(0.5), XS)
    assert after["versions"] == "jax 0.0.1, jaxlib 0.0.2, driver cuda 12090"
    assert after["device"] == "gpu H200 x4"
    assert {name for name in PARTS if before[name] != after[name]} == {"versions", "device"}


def test_the_host_is_a_part_even_where_proc_is_missing(monkeypatch, tmp_path):
    host = _signature.host_part()
    assert host.endswith(f"{_signature._usable_cores()} cores")
    monkeypatch.setattr(_signature, "Path", lambda name: tmp_path / "missing")
    assert _signature._cpu_model()


def test_sharding_reads_as_jax_writes_it():
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), "x")
    part = _signature.sharding_part([None, NamedSharding(mesh, PartitionSpec("x"))])
    assert part.startswith("-; NamedSharding(")
    assert "'x'" in part
    assert part != _signature.sharding_part([None, NamedSharding(mesh, PartitionSpec())])


@pytest.mark.parametrize("name", sorted(PARTS))
def test_every_part_is_logged_at_debug_level(name, caplog):
    with caplog.at_level("DEBUG", logger="autoloop"):
        parts = parts_of(decay(0.5), XS)
    assert f"signature {name}: {parts[name]}" in caplog.messages


def test_contexts_nest():
    # The helper tables above enter contexts one by one; together they must not shadow each other.
    with contextlib.ExitStack() as stack:
        keys = [key_of(jnp.arange(3))]
        for name in ("matmul precision", "debug nans", "prng"):
            stack.enter_context(CONTEXTS[name]())
            keys.append(key_of(jnp.arange(3)))
    assert len(set(keys)) == 4
