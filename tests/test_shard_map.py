"""Inside and around `shard_map`, and under `vmap` with a named axis: right results, no tuning in a trace."""

import json

import jax
import pytest
from helpers import assert_same, ramp
from jax import lax

from autoloop import autoloop

SCRIPT = """
import json
import fakes, jax, jax.numpy as jnp, numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P
from autoloop import _plans, autoloop

fakes.make_quick()
tunings = fakes.count_tunings()
mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
xs = np.linspace(0, 1, 24, dtype=np.float32).reshape(3, 8)
found = {}

def alone(xs):
    return lax.scan(lambda c, x: (c * 0.5 + x, c.sum()), xs[0] * 0, xs)

def talking(xs):
    return lax.scan(lambda c, x: (c * 0.5 + x + lax.psum(x, "x"), c.sum()), xs[0] * 0, xs)

def spread(fun, **options):
    inner = lambda xs: (fun(xs)[0], fun(xs)[1][:, None])
    return jax.shard_map(inner, mesh=mesh, in_specs=P(None, "x"), out_specs=(P("x"), P(None, "x")), **options)

def same(wanted, got):
    for a, b in zip(jax.tree.leaves(wanted), jax.tree.leaves(got), strict=True):
        np.testing.assert_allclose(np.asarray(b), np.asarray(a), rtol=1e-5)
        assert a.sharding.is_equivalent_to(b.sharding, a.ndim)

for program in (alone, talking):
    for options in ({}, {"check_vma": False}):
        wanted, fun = jax.jit(spread(program, **options))(xs), autoloop(program, forms=["inline"])
        same(wanted, spread(fun, **options)(xs))
        same(wanted, jax.jit(spread(fun, **options))(xs))
        grads = [jax.jit(jax.grad(lambda xs: spread(f, **options)(xs)[0].sum()))(xs) for f in (program, fun)]
        np.testing.assert_allclose(np.asarray(grads[1]), np.asarray(grads[0]), rtol=1e-5)
found["inside"] = len(tunings)

# A plan remembered for the local shape is used inside, over varying values too.
fun = autoloop(alone, forms=["inline"])
fun.warmup(jax.ShapeDtypeStruct((3, 2), jnp.float32))
for options in ({}, {"check_vma": False}):
    same(jax.jit(spread(alone, **options))(xs), jax.jit(spread(fun, **options))(xs))
    found[f"scans {len(options)}"] = str(jax.make_jaxpr(spread(fun, **options))(xs)).count("scan[")
for plan in ("0=inline", "0=unroll(2)", "0=associative", "0=distribute(all)"):
    same(jax.jit(spread(alone))(xs), jax.jit(spread(fun.using(plan)))(xs))

# A form that does not know of varying values gives way to the function as written.
def emit(self, site, parameter, values):
    raise TypeError("carry input and carry output must have equal types")
form = type(_plans.ALL_FORMS["inline"])
was, form.emit = form.emit, emit
jax.clear_caches()
other = autoloop(alone, forms=["inline"])
same(jax.jit(spread(alone))(xs), jax.jit(spread(other))(xs))
found["gave way"] = str(jax.make_jaxpr(spread(other))(xs)).count("scan[")
form.emit = was

# Around it: the loops inside belong to shard_map and stay; a loop around it is tuned.
before = len(tunings)
around = autoloop(lambda xs: spread(talking)(xs), forms=["inline"])
for _ in range(2):
    same(jax.jit(spread(talking))(xs), around(xs))
found["around"] = [len(tunings) - before, around.report(xs).verdict]

def outer(xs):
    return lax.scan(lambda c, _: (spread(talking)(xs)[0] + c, c.sum()), jnp.zeros(8), None, length=3)

for form in ("inline", "python"):
    loop = autoloop(outer, forms=[form])
    for _ in range(2):
        same(jax.jit(outer)(xs), loop(xs))
    found[form] = str(loop.plan(xs))
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def on_a_mesh(module_python):
    return json.loads(module_python(SCRIPT, XLA_FLAGS="--xla_force_host_platform_device_count=4"))


def test_inside_shard_map_nothing_is_tuned(on_a_mesh):
    assert on_a_mesh["inside"] == 0


def test_inside_shard_map_a_remembered_plan_is_used(on_a_mesh):
    assert on_a_mesh["scans 0"] == on_a_mesh["scans 1"] == 0


def test_a_plan_that_does_not_run_inside_gives_way_to_the_function_as_written(on_a_mesh):
    assert on_a_mesh["gave way"] == 1


def test_loops_inside_a_shard_map_of_the_functions_own_stay(on_a_mesh):
    assert on_a_mesh["around"] == [0, "not tuned: there is no loop in the program"]


def test_a_loop_around_a_shard_map_is_tuned(on_a_mesh):
    assert on_a_mesh["inline"] == "0=inline"
    assert on_a_mesh["python"] == "0=python(1)"


# ------------------------------------------------ named axes


def collective(xs):
    def step(c, x):
        return c * 0.5 + x + lax.pmean(x, "batch"), c.sum() + lax.axis_index("batch")

    return lax.scan(step, xs[0] * 0, xs)


BATCH = ramp(4, 3, 2)


@pytest.mark.usefixtures("quick")
def test_under_vmap_with_a_named_axis_collectives_work(tunings):
    fun = autoloop(collective)
    wanted = jax.vmap(collective, axis_name="batch")(BATCH)
    assert_same(wanted, jax.vmap(fun, axis_name="batch")(BATCH))
    assert_same(wanted, jax.jit(jax.vmap(fun, axis_name="batch"))(BATCH))
    assert_same(wanted, jax.vmap(fun.using("0=unroll(2)"), axis_name="batch")(BATCH))
    assert tunings == []


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("form", ["inline", "python", "eager"])
def test_collectives_of_a_vmap_inside_the_function_are_tuned_with_it(form, tunings):
    def whole(batch):
        return jax.vmap(collective, axis_name="batch")(batch)

    fun = autoloop(whole, forms=[form])
    for _ in range(2):
        assert_same(jax.jit(whole)(BATCH), fun(BATCH))
    assert str(fun.plan(BATCH)).startswith(f"0={form}")
    assert len(tunings) == 1


def test_an_axis_that_does_not_exist_is_the_error_of_jit():
    fun = autoloop(collective)
    with pytest.raises(NameError) as wanted:
        jax.jit(collective)(BATCH[0])
    with pytest.raises(NameError) as got:
        fun(BATCH[0])
    assert str(got.value) == str(wanted.value)
