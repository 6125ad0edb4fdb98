"""Programs whose outer loops run in Python: what they cost, compile, consume and keep."""

import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import FORMS_BY_NAME, PROGRAMS, assert_same, legal_plans, outline, ramp, split_by_host
from jax import lax

import autoloop
from autoloop import _host, _jaxpr, _outline, _parts
from autoloop._apply import Applied
from autoloop._plan import Plan

BY_NAME = {program.name: program for program in PROGRAMS}
PLANS = ("0=python(1)", "0=python(2)", "0=eager")


def built(fun, plan, *args):
    block, _ = outline(fun, *args)
    return Applied(Plan.parse(plan), FORMS_BY_NAME).build_block(block)


def prepared(run, *values):
    cost = _host.Cost()
    return run.prepare([_host.spec_of(value) for value in values], cost), cost


def kinds(values):
    return [(v.shape, v.dtype, v.weak_type) for v in map(jax.typeof, values)]


@pytest.fixture(scope="module")
def compiled_so_far():
    """Counts the programs that jax hands to XLA."""
    count = [0]

    def listen(event, duration, **_):
        count[0] += event == "/jax/core/compile/backend_compile_duration"

    jax.monitoring.register_event_duration_secs_listener(listen)  # jax 0.8 has no way back
    return lambda: count[0]


def decayed(w, c, xs):
    c, ys = lax.scan(lambda c, x: (jnp.tanh(c @ w) + x, c.sum()), c * 2, xs)
    return c + 1, ys


DECAYED = (ramp(3, 3), ramp(3), ramp(5, 3))


# ---------------------------------------------------------------- nothing of the user's is consumed


def shared(z, xs):
    (a, b), ys = lax.scan(lambda c, x: ((c[0] + x, c[1] * x), c[1]), (z, z), xs)
    return a, b, ys


def only_moved(z, xs):
    return lax.scan(lambda c, x: ((c[1], c[0]), None), (z, z), xs)[0]


def replaced(z, xs):
    return lax.scan(lambda c, x: ((z, x), None), (z, z), xs)[0]


def nested(z, xs):
    return lax.scan(lambda c, x: (lax.scan(lambda d, t: (d * x + t, None), c, c)[0], x), z, xs)


@pytest.mark.parametrize("fun", [shared, only_moved, replaced, nested])
@pytest.mark.parametrize("plan", PLANS)
def test_arguments_are_left_alone(fun, plan):
    z, xs = ramp(3), ramp(4, 3)
    expected = jax.jit(fun)(z, xs)
    run = built(fun, plan, z, xs)
    for _ in range(3):
        outs = run(z, xs)
        assert_same(jax.tree.leaves(expected), outs, plan)
    assert not z.is_deleted()
    assert not xs.is_deleted()
    assert_same([ramp(3), ramp(4, 3)], [z, xs])
    assert not any(out.is_deleted() for out in outs)


@pytest.mark.parametrize("plan", PLANS)
def test_constants_are_left_alone(plan):
    constant = ramp(3)
    run = built(lambda z: lax.scan(lambda c, _: (c + z, None), constant, None, 4), plan, ramp(3) + 1)
    first, second = run(ramp(3) + 1), run(ramp(3) + 1)
    assert not constant.is_deleted()
    assert_same(first, second)


@pytest.mark.parametrize("plan", PLANS)
def test_results_of_a_call_outlive_the_next(plan):
    run = built(decayed, plan, *DECAYED)
    first = run(*DECAYED)
    before = [np.array(out) for out in first]
    run(ramp(3, 3), ramp(3) + 5, ramp(5, 3) - 3)
    assert_same(before, [np.asarray(out) for out in first])


@pytest.mark.parametrize("plan", PLANS)
def test_numpy_arguments(plan):
    given = [np.asarray(x) for x in DECAYED]
    run = built(decayed, plan, *DECAYED)
    outs = run(*given)
    assert_same(jax.tree.leaves(jax.jit(decayed)(*DECAYED)), outs)
    assert all(isinstance(out, jax.Array) for out in outs)
    assert_same([np.asarray(x) for x in DECAYED], given)


def through_a_call(around):
    """Loop 0 inside a call that also passes an argument through, and returns a value twice."""

    def run(c, xs):
        def inner(c, xs):
            return lax.scan(lambda c, x: (c + x, None), c, xs)[0], c, xs

        d, same, ys = around(inner)(c, xs)
        return d, d, same, ys

    return run


SHARING = {
    "through jit": through_a_call(jax.jit),
    "through remat": through_a_call(jax.checkpoint),
    "through nothing": through_a_call(lambda fun: fun),
    "carry becomes an argument": lambda z, xs: lax.scan(lambda c, _: (z, None), z * 2, xs)[0],
    "carry returned": lambda z, xs: lax.scan(lambda c, x: (c, (c, x)), z, xs),
}


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("name", SHARING)
def test_no_two_results_and_no_argument_share_a_buffer(name, plan):
    """As with `jax.jit`: who gives up one array later must not lose another."""
    z, xs = ramp(3), ramp(4, 3)
    outs = jax.tree.leaves(autoloop.autoloop(SHARING[name]).using(plan)(z, xs))
    assert_same(jax.tree.leaves(jax.jit(SHARING[name])(z, xs)), outs)
    buffers = [array.unsafe_buffer_pointer() for array in (z, xs, *outs)]
    assert len(set(buffers)) == len(buffers)


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("name", SHARING)
def test_results_survive_donated_arguments(name, plan):
    expected = jax.tree.leaves(jax.jit(SHARING[name])(ramp(3), ramp(4, 3)))
    run = autoloop.autoloop(SHARING[name], donate_argnums=(0, 1)).using(plan)
    outs = jax.tree.leaves(run(ramp(3), ramp(4, 3)))
    assert not any(out.is_deleted() for out in outs)
    assert_same(expected, outs)


@pytest.mark.parametrize("plan", PLANS)
def test_what_a_body_donates_to_its_own_calls_is_not_given_up(plan):
    """Under `jax.jit` an inner donation does nothing, and so it must outside."""
    doubled = jax.jit(lambda a: a * 2, donate_argnums=0)
    nested_call = jax.checkpoint(lambda a: doubled(a) + a)

    def fun(z, xs):
        return lax.scan(lambda c, x: (c + doubled(z) + doubled(c) + nested_call(z), doubled(x)), z, xs)

    z, xs = ramp(3), ramp(4, 3)
    expected = jax.tree.leaves(jax.jit(fun)(z, xs))
    run = built(fun, plan, z, xs)
    assert_same(expected, run(z, xs))
    assert_same(expected, run(z, xs))


def test_a_start_makes_new_buffers():
    z = ramp(3)
    _, loops = outline(shared, z, ramp(4, 3))
    done, *state = _host.starter(loops[0].scan)(z, z)
    assert (done.item(), done.dtype) == (0, jnp.int32)
    assert_same([z, z, jnp.zeros((4, 3))], state)
    assert len({x.unsafe_buffer_pointer() for x in (z, *state)}) == 4


# ---------------------------------------------------------------- compiling


PREPARED = (
    "recurrent",
    "carry_swapped",
    "numpy_arguments",
    "size_zero",
    "length_zero",
    "key_in_carry",
    "keys_as_ys",
    "in_sequence",
    "inside_nested_jit",
)


@pytest.mark.parametrize("name", PREPARED)
def test_what_is_prepared_compiles_no_more(name, compiled_so_far):
    program = BY_NAME[name]
    with program.args() as args:
        values = [jnp.asarray(leaf) for leaf in jax.tree.leaves(args)]
        expected = jax.tree.leaves(jax.jit(program.fun)(*args))
        for plan in split_by_host(legal_plans(program.fun, args))[1]:
            run = built(program.fun, plan, *args)
            specs, cost = prepared(run, *values)
            ready = compiled_so_far()
            outs = run(*values)
            assert compiled_so_far() == ready or cost.lazy, f"{plan} compiled again when it ran"
            assert [(s.shape, s.dtype) for s in specs] == [(o.shape, o.dtype) for o in outs]
            ready = compiled_so_far()
            assert_same(expected, run(*values), f"{name}, {plan}")
            assert compiled_so_far() == ready, f"{plan} compiled again when it ran again"


@pytest.mark.parametrize("name", ["carry_stays_weak", "carry_becomes_strong", "python_scalars", "trees"])
@pytest.mark.parametrize("plan", ["0=python(1)", "0=python(2)"])
def test_weak_types_compile_no_more_and_are_as_prepared(name, plan, compiled_so_far):
    program = BY_NAME[name]
    with program.args() as args:
        values = [jnp.asarray(leaf) for leaf in jax.tree.leaves(args)]
        run = built(program.fun, plan, *args)
        specs, _ = prepared(run, *values)
        ready = compiled_so_far()
        outs = run(*values)
        assert compiled_so_far() == ready
        assert [(s.shape, s.dtype, bool(s.weak_type)) for s in specs] == kinds(outs)
        assert kinds(outs) == kinds(jax.tree.leaves(jax.jit(program.fun)(*args)))


@pytest.mark.parametrize("plan", ["0=python(1)", "0=python(2)", "0=python(1) 0/0=python(1)"])
def test_how_much_is_compiled_does_not_depend_on_the_length(plan, compiled_so_far):
    counts = []
    for length in (4, 8):
        args = (ramp(3), ramp(length, 3))
        run = built(nested, plan, *args)
        before = compiled_so_far()
        prepared(run, *args)
        run(*args)
        counts.append(compiled_so_far() - before)
    assert counts[0] == counts[1] > 0


def test_a_step_of_one_and_a_step_of_the_rest(compiled_so_far):
    counts = {}
    for plan in ("0=python(1)", "0=python(2)", "0=python(5)"):
        run = built(lambda c, xs: lax.scan(lambda c, x: (c + x, c), c, xs), plan, ramp(3), ramp(5, 3))
        before = compiled_so_far()
        prepared(run, ramp(3), ramp(5, 3))
        counts[plan] = compiled_so_far() - before
    assert counts == {"0=python(1)": 2, "0=python(2)": 3, "0=python(5)": 2}  # one of them starts


def test_placed_arguments_keep_their_place(compiled_so_far):
    device = jax.devices()[0]
    placed = [jax.device_put(x, device) for x in DECAYED]
    run = built(decayed, "0=python(1)", *placed)
    specs, _ = prepared(run, *placed)
    ready = compiled_so_far()
    outs = run(*placed)
    assert compiled_so_far() == ready
    assert [spec.sharding.device_set for spec in specs] == [out.devices() for out in outs] == [{device}] * 2
    assert all(out.committed for out in outs)


@pytest.mark.parametrize("value", [1.0, 2, True, np.float32(3), np.arange(3), ramp(2), jax.random.key(0)])
def test_specs_of_arguments(value):
    spec, aval = _host.spec_of(value), jax.typeof(jnp.asarray(value))
    assert (spec.shape, spec.dtype) == (aval.shape, aval.dtype)
    assert spec.weak_type == getattr(aval, "weak_type", False)
    assert spec.sharding is None, "not placed by the user"
    assert _host.spec_of(spec) is spec


def test_the_spec_of_a_placed_argument_names_its_place():
    placed = jax.device_put(ramp(2), jax.devices()[0])
    assert _host.spec_of(placed).sharding == placed.sharding


@pytest.mark.parametrize(
    ("options", "given"),
    [
        ((), None),
        ((("xla_a", "1"),), {"xla_a": 1}),
        ((("xla_a", "ONE,TWO"), ("xla_b", "12")), {"xla_a": "ONE,TWO", "xla_b": 12}),
    ],
)
def test_numbers_in_xla_options_are_numbers(options, given):
    assert _host.compiler_options(options) == given


def test_xla_options_reach_every_piece():
    args = (ramp(3), ramp(4, 3))
    plan = "0=python(1) 0/0=python(1) xla_backend_optimization_level=1"
    expected = jax.tree.leaves(jax.jit(nested)(*args))
    assert_same(expected, built(nested, plan, *args)(*args))
    block, _ = outline(decayed, *DECAYED)
    unknown = Plan.parse("0=python(1)").with_options([("xla_no_such_option", "1")])
    runs = Applied(unknown, FORMS_BY_NAME).build_block(block)._parts
    for part, run in runs:
        specs = [_jaxpr.struct(v.aval) for v in part.inputs]
        with pytest.raises(Exception, match="xla_no_such_option"):
            run.prepare(specs, _host.Cost())


# ---------------------------------------------------------------- cost


class Clock:
    """A clock that moves by one second for each look at it."""

    def __init__(self):
        self.now = 0.0

    def perf_counter(self):
        self.now += 1
        return self.now


class Compiled:
    def __init__(self, stats):
        self.memory_analysis = lambda: stats


class Stats:
    argument_size_in_bytes, output_size_in_bytes = 100, 30
    temp_size_in_bytes, alias_size_in_bytes = 7, 20


@pytest.mark.parametrize(("stats", "wanted"), [(None, 0), (Stats, 117)])
def test_memory_counts_shared_buffers_once(stats, wanted):
    assert _host.memory_bytes(Compiled(stats)) == wanted


def test_cost_adds_seconds_and_keeps_the_peak(monkeypatch):
    monkeypatch.setattr(_host, "time", Clock())
    cost = _host.Cost()
    peaks = []
    for size in (2000, 10):
        compiled = cost.compile(cost.lower(jax.jit(lambda x: x * 2), ramp(size)))
        peaks.append(_host.memory_bytes(compiled))
    assert (cost.trace_s, cost.compile_s) == (2, 2)
    assert cost.peak_bytes == max(peaks) > min(peaks) > 0
    assert not cost.lazy


def test_cost_of_a_program_is_that_of_its_pieces(monkeypatch):
    monkeypatch.setattr(_host, "time", Clock())
    args = (ramp(3), ramp(5, 3))
    costs = {}
    for plan in ("0=python(1)", "0=python(2)", "0=eager", "0=python(1) 0/0=eager"):
        costs[plan] = prepared(built(nested, plan, *args), *args)[1]
    assert costs["0=python(2)"].trace_s == costs["0=python(1)"].trace_s + 1  # the step for the rest
    assert costs["0=python(2)"].compile_s == costs["0=python(1)"].compile_s + 1
    lazy = {plan: cost.lazy for plan, cost in costs.items()}
    assert lazy == {plan: "eager" in plan for plan in costs}


# ---------------------------------------------------------------- the host's own work


class Watched:
    """A part of a program that notes which earlier results are still alive when it runs."""

    def __init__(self, run, alive, results):
        self.run, self.alive, self.results = run, alive, results

    def __call__(self, *values):
        outs = self.run(*values)
        del values
        self.alive.append([number for number, ref in enumerate(self.results) if ref() is not None])
        self.results += [weakref.ref(out) for out in outs]
        return outs


def test_a_chain_lets_go_of_what_nothing_reads_again():
    def fun(x, n):
        a = jnp.sin(x)
        b, _ = lax.scan(lambda c, _: (c * n, None), a, None, length=2)
        c = jnp.cos(b)
        d, _ = lax.scan(lambda c, _: (c + n, None), c, None, length=2)
        return jnp.tan(d)

    block, _ = outline(fun, ramp(3), 2.0)
    parts = _parts.cut(block, block.nodes)
    assert [len(part.outputs) for part in parts] == [1] * 5
    alive, results, watched = [], [], []
    for part in parts:
        node = isinstance(part.what, _outline.Node)
        jitted = jax.jit(
            _jaxpr.rebuild(part.what.eqn, _jaxpr.bodies(part.what.eqn)) if node else _jaxpr.as_fun(part.what.jaxpr)
        )
        watched.append((part, Watched(jitted, alive, results)))
    (out,) = _host.Chain(block.jaxpr, watched)(ramp(3), jnp.float32(2))
    # Each part holds its own input while it runs; that of the part before is gone.
    assert alive == [[], [0], [1], [2], [3]]
    assert [ref() for ref in results[:4]] == [None] * 4
    assert results[4]() is out


def test_pieces_run_in_order_and_bear_a_name():
    piece = _host.Piece(lambda a, b: (a + b, a * b), "sum")
    (total, product) = piece(jnp.float32(2), jnp.float32(3))
    assert (total, product) == (5, 6)
    assert "autoloop_sum" in piece.run.lower(1.0, 2.0).as_text()


def test_a_piece_gives_up_what_it_may():
    piece = _host.Piece(lambda a, b: [a + b], "sum", donate=[0])
    a, b = ramp(3), ramp(3)
    piece(a, b)
    assert (a.is_deleted(), b.is_deleted()) == (True, False)


def scan_of(length, *, reverse):
    def fun(xs):
        return lax.scan(lambda c, x: (c + x, c), jnp.float32(0), xs, reverse=reverse)

    return outline(fun, ramp(length))[1][0].scan


@pytest.mark.parametrize(
    ("reverse", "count", "positions"),
    [
        (False, 1, [0, 1, 2, 3, 4, 5]),
        (True, 1, [5, 4, 3, 2, 1, 0]),
        (False, 2, [0, 2, 4]),
        (True, 2, [4, 2, 0]),
    ],
)
def test_positions(reverse, count, positions):
    scan = scan_of(6, reverse=reverse)
    assert [_host.position(scan, done, count) for done in range(0, 6, count)] == positions


def test_one_x_and_one_y():
    xs = [jnp.arange(6).reshape(3, 2), jnp.arange(3.0)]
    x = _host.take_one(xs, 1)
    assert [v.tolist() for v in x] == [[2, 3], 1.0]
    ys = _host.put_one([jnp.zeros((3, 2), int), jnp.zeros(3)], x, jnp.int32(2))
    assert [v.tolist() for v in ys] == [[[0, 0], [0, 0], [2, 3]], [0, 0, 1]]


@pytest.mark.parametrize("weak", [False, True])
def test_writing_a_y_keeps_the_strength_of_its_type(weak):
    y = _jaxpr.conform(jnp.float32(1), jax.typeof(1.0).update(weak_type=weak))
    (ys,) = _host.put_one([jnp.broadcast_to(y, (3,))], [y], jnp.int32(0))
    assert (y.weak_type, ys.weak_type) == (weak, weak)


def test_a_stepped_loop_runs_its_body_once_an_iteration():
    scan = scan_of(5, reverse=True)
    seen = []

    def body(c, x):
        seen.append(float(x))
        return [c + x, c]

    carry, ys = _host.SteppedLoop(scan, body)(jnp.float32(0), jnp.arange(5.0))
    assert seen == [4, 3, 2, 1, 0]
    assert (carry.item(), ys.tolist()) == (10, [10, 9, 7, 4, 0])


def test_an_empty_loop_runs_nothing():
    scan = scan_of(0, reverse=False)
    carry, ys = _host.SteppedLoop(scan, None)(jnp.float32(3), ramp(0))
    assert (carry.item(), ys.shape) == (3, (0,))
