"""Where a decision comes from: memory, store, wisdom or a tuning; and what the settings allow."""

import json
import os
import sqlite3
import warnings

import diskcache
import jax
import jax.numpy as jnp
import pytest
from helpers import assert_same, ramp
from jax import lax

import autoloop as package
from autoloop import (
    AutoloopWarning,
    MissError,
    _config,
    _program,
    _signature,
    _stores,
    _timing,
    _tune,
    _wisdom,
    autoloop,
)

XS = ramp(3, 2)

pytestmark = pytest.mark.usefixtures("quick")


def total(xs):
    return lax.scan(lambda c, x: (c * 0.5 + x, c.sum()), jnp.zeros(xs.shape[1:]), xs)


def scans(fun, *args):
    """How many scan equations a function's program holds, traced anew."""
    return str(jax.make_jaxpr(lambda *args: fun(*args))(*args)).count("scan[")


def tuned(form="inline", **options):
    return autoloop(total, forms=[form], **options)


def stored():
    return dict(_stores.store_of(_config.current()).items())


@pytest.fixture
def told():
    """Texts of autoloop's warnings, which this test may cause."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield lambda: [str(w.message) for w in caught]
    assert all(w.category is AutoloopWarning for w in caught), [str(w.message) for w in caught]


# ------------------------------------------------ remembering


SCRIPT = """
import json
import fakes, jax, jax.numpy as jnp, numpy as np
from jax import lax
from autoloop import autoloop

fakes.make_quick()
tunings = fakes.count_tunings()
xs = np.linspace(0, 1, 6, dtype=np.float32).reshape(3, 2)

def total(xs):
    return lax.scan(lambda c, x: (c * 0.5 + x, c.sum()), jnp.zeros(xs.shape[1:]), xs)

found = []
for form in ("inline", "eager"):
    fun = autoloop(total if form == "inline" else lambda xs: total(xs * 2), forms=[form])
    for a, b in zip(jax.tree.leaves(jax.jit(fun.__wrapped__)(xs)), jax.tree.leaves(fun(xs))):
        np.testing.assert_allclose(a, b, rtol=1e-6)
    found.append(str(fun.plan(xs)))
print(json.dumps([len(tunings), found]))
"""


def test_a_second_process_finds_the_record(python, own_store):
    assert json.loads(python(SCRIPT)) == [2, ["0=inline", "0=eager"]]
    assert json.loads(python(SCRIPT, AUTOLOOP_MODE="strict", PYTHONHASHSEED="7")) == [
        0,
        ["0=inline", "0=eager"],
    ]


@pytest.mark.parametrize("form", ["inline", "eager"])
def test_another_wrapper_of_the_function_finds_the_record(form, tunings):
    tuned(form)(XS)
    again = tuned(form)
    assert again.plan(XS) is not None
    assert_same(jax.jit(total)(XS), again(XS))
    assert len(tunings) == 1
    assert len(stored()) == 1


def test_a_record_is_stored_as_it_is_reported(tunings):
    fun = tuned()
    fun(XS)
    ((key, record),) = stored().items()
    assert record == fun.report(XS)
    assert key == _signature.digest(record.key)


@pytest.mark.parametrize("options", [{"bitwise": True}, {"rtol": 1e-7}, {"forms": ["unroll"]}], ids=str)
def test_a_record_of_laxer_options_is_not_used(options, tunings):
    tuned()(XS)
    strict = autoloop(total, **{"forms": ["inline"], **options})
    strict(XS)
    assert len(tunings) == 2


def test_programs_share_a_record_only_if_they_are_the_same(tunings):
    def other(xs):
        return lax.scan(lambda c, x: (c * 0.25 + x, c.sum()), jnp.zeros(xs.shape[1:]), xs)

    tuned()(XS)
    autoloop(other, forms=["inline"])(XS)
    assert len(tunings) == 2
    autoloop(lambda xs: total(xs), forms=["inline"])(XS)
    assert len(tunings) == 2


UNUSABLE = {
    "a plan for a loop that is not there": "7=inline",
    "a plan that is not legal": "0=unroll(50)",
    "a form that does not exist": "0=teleport",
    "no plan": "gibberish",
}


@pytest.mark.parametrize("plan", [pytest.param(p, id=name) for name, p in UNUSABLE.items()])
def test_a_record_whose_winner_does_not_fit_is_a_miss(plan, tunings):
    tuned()(XS)
    ((key, record),) = stored().items()
    trials = (*record.trials, record.trials[1].replace(plan=plan))
    _stores.store_of(_config.current()).put(key, record.replace(winner=plan, trials=trials))
    fun = tuned()
    assert fun.plan(XS) is None
    assert_same(jax.jit(total)(XS), fun(XS))
    assert len(tunings) == 2
    assert str(fun.plan(XS)) == "0=inline"


@pytest.mark.parametrize("loser", ["0=teleport(3)", "gibberish"])
def test_a_record_with_a_loser_that_is_not_known_here_is_used(loser, tunings):
    # A newer autoloop may have written it.
    tuned("eager")(XS)
    ((key, record),) = stored().items()
    trials = (*record.trials, record.trials[1].replace(plan=loser))
    _stores.store_of(_config.current()).put(key, record.replace(trials=trials))
    fun = tuned("eager")
    assert_same(jax.jit(total)(XS), fun(XS))
    assert str(fun.plan(XS)) == "0=eager"
    assert len(tunings) == 1


def test_wisdom_is_used_where_the_store_has_nothing(tunings, tmp_path, monkeypatch):
    tuned()(XS)
    ((key, record),) = stored().items()
    wisdom = tmp_path / "wisdom.json"
    _wisdom.write(wisdom, {key: record})
    monkeypatch.setenv("AUTOLOOP_CACHE_DIR", str(tmp_path / "empty"))
    monkeypatch.setenv("AUTOLOOP_WISDOM", str(wisdom))
    fun = tuned()
    assert_same(jax.jit(total)(XS), fun(XS))
    assert str(fun.plan(XS)) == "0=inline"
    assert len(tunings) == 1
    assert stored() == {}


# ------------------------------------------------ modes


MODES = ["off", "cached", "strict"]


@pytest.fixture(params=["environment", "settings"])
def in_mode(request, monkeypatch):
    """A context of one mode: by the environment variable, or by `settings`."""

    def by_environment(mode):
        patch = pytest.MonkeyPatch.context()
        entered = patch.__enter__()
        entered.setenv("AUTOLOOP_MODE", mode)
        return _Leaving(patch)

    return by_environment if request.param == "environment" else lambda mode: package.settings(mode=mode)


class _Leaving:
    """Leaves a context that was entered before."""

    def __init__(self, context):
        self.context = context

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return self.context.__exit__(*error)


@pytest.mark.parametrize("mode", ["off", "cached"])
def test_a_miss_runs_as_written_where_tuning_is_off(mode, in_mode, tunings):
    fun = tuned()
    with in_mode(mode):
        for _ in range(2):
            assert_same(jax.jit(total)(XS), fun(XS))
        assert scans(fun, XS) == 1
        assert_same(jax.grad(lambda xs: total(xs)[0].sum())(XS), jax.grad(lambda xs: fun(xs)[0].sum())(XS))
    assert tunings == []
    assert stored() == {}


def test_a_miss_is_an_error_in_mode_strict(in_mode, tunings):
    fun = tuned()
    with in_mode("strict"):
        for call in (fun, jax.jit(fun), fun.warmup):
            with pytest.raises(MissError) as caught:
                call(XS)
            for part in (f"{__name__}.total", "f32[3,2]", "'strict'", ".warmup(", "AUTOLOOP_MODE=cached"):
                assert part in str(caught.value)
    assert tunings == []
    assert_same(jax.jit(total)(XS), fun(XS))
    assert len(tunings) == 1


@pytest.mark.parametrize(("mode", "form"), [("cached", "inline"), ("strict", "inline"), ("strict", "eager")])
def test_a_record_is_used_where_tuning_is_off(mode, form, in_mode, tunings):
    tuned(form)(XS)
    fun = tuned(form)
    with in_mode(mode):
        for _ in range(2):
            assert_same(jax.jit(total)(XS), fun(XS))
        assert str(fun.plan(XS)) == {"inline": "0=inline", "eager": "0=eager"}[form]
        assert scans(fun, XS) == {"inline": 0, "eager": 1}[form]
    assert len(tunings) == 1


def test_mode_off_ignores_what_is_remembered(in_mode, tunings):
    tuned()(XS)
    fun = tuned()
    with in_mode("off"):
        assert_same(jax.jit(total)(XS), fun(XS))
        assert scans(fun, XS) == 1


def test_a_function_without_loops_runs_in_every_mode():
    fun = autoloop(lambda x: x + 1)
    for mode in MODES:
        with package.settings(mode=mode):
            assert_same(jnp.float32(2), fun(jnp.float32(1)))


def test_settings_end_with_their_block(tunings):
    fun = tuned()
    with package.settings(mode="off"):
        fun(XS)
    assert tunings == []
    fun(XS)
    assert len(tunings) == 1
    with package.settings(mode="off"):
        assert scans(fun, XS) == 1
    assert scans(fun, XS) == 0


@pytest.mark.parametrize("mode", ["off", "0=inline"], ids=["off", "a forced plan"])
def test_the_environment_costs_nothing_after_the_first_call(mode, monkeypatch):
    monkeypatch.setenv("AUTOLOOP_MODE" if mode == "off" else "AUTOLOOP_PLAN", mode)
    traces, real = [], _program.Planned._trace

    def counted(self, *args, **kwargs):
        traces.append(1)
        return real(self, *args, **kwargs)

    monkeypatch.setattr(_program.Planned, "_trace", counted)
    fun = tuned()
    fun(XS)
    before = len(traces)
    fun(XS)
    fun(XS)
    assert len(traces) == before


# ------------------------------------------------ bad settings


BAD_SETTINGS = [
    ("AUTOLOOP_MODE", "fast", "one of tune, cached, strict, off"),
    ("AUTOLOOP_BUDGET_S", "-1", "a number of seconds, at least 0"),
    ("AUTOLOOP_BUDGET_S", "soon", "a number of seconds, at least 0"),
    ("AUTOLOOP_LOG", "loud", "one of debug, info, warning, error"),
    pytest.param(
        "AUTOLOOP_PLAN",
        "0=foo",
        "the forms are",
    ),
    pytest.param(
        "AUTOLOOP_PLAN",
        "gibberish",
        "PATH=FORM",
    ),
]


@pytest.mark.parametrize(("name", "value", "allowed"), BAD_SETTINGS)
def test_a_bad_variable_is_an_error_at_the_call(name, value, allowed, monkeypatch, tunings):
    monkeypatch.setenv(name, value)
    fun = tuned()
    for call in (fun, fun.warmup, fun.plan):
        if name == "AUTOLOOP_PLAN" and call != fun:
            continue  # a forced plan concerns calls only
        with pytest.raises(ValueError, match=name) as caught:
            call(XS)
        assert allowed in str(caught.value)
        assert repr(value) in str(caught.value)
    assert tunings == []


def test_the_budget_of_the_environment_counts(monkeypatch):
    monkeypatch.setenv("AUTOLOOP_BUDGET_S", "7.5")
    assert tuned().warmup(XS).budget_s == 7.5
    tuned().forget()
    with package.settings(budget_s=2):
        assert tuned().warmup(XS).budget_s == 2
    monkeypatch.delenv("AUTOLOOP_BUDGET_S")
    tuned().forget()
    assert tuned(budget_s=9).warmup(XS).budget_s == 9


# ------------------------------------------------ a forced plan


@pytest.mark.parametrize("plan", ["0=inline", "0=unroll(2)", "0=eager", "0=python(2)", "as-written"])
def test_a_forced_plan_runs_without_tuning(plan, tunings, monkeypatch):
    monkeypatch.setenv("AUTOLOOP_PLAN", plan)
    fun = autoloop(total)
    wanted = jax.jit(total)(XS)
    for call in (fun, fun, jax.jit(lambda xs: fun(xs))):
        assert_same(wanted, call(XS))
    assert scans(fun, XS) == (0 if plan == "0=inline" else 1)
    assert tunings == []
    assert stored() == {}


def test_a_plan_forced_by_settings_wins_over_what_is_remembered(tunings):
    fun = tuned("eager")
    fun(XS)
    for plan, count in (("0=inline", 0), (package.Plan.parse("0=inline"), 0), ("as-written", 1)):
        with package.settings(plan=plan):
            assert_same(jax.jit(total)(XS), fun(XS))
            assert scans(fun, XS) == count
    assert str(fun.plan(XS)) == "0=eager"


@pytest.mark.parametrize("plan", ["7=inline", "0=unroll(50)", "0/0=inline"])
def test_a_forced_plan_that_does_not_fit_warns_and_runs_as_written(plan, told, tunings, monkeypatch):
    monkeypatch.setenv("AUTOLOOP_PLAN", plan)
    assert_same(jax.jit(total)(XS), autoloop(total)(XS))
    (text,) = told()
    for part in (f"{__name__}.total", plan, "runs as written"):
        assert part in text
    assert tunings == []


def test_a_forced_plan_that_does_not_fit_warns_once(told, monkeypatch):
    monkeypatch.setenv("AUTOLOOP_PLAN", "7=inline")
    fun = autoloop(total)
    for _ in range(3):
        fun(XS)
    assert len(told()) == 1


def test_a_forced_host_plan_of_a_function_that_closes_over_tracers_runs_as_written(monkeypatch, told):
    monkeypatch.setenv("AUTOLOOP_PLAN", "0=eager")

    def whole(w):
        return autoloop(lambda xs: lax.scan(lambda c, x: (c * w + x.sum(), c), 0.0, xs)[0])(XS)

    wanted = jax.jit(lambda w: lax.scan(lambda c, x: (c * w + x.sum(), c), 0.0, XS)[0])(0.5)
    assert_same(wanted, jax.jit(whole)(0.5))
    assert all("runs as written" in text for text in told())


# ------------------------------------------------ a store that can't be used


def _below_a_file(folder, monkeypatch):
    folder.write_text("")
    monkeypatch.setenv("AUTOLOOP_CACHE_DIR", str(folder / "store"))


def _a_link(folder, monkeypatch):
    (folder.parent / f"{folder.name}-elsewhere").mkdir()
    folder.symlink_to(folder.parent / f"{folder.name}-elsewhere")


def _another_user(folder, monkeypatch):
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)


def _garbage(folder, monkeypatch):
    folder.mkdir()
    (folder / "cache.db").write_bytes(b"no database" * 1000)


def _full(folder, monkeypatch):
    def fail(*args, **kwargs):
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(diskcache.Cache, "set", fail)


def _bad_wisdom(folder, monkeypatch):
    monkeypatch.setenv("AUTOLOOP_WISDOM", str(folder.parent / "no such file"))


TROUBLES = [_below_a_file, _a_link, _another_user, _garbage, _full, _bad_wisdom]


@pytest.mark.parametrize(
    ("trouble", "form"), [*((trouble, "inline") for trouble in TROUBLES), (_below_a_file, "eager")]
)
def test_trouble_with_the_store_costs_one_warning_never_the_call(trouble, form, own_store, monkeypatch, told, tunings):
    trouble(own_store, monkeypatch)
    fun = tuned(form)
    for _ in range(2):
        assert_same(jax.jit(total)(XS), fun(XS))
    assert_same(jax.jit(total)(ramp(4, 2)), fun(ramp(4, 2)))
    assert len(told()) == 1
    assert len(tunings) == 2
    assert str(fun.plan(XS)) == {"inline": "0=inline", "eager": "0=eager"}[form]
    fun.forget(XS)
    assert fun.plan(XS) is None
    assert len(told()) == 1


def test_a_damaged_entry_is_tuned_again(tunings, own_store):
    tuned()(XS)
    ((key, _),) = stored().items()
    _stores.store_of(_config.current()).close()
    with sqlite3.connect(own_store / "cache.db") as connection:
        connection.execute("UPDATE Cache SET value = '{}' WHERE key = ?", (key,))
    connection.close()
    fun = tuned()
    assert_same(jax.jit(total)(XS), fun(XS))
    assert len(tunings) == 2
    assert stored()[key] == fun.report(XS)


# ------------------------------------------------ a tuning that fails


def test_a_tuning_that_fails_costs_one_warning_and_is_not_tried_again(monkeypatch, told):
    calls = []

    def fail(*args, **kwargs):
        calls.append(1)
        raise RuntimeError("boom")

    monkeypatch.setattr(_tune, "tune", fail)
    fun = tuned()
    for _ in range(3):
        assert_same(jax.jit(total)(XS), fun(XS))
    (text,) = told()
    for part in (f"{__name__}.total", "RuntimeError: boom", "as written"):
        assert part in text
    assert len(calls) == 1
    assert fun.report(XS).winner == "as-written"
    assert "failed" in fun.report(XS).verdict
    (record,) = stored().values()
    _stores.stores.clear()
    assert tuned().report(XS) == record  # another process does not try it again at once


def test_a_tuning_that_failed_is_tried_again_an_hour_later(monkeypatch, told, tunings):
    with monkeypatch.context() as patch:
        patch.setattr(_tune, "tune", lambda request: 1 / 0)
        tuned()(XS)
    (record,) = stored().values()
    assert tunings == []
    assert record.created < record.expires
    monkeypatch.setattr(_tune, "now", lambda later_s=0.0: record.expires)
    fun = tuned()
    assert fun.plan(XS) is None
    fun(XS)
    assert len(tunings) == len(told()) == 1
    assert str(fun.plan(XS)) == "0=inline"
    assert stored()[_signature.digest(record.key)].expires == ""


def test_a_search_that_fails_costs_one_warning(monkeypatch, told):
    def fail(*args, **kwargs):
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(_tune._search, "search", fail)
    assert_same(jax.jit(total)(XS), tuned()(XS))
    assert len(told()) == 1


@pytest.fixture
def interrupted(monkeypatch):
    """A function whose tuning was interrupted in its third race."""
    races, real = [], _timing.race

    def race(baseline, candidates, *args, **kwargs):
        races.append(len(candidates))
        if len(races) == 3:
            raise KeyboardInterrupt
        return real(baseline, candidates, *args, **kwargs)

    monkeypatch.setattr(_timing, "race", race)
    fun = autoloop(total, forms=["unroll", "inline"])
    with pytest.raises(KeyboardInterrupt):
        fun(XS)
    return fun


def timed(record):
    return [trial.plan for trial in record.trials if trial.run_s is not None]


def test_an_interrupt_keeps_what_was_found(interrupted, tunings):
    (partial,) = stored().values()
    assert not partial.complete
    assert timed(partial) == ["as-written", "0=unroll(2)"]
    assert_same(jax.jit(total)(XS), interrupted(XS))
    (whole,) = stored().values()
    assert whole.complete
    assert len(tunings) == 1
    interrupted(XS)
    assert len(tunings) == 1


def test_a_search_goes_on_where_it_was_interrupted(interrupted):
    interrupted(XS)
    (whole,) = stored().values()
    assert {"0=unroll(3)", "0=inline"} & set(timed(whole))


def test_asking_in_between_does_not_end_it(interrupted):
    assert interrupted.report(XS).interrupted
    assert interrupted.plan(XS) is not None
    assert jax.make_jaxpr(interrupted)(XS)
    interrupted(XS)
    (whole,) = stored().values()
    assert whole.complete


def test_a_search_that_found_the_rest_too_dear_is_not_begun_again(tunings):
    def long(xs):
        return lax.scan(lambda c, x: (c * 0.5 + x, c.sum()), jnp.zeros(xs.shape[1:]), xs)

    record = autoloop(long, forms=["inline"], budget_s=10).warmup(ramp(512, 2))
    assert "building would take about" in record.trial("0=inline").reason
    autoloop(long, forms=["inline"], budget_s=10).warmup(ramp(512, 2))
    assert len(tunings) == 1


def test_another_size_begins_with_the_winner_of_the_first(tunings):
    autoloop(total, forms=["inline"]).warmup(XS)
    record = autoloop(total, forms=["unroll", "inline", "eager"]).warmup(ramp(5, 2))
    assert [trial.plan for trial in record.trials] == ["as-written", "0=inline"]
    assert record.winner == "0=inline"
    assert len(tunings) == 2


def test_a_form_that_is_not_allowed_is_no_hint_either():
    autoloop(total, forms=["inline"]).warmup(XS)
    record = autoloop(total, forms=["unroll"]).warmup(ramp(5, 2))
    assert record.trial("0=inline") is None


def test_xla_options_are_no_hint_where_forms_are_given():
    tuned().warmup(XS)
    ((key, record),) = stored().items()
    plan = "xla_backend_optimization_level=1"
    trials = (*record.trials, record.trials[1].replace(plan=plan))
    _stores.store_of(_config.current()).put(key, record.replace(winner=plan, trials=trials))
    assert [trial.plan for trial in tuned().warmup(ramp(5, 2)).trials] == ["as-written", "0=inline"]


def test_a_budget_of_nothing_still_answers(told):
    fun = autoloop(total, budget_s=0)
    for _ in range(2):
        assert_same(jax.jit(total)(XS), fun(XS))
    record = fun.report(XS)
    assert record.winner == "as-written"
    assert not record.complete
    assert told() == []
