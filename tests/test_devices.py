"""Data spread over a mesh of 8 devices, and two kinds of device: the same results in the same places."""

import json
from types import SimpleNamespace

import jax
import pytest
from helpers import ramp

from autoloop import _agree, _signature, autoloop
from autoloop._call import Call
from autoloop._program import Program

PROGRAMS = """
import json
import fakes, jax, jax.numpy as jnp, numpy as np
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from autoloop import _config, _decide, _stores, autoloop

def recurrent(h, w, xs):
    return lax.scan(lambda h, x: (jnp.tanh(h @ w) + x, h.sum(-1)), h, xs)

def nested(h, w, xs):
    inner = lambda h, x: lax.fori_loop(0, 3, lambda i, h: h * 0.5 + x, h)
    return lax.scan(lambda h, x: (inner(h, x), (h * 2, x)), h, xs)

def mapped(h, w, xs):
    return lax.map(lambda x: jnp.tanh(x) + h, xs)

def affine(h, w, xs):
    return lax.scan(lambda c, x: (c * 0.9 + x, c), h, xs)

held = jnp.arange(5.0, dtype=jnp.float32)

def constants(h, w, xs):
    start = jnp.zeros(3)
    return lax.fori_loop(0, 3, lambda i, c: c + held[i], start), lax.map(lambda x: x.sum(), xs), 2.5, held, start

def numbers(*shape):
    return np.linspace(0, 1, np.prod(shape), dtype=np.float32).reshape(shape)

values = numbers(8, 4), np.eye(4, dtype=np.float32), numbers(6, 8, 4)
"""

FORMS = """
found = {"plans": {}, "odd": []}
for kind in ("Auto", "Explicit", "One"):
    if kind == "One":
        args = jax.device_put(values, jax.devices()[3])
    else:
        mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=(getattr(AxisType, kind),) * 2)
        args = tuple(
            jax.device_put(value, NamedSharding(mesh, P(*spec)))
            for value, spec in zip(values, (("x",), (), (None, "x")), strict=True)
        )
    for program in (recurrent, nested, mapped, affine, constants):
        wanted, fun, seen = jax.jit(program)(*args), autoloop(program), {}
        for plan in fun.plans(*args):
            if len(plan.choices) == 1 and not plan.options:
                seen.setdefault((plan.choices[0].form, plan.choices[0].path), plan)
        for plan in [*seen.values(), *[p for p in fun.plans(*args) if len(p.choices) == 2][:2]]:
            got = fun.using(plan)(*args)
            for a, b in zip(jax.tree.leaves(wanted), jax.tree.leaves(got), strict=True):
                np.testing.assert_allclose(np.asarray(b), np.asarray(a), rtol=1e-4, atol=1e-5)
                if not a.sharding.is_equivalent_to(b.sharding, a.ndim) or jax.typeof(a) != jax.typeof(b):
                    found["odd"].append([kind, program.__name__, str(plan), str(b.sharding)])
                if a.committed != b.committed:
                    found["odd"].append([kind, program.__name__, str(plan), "committed", b.committed])
        found["plans"][f"{kind} {program.__name__}"] = sorted({form for form, _ in seen})
print(json.dumps(found))
"""

SIGNATURES = """
found = {"signatures": []}
fakes.make_quick()
tunings = fakes.count_tunings()
fun = autoloop(affine, forms=["inline"])
specs = [(("x",), (), (None, "x")), (("y",), (), (None, "y")), ((), (), ())]
for kind in ("Auto", "Explicit"):
    mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=(getattr(AxisType, kind),) * 2)
    for spec in specs:
        args = tuple(jax.device_put(v, NamedSharding(mesh, P(*s))) for v, s in zip(values, spec, strict=True))
        for _ in range(2):
            wanted, got = jax.jit(affine)(*args), fun(*args)
            for a, b in zip(jax.tree.leaves(wanted), jax.tree.leaves(got), strict=True):
                np.testing.assert_allclose(np.asarray(b), np.asarray(a), rtol=1e-4)
                assert a.sharding.is_equivalent_to(b.sharding, a.ndim)
                assert jax.typeof(a) == jax.typeof(b)
        found["signatures"].append(len(tunings))

# Here XLA places the outputs of the batched loop elsewhere than those of the loop.
mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
args = tuple(jax.device_put(v, NamedSharding(mesh, P(*s))) for v, s in zip(values, ((), (), ("y",)), strict=True))
odd = autoloop(mapped, forms=["vmap"])
wanted = jax.jit(mapped)(*args)
for _ in range(2):
    assert odd(*args).sharding.is_equivalent_to(wanted.sharding, 3)
found["elsewhere"] = [[t.plan, t.status, t.reason] for t in odd.report(*args).trials]
print(json.dumps(found))
"""

EIGHT = "--xla_force_host_platform_device_count=8"


@pytest.mark.slow
def test_every_form_leaves_outputs_where_they_are_as_written(python):
    found = json.loads(python(PROGRAMS + FORMS, XLA_FLAGS=EIGHT))
    assert found["odd"] == []
    for kind in ("Auto", "Explicit"):
        forms = {name: set(found["plans"][f"{kind} {name}"]) for name in ("recurrent", "mapped", "affine")}
        assert {"unroll", "inline", "python", "eager", "distribute"} <= forms["recurrent"]
        assert "vmap" in forms["mapped"]
        assert "associative" in forms["affine"]


@pytest.fixture(scope="module")
def on_a_mesh(module_python):
    return json.loads(module_python(PROGRAMS + SIGNATURES, XLA_FLAGS=EIGHT))


def test_each_sharding_is_tuned_once(on_a_mesh):
    assert on_a_mesh["signatures"] == [1, 2, 3, 4, 5, 6]


def test_a_form_that_moves_outputs_loses_and_says_so(on_a_mesh):
    (_, status, _), *others = on_a_mesh["elsewhere"]
    assert status == "ok"
    assert any(status == "wrong" and "output 0 is placed as" in reason for _, status, reason in others)


# ------------------------------------------------ kinds of device


def total(xs):
    return jax.lax.scan(lambda c, x: (c * 0.5 + x, c.sum()), xs[0], xs)


def device(kind):
    client = SimpleNamespace(platform_version="cuda 12090")
    return SimpleNamespace(platform="gpu", device_kind=kind, id=0, process_index=0, client=client)


def parts_on(kind, monkeypatch):
    fun = autoloop(total)
    call = Call.of(fun._function, (ramp(3, 2),), {})
    program = Program.trace(fun._function, call.key, call.args, call.kwargs)
    monkeypatch.setattr(_signature, "device_of", lambda places: (device(kind), 1))
    return _signature.parts(program.traced, call.key, call.places, "")


def test_two_kinds_of_device_never_share_a_record(monkeypatch):
    one, other = parts_on("H100", monkeypatch), parts_on("A100", monkeypatch)
    assert {n: (one[n], other[n]) for n in one if one[n] != other[n]} == {"device": ("gpu H100 x1", "gpu A100 x1")}
    assert _signature.digest(one) != _signature.digest(other)


KINDS = """
import json
import fakes, jax, jax.numpy as jnp, numpy as np
from jax import lax
from autoloop import _config, _decide, _stores, _signature, autoloop

fakes.make_quick()
tunings = fakes.count_tunings()
first, second = jax.devices()
real = _signature.parts
def parts(traced, key, places, context):
    found = real(traced, key, places, context)
    on_second = _signature.device_of(places)[0] == second
    return {**found, "device": "cpu fast x1" if on_second else "cpu slow x1"}
_signature.parts = parts

xs = np.linspace(0, 1, 6, dtype=np.float32).reshape(3, 2)
def total(xs):
    return lax.scan(lambda c, x: (c * 0.5 + x, c.sum()), jnp.zeros(xs.shape[1:]), xs)

fun, found = autoloop(total, forms=["inline"]), {}
def on(device, how):
    before = len(tunings)
    if how == "placed":
        result = fun(jax.device_put(xs, device))
    else:
        with jax.default_device(device):
            result = fun(jnp.asarray(xs))
    assert all(r.devices() == {device} for r in result)
    np.testing.assert_allclose(np.asarray(result[0]), np.asarray(jax.jit(total)(xs)[0]), rtol=1e-6)
    return len(tunings) - before

for how in ("placed", "default"):
    found[how] = [on(device, how) for device in (first, second, first, second)]
found["devices"] = sorted(r.key["device"] for _, r in _stores.store_of(_config.current()).items())
print(json.dumps(found))
"""


def test_the_plan_of_one_kind_of_device_never_serves_the_other(python):
    found = json.loads(python(KINDS, XLA_FLAGS="--xla_force_host_platform_device_count=2"))
    assert found["placed"] == [1, 1, 0, 0]
    # What is the default is one of jax's settings, and so part of the signature.
    assert found["default"] == [1, 1, 0, 0]
    assert found["devices"] == ["cpu fast x1"] * 2 + ["cpu slow x1"] * 2


# ------------------------------------------------ comparing places


class Sharding:
    def __init__(self, name):
        self.name = name

    def is_equivalent_to(self, other, ndim):
        return self.name == other.name

    def __str__(self):
        return self.name


@pytest.mark.parametrize(
    ("expected", "got", "reason"),
    [
        (["a", "b"], ["a", "b"], ""),
        (["a", "b"], ["a", "c"], "output 1 is placed as c, as written as b"),
        ([None], ["a"], ""),
    ],
)
def test_outputs_elsewhere_are_named(expected, got, reason):
    wanted = [name and Sharding(name) for name in expected]
    values = [SimpleNamespace(sharding=Sharding(name), ndim=1) for name in got]
    assert _agree.shardings_differ(wanted, values) == reason


PLACES = """
import jax, jax.numpy as jnp
from jax import lax
import autoloop

devices = jax.devices()
x, ks = jnp.float32(0), jnp.arange(5.0)
held, key = jax.device_put((jnp.float32(4), jax.random.key(1)), devices[2])

def closed_over(x, ks, unused):
    return lax.scan(lambda c, k: (c + k + held + jax.random.normal(key), None), x, ks)[0], held

def unread(x, ks, unused):
    return lax.scan(lambda c, k: (c + k, None), x, ks)[0], jnp.ones(3)

for fun in (closed_over, unread):
    for put in (lambda v: v, lambda v: jax.device_put(v, devices[3])):
        for args in ((x, ks, put(x)), (put(x), put(ks), put(x)), (put(x), ks, x)):
            want = jax.jit(fun)(*args)
            decorated = autoloop.autoloop(mode="cached")(fun)
            runs = [decorated.using("0=python(1)"), decorated.using("0=eager")]
            for run in (*runs, autoloop.autoloop(mode="cached", progress=True)(fun)):
                for a, b in zip(want, run(*args), strict=True):
                    assert jnp.allclose(a, b)
                    places = [(v.devices(), v.committed) for v in (a, b)]
                    assert places[0] == places[1], (fun.__name__, places)
print("{}")
"""


def test_python_loops_leave_outputs_where_jit_does_whatever_is_closed_over_or_not_read(python):
    assert json.loads(python(PLACES, XLA_FLAGS=EIGHT)) == {}
