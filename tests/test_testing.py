"""The testing kit does what it says, in its blocks and only there."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import ramp
from jax import lax

import autoloop
from autoloop import AutoloopWarning, Plan, PlanError, Status, _tune, testing
from autoloop._forms import FORMS


def decay(c, xs):
    return lax.scan(lambda c, x: (0.5 * c + x, jnp.sin(c)), c, xs)


ARGS = (ramp(2), ramp(3, 2))


@pytest.fixture
def looped():
    return autoloop.autoloop(budget_s=60, forms=["inline", "unroll"])(decay)


@pytest.fixture
def wrong_inline(monkeypatch):
    inline = next(form for form in FORMS if form.name == "inline")
    real = type(inline).emit
    monkeypatch.setattr(type(inline), "emit", lambda *a: [x * 1.5 for x in real(*a)])


# ---------------------------------------------------------------- blocks


def test_no_tuning_runs_plain_jit(looped, tunings, own_store):
    with testing.no_tuning() as settings:
        assert settings.mode == "off"
        looped(*ARGS)
    assert tunings == []
    assert not own_store.exists()


def test_an_isolated_store_is_empty_and_gone_afterwards(looped, tunings, quick, own_store):
    looped(*ARGS)
    with testing.isolated_store() as folder:
        assert looped.report(*ARGS) is None
        looped(*ARGS)
        assert folder.exists()
        assert len(tunings) == 2
    assert not folder.parent.exists()
    assert looped.report(*ARGS) is not None
    assert own_store.exists()


def test_an_isolated_store_consults_no_wisdom_and_leaves_the_mode(monkeypatch):
    monkeypatch.setenv("AUTOLOOP_WISDOM", "somewhere.jsonl")
    monkeypatch.setenv("AUTOLOOP_MODE", "cached")
    with testing.isolated_store() as folder, autoloop.settings() as found:
        assert (found.cache_dir, found.wisdom, found.mode) == (str(folder), (), "cached")


def test_forced_runs_the_plan_whatever_the_mode(looped, tunings, monkeypatch):
    monkeypatch.setenv("AUTOLOOP_MODE", "off")
    with testing.forced("0=python(1)") as settings:
        assert settings.plan == "0=python(1)"
        forced = looped(*ARGS)
    plain = decay(*ARGS)
    jax.tree.map(np.testing.assert_allclose, forced, plain)
    assert tunings == []


def test_forced_raises_each_time_where_the_plan_does_not_fit(looped):
    for _ in range(2):
        with testing.forced("1=inline"), pytest.raises(AutoloopWarning, match="there is no loop 1"):
            looped(*ARGS)


@pytest.mark.parametrize(
    ("plan", "error", "text"),
    [
        (3, TypeError, "a plan is a Plan or its text"),
        ("0=fly", PlanError, "there is no form 'fly'"),
        ("x", ValueError, "plan 'x'"),
    ],
)
def test_a_plan_to_force_is_checked_at_once(plan, error, text):
    with pytest.raises(error, match=text), testing.forced(plan):
        pass


# ---------------------------------------------------------------- tunings with a known outcome


def test_fake_timings_decide_the_winner_and_the_report(looped, own_store):
    with testing.fake_timings({"as-written": 2e-3, "0=inline": 1e-3, "0=unroll(2)": 3e-3}):
        got = looped(*ARGS)
        assert looped.plan(*ARGS) == Plan.parse("0=inline")
        record = looped.report(*ARGS)
    assert [(t.plan, t.run_s, t.ratio) for t in record.trials] == [
        ("as-written", 2e-3, 1.0),
        ("0=inline", 1e-3, 0.5),
        ("0=unroll(2)", 3e-3, 1.5),
    ]
    assert record.verdict == "0=inline runs 2.00x as fast as written"
    assert record.notes == ("the times were made up by autoloop.testing",)
    jax.tree.map(np.testing.assert_allclose, got, decay(*ARGS))
    assert not own_store.exists()
    assert looped.plan(*ARGS) is None


def test_fake_timings_tune_also_where_tuning_is_off(looped, monkeypatch):
    monkeypatch.setenv("AUTOLOOP_MODE", "off")
    with testing.fake_timings({"0=unroll(2)": 0.5}):
        assert looped.warmup(*ARGS).winner == "0=unroll(2)"
    with testing.fake_timings({"0=unroll(2)": 1.5}):
        assert looped.warmup(*ARGS).winner == "as-written"


def test_fake_timings_skip_what_does_not_fit_or_is_not_allowed(looped):
    with testing.fake_timings({"4=inline": 1e-3, "0=python(1)": 1e-3}):
        record = looped.warmup(*ARGS)
    _, absent, forbidden = record.trials
    assert record.winner == "as-written"
    assert (absent.status, forbidden.status) == (Status.SKIPPED, Status.SKIPPED)
    assert "there is no loop 4" in absent.reason
    assert forbidden.reason == "the option forms does not allow it"


@pytest.mark.parametrize(
    ("seconds", "error", "text"),
    [
        ({"0=inline": 0}, ValueError, "the time of 0=inline must be above 0 seconds; got 0"),
        ({"0=inline": -1}, ValueError, "the time of 0=inline must be a finite number"),
        ({"0=inline": "fast"}, TypeError, "the time of 0=inline must be a number of seconds"),
        ({"0=fly": 1}, PlanError, "there is no form 'fly'"),
    ],
)
def test_fake_timings_are_checked_at_once(seconds, error, text):
    with pytest.raises(error, match=text), testing.fake_timings(seconds):
        pass


def distorted(looped, seed):
    with testing.distorted_timings(seed):
        return looped.warmup(*ARGS)


def test_distorted_timings_let_some_plan_win_the_same_for_a_seed(looped):
    records = [distorted(looped, seed) for seed in (6, 6, 2)]
    assert [record.winner for record in records] == ["0=inline", "0=inline", "0=unroll(2)"]
    for record in records:
        assert record.trials[0].ratio == 1.0
        assert all(0.25 <= t.ratio <= 4 for t in record.trials if t.ok)


def test_distorted_timings_never_let_a_wrong_form_win(looped, wrong_inline):
    record = distorted(looped, 6)
    assert record.winner == "0=unroll(3)"  # the next best of the drawn times
    assert record.trial("0=inline").status is Status.WRONG


@pytest.mark.parametrize("seed", [1.5, True, None])
def test_the_seed_is_an_int(seed):
    with pytest.raises(TypeError, match="the seed must be an int"), testing.distorted_timings(seed):
        pass


@pytest.mark.parametrize("block", [lambda: testing.fake_timings({}), lambda: testing.distorted_timings(1)])
def test_tunings_are_real_again_after_a_block_that_raised(block):
    with contextlib.suppress(ZeroDivisionError), block():
        assert _tune.stand_in.get() is not None
        raise ZeroDivisionError
    assert _tune.stand_in.get() is None


# ---------------------------------------------------------------- agreement


def test_forms_that_agree_pass_under_everything(tunings):
    plans = ["0=inline", "0=unroll(2)", "0=python(1)"]
    ran = testing.assert_forms_agree(
        decay,
        *ARGS,
        under=("plain", "jit", "grad", "vmap"),
        plans=plans,
    )
    assert [*map(str, ran)] == plans
    assert tunings == []


def test_all_legal_plans_are_run_of_a_decorated_function(looped):
    assert testing.assert_forms_agree(looped, *ARGS) == looped.plans(*ARGS)


@pytest.mark.parametrize("under", ["plain", "jit", "grad", "vmap"])
def test_a_plan_that_disagrees_is_named(wrong_inline, under):
    with pytest.raises(
        AssertionError, match=rf"1 plans disagree with plain jax:\n0=inline, under {under}: output 0 is off by"
    ):
        testing.assert_forms_agree(decay, *ARGS, under=under, plans=["0=unroll(2)", "0=inline"])


def test_donated_arguments_static_ones_and_methods():
    class Model:
        def __init__(self, scale):
            self.scale = scale

        @autoloop.autoloop(static_argnums=(0, 2), donate_argnums=1)
        def run(self, c, steps):
            return lax.scan(lambda c, _: (c * self.scale, c), c, None, length=steps)

    c = ramp(2)
    ran = testing.assert_forms_agree(Model(0.5).run, c, 3, under=("plain", "jit"), plans=["0=inline", "0=python(1)"])
    assert len(ran) == 2
    assert not c.is_deleted()


def test_an_error_of_the_function_says_in_which_plan():
    with pytest.raises(PlanError) as caught:
        testing.assert_forms_agree(decay, *ARGS, plans=["7=inline"])
    assert caught.value.__notes__[-1:] == ["in plan 7=inline, under plain"]


@pytest.mark.parametrize("under", [(), ("plane",), "plane"])
def test_unknown_words_are_refused(under):
    with pytest.raises(ValueError, match="under must be some of plain, jit, grad, vmap; got"):
        testing.assert_forms_agree(decay, *ARGS, under=under)


def test_a_gradient_needs_an_inexact_argument():
    with pytest.raises(ValueError, match="no argument of floating or complex numbers"):
        testing.assert_forms_agree(lambda c: lax.fori_loop(0, 2, lambda i, c: c + i, c), 1, under="grad")
