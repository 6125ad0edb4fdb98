"""Programs that stand in for the function while it is tuned: under grad, and without prints."""

import jax
import jax.numpy as jnp
import pytest
from helpers import assert_same, ramp
from jax import lax

import autoloop as package
from autoloop import MissError, Plan, Trial, _config, _jaxpr, _prints, _signature, _stores, _variants, autoloop
from autoloop._call import Call
from autoloop._program import Program

XS = ramp(3, 2)

pytestmark = pytest.mark.usefixtures("quick")


def total(xs, scale=0.5):
    return lax.scan(lambda c, x: (jnp.tanh(c * scale + x), c.sum()), jnp.zeros(xs.shape[1:]), xs)


def loss(xs):
    return total(xs)[1].sum()


def counts(key, index, xs):
    """Inputs and outputs of which only some can be differentiated."""

    def step(c, x):
        return (c[0] + 1, c[1] * x), c[0]

    (n, y), ns = lax.scan(step, (index, jnp.ones(2)), xs)
    return n, ns, y, key, jnp.sum(y, keepdims=True).astype(jnp.bfloat16)


def scans(fun, *args):
    return str(jax.make_jaxpr(lambda *args: fun(*args))(*args)).count("scan[")


# ------------------------------------------------ under grad


def test_a_record_under_grad_is_preferred_in_traces_and_not_outside(tunings):
    fun = autoloop(loss, forms=["inline"])
    record = fun.warmup(XS, under="grad")
    assert record.winner == "0=inline"
    assert record.key["context"].startswith("grad")
    assert "forward and backward" in record.notes[-1]
    assert fun.plan(XS) is None
    assert scans(jax.grad(fun), XS) == 0
    assert_same(jax.jit(jax.grad(loss))(XS), jax.jit(jax.grad(fun))(XS))
    assert len(tunings) == 1
    fun(XS)
    assert len(tunings) == 2


def test_two_plans_stand_beside_each_other_for_one_signature():
    record = autoloop(loss, forms=["python", "unroll"]).warmup(XS)
    store = _stores.store_of(_config.current())
    store.put(_signature.digest(record.key), record.replace(winner="0=python(1)"))
    fun = autoloop(loss, forms=["python", "unroll"])
    fun(XS)
    assert str(fun.plan(XS)) == "0=python(1)"
    assert str(fun.warmup(XS, under="grad").winner).startswith("0=unroll")
    for _ in range(2):
        assert_same(jax.jit(loss)(XS), fun(XS))
        assert_same(jax.jit(jax.grad(loss))(XS), jax.grad(fun)(XS))


def test_where_the_winner_of_a_call_is_one_program_too_a_trace_still_takes_its_own():
    fun = autoloop(loss, forms=["inline"])
    with package.settings(mode="cached"):
        assert_same(jax.jit(loss)(XS), fun(XS))  # as written, for want of a record
    fun.warmup(XS, under="grad")
    with package.settings(mode="cached"):
        assert fun(XS) == jax.jit(loss)(XS)
        assert scans(fun, XS) == 0  # make_jaxpr is a trace
    fun(XS)
    assert "scan" not in fun.lower(XS).as_text("hlo")


def test_a_new_process_finds_the_record_under_grad(tunings):
    autoloop(loss, forms=["inline"]).warmup(XS, under="grad")
    fun = autoloop(loss, forms=["inline"])
    assert scans(jax.grad(fun), XS) == 0
    assert fun.warmup(XS, under="grad").winner == "0=inline"
    assert len(tunings) == 1
    fun.forget(XS)
    assert scans(jax.grad(fun), XS) > 0


def test_inputs_and_outputs_that_have_no_gradient_are_carried_along(tunings):
    fun = autoloop(counts, forms=["inline"], donate_argnums=2)
    args = (jax.random.key(0), jnp.int32(3), jnp.copy(XS))
    record = fun.warmup(*args, under="grad")
    assert record.winner == "0=inline"
    assert not args[2].is_deleted()


def test_forms_that_can_not_be_differentiated_are_no_candidates():
    record = autoloop(loss).warmup(XS, under="grad")
    tried = " ".join(trial.plan for trial in record.trials)
    assert not any(name in tried for name in ("python", "eager", "xla_", "until"))
    assert "unroll" in tried


def test_a_form_with_wrong_gradients_is_found_out(monkeypatch):
    """Right in the forward pass, wrong in the backward pass."""
    from autoloop._forms import inline

    real = inline.Inline.emit

    def emit(self, site, parameter, values):
        outs = real(self, site, parameter, values)
        return [*outs[:-1], outs[-1] + (lambda y: y - lax.stop_gradient(y))(outs[-1])]

    monkeypatch.setattr(inline.Inline, "emit", emit)
    fun = autoloop(loss, forms=["inline"])
    assert fun.warmup(XS).winner == "0=inline"
    record = fun.warmup(XS, under="grad")
    assert record.winner == "as-written"
    assert record.trial("0=inline").status == "wrong"


@pytest.mark.parametrize(
    ("fun", "args", "words"),
    [
        (lambda n: lax.fori_loop(0, 3, lambda i, c: c + i, n), (jnp.int32(1),), ["no argument", "float"]),
        (lambda x: lax.fori_loop(0, 3, lambda i, c: c + i, 0) + (x > 0), (1.0,), ["no output", "float"]),
        (lambda x: x + 1, (1.0,), ["no loop"]),
    ],
)
def test_what_can_not_be_differentiated_says_so(fun, args, words):
    with pytest.raises(ValueError, match="under='grad'") as caught:
        autoloop(fun).warmup(*args, under="grad")
    assert all(word in str(caught.value) for word in words)


def test_under_is_grad_or_nothing():
    with pytest.raises(ValueError, match="under must be None or 'grad'; got 'vmap'"):
        autoloop(loss).warmup(XS, under="vmap")


@pytest.mark.parametrize("mode", ["off", "cached", "strict"])
def test_modes_that_forbid_tuning_forbid_it_under_grad(mode, tunings):
    with package.settings(mode=mode), pytest.raises((RuntimeError, MissError)):
        autoloop(loss).warmup(XS, under="grad")
    assert tunings == []


def test_a_host_winner_for_another_signature_does_not_bring_the_call_s_plan_into_a_trace():
    fun, more = autoloop(loss, forms=["python", "unroll"]), ramp(4, 2)
    store = _stores.store_of(_config.current())
    for xs, plan in ((XS, "0=python(1)"), (more, "0=unroll(2)")):
        record = fun.warmup(xs)
        store.put(_signature.digest(record.key), record.replace(winner=plan, trials=(*record.trials[:1], Trial(plan))))
    record = fun.warmup(more, under="grad")
    store.put(_signature.digest(record.key), record.replace(winner="as-written"))
    fun = autoloop(loss, forms=["python", "unroll"])
    fun(XS)
    fun(more)
    assert [str(fun.plan(xs)) for xs in (XS, more)] == ["0=python(1)", "0=unroll(2)"]
    assert "unroll=2" in str(jax.make_jaxpr(lambda xs: fun.using("0=unroll(2)")(xs))(more))
    assert "unroll=2" not in str(jax.make_jaxpr(lambda xs: fun(xs))(more))


def root(x):
    """A bounded solver as a masked scan: true under `until`, which JAX can't differentiate in reverse."""

    def step(c, _):
        done = jnp.abs(c * c - x) < 1e-3
        return lax.cond(done, lambda c: c, lambda c: (c + x / c) / 2, c), None

    return lax.scan(step, x, None, length=20)[0]


TRACED = {
    "grad": jax.grad,
    "jit of grad": lambda f: jax.jit(jax.grad(f)),
    "grad of jit": lambda f: jax.grad(jax.jit(f)),
    "vmap of grad": lambda f: lambda x: jax.vmap(jax.grad(f))(x[None]),
    "jacrev of jacfwd": lambda f: jax.jacrev(jax.jacfwd(f)),
    "vjp": lambda f: lambda x: jax.vjp(f, x)[1](jnp.float32(2)),
    "checkpoint": lambda f: jax.grad(jax.checkpoint(f)),
    "scan": lambda f: jax.grad(lambda x: lax.scan(lambda c, _: (f(c) + 1, None), x, None, length=2)[0]),
}


@pytest.mark.parametrize("name", TRACED)
def test_a_winner_that_can_not_be_differentiated_costs_a_call_nothing_and_stays_out_of_traces(name):
    fun, x = autoloop(root, forms=["until"]), jnp.float32(2)
    for _ in range(2):
        assert_same(jax.jit(root)(x), fun(x))
        assert str(fun.plan(x)) == "0=until"
        assert not fun._keyed  # the call is jit's own, no key is made in Python
        assert_same(TRACED[name](jax.jit(root))(x), TRACED[name](fun)(x))


# ------------------------------------------------ lower and trace


@pytest.mark.parametrize("form", ["inline", "python"])
def test_lower_and_trace_give_the_program_in_force(form, tunings):
    fun = autoloop(total, forms=[form], static_argnames="scale")
    plain = jax.jit(total, static_argnames="scale")
    assert str(fun.trace(XS, scale=0.5).jaxpr).count("scan[") == 1
    assert fun.eval_shape(XS) == plain.eval_shape(XS)
    assert tunings == []
    fun(XS, scale=0.5)
    assert str(fun.trace(XS, scale=0.5).jaxpr).count("scan[") == (form == "python")
    compiled = fun.lower(XS, scale=0.5).compile()
    assert_same(plain(XS, scale=0.5), compiled(XS))
    spec = jax.ShapeDtypeStruct(XS.shape, XS.dtype)
    assert fun.lower(spec, scale=0.5).as_text() == fun.lower(XS, scale=0.5).as_text()
    with package.settings(mode="off"):
        assert fun.lower(XS, scale=0.5).as_text() == plain.lower(XS, scale=0.5).as_text()


# ------------------------------------------------ without prints


def noisy(x, xs):
    def step(c, x):
        jax.debug.print("{}", c, ordered=True)
        jax.lax.cond(c > 0, lambda c: jax.debug.print("up {}", c), lambda c: None, c)
        return jax.jit(shout)(c * x), jax.checkpoint(shout)(x)

    return lax.scan(step, x, xs)


def shout(x):
    jax.debug.callback(lambda v: None, x)
    return x + 1


def test_prints_are_left_out_at_any_depth():
    jaxpr = jax.make_jaxpr(noisy)(1.0, XS[:, 0])
    quiet = _prints.without_prints(jaxpr)
    assert _jaxpr.effects(jaxpr) == ("Debug", "OrderedDebug")
    assert _jaxpr.effects(quiet) == ()
    assert "debug" not in str(quiet)
    assert_same(jax.jit(noisy)(1.0, XS[:, 0]), tuple(jax.jit(_jaxpr.as_fun(quiet))(1.0, XS[:, 0])))


def test_a_program_without_prints_is_left_as_it_is():
    jaxpr = jax.make_jaxpr(total)(XS)
    assert str(_prints.without_prints(jaxpr)) == str(jaxpr)


def test_prints_are_left_out_under_grad_and_the_gradients_stay():
    def loud(xs):
        def step(c, x):
            jax.debug.print("{}", c)
            return jnp.tanh(c + x), c.sum()

        return lax.scan(step, jnp.zeros(2), xs)[1].sum()

    fun = autoloop(loud)
    call = Call.of(fun._function, (XS,), {})
    program = _variants.under_grad(Program.trace(fun._function, call.key, call.args, call.kwargs))
    quiet = _variants.quiet(program)
    assert isinstance(quiet, _variants.GradProgram)
    assert quiet.note == program.note
    assert not quiet.shortens
    assert quiet.why_not(Plan.parse("0=python(1)")) is not None
    outs, _, (gradient,) = quiet.candidate(Plan.parse("0=unroll(2)"))(XS)
    wanted, pullback = jax.vjp(lambda xs: loud(xs), XS)
    assert_same(wanted, outs[0])
    assert_same(pullback(jnp.float32(1))[0], gradient)
