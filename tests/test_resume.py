"""Going on from an earlier record: a new form is timed alone, and what was timed before still counts."""

import jax
import jax.numpy as jnp
import pytest
from helpers import assert_same, ramp
from jax import lax

from autoloop import Record, Trial, _config, _decide, _options, _resume, _space, _trial, autoloop
from autoloop._plan import Choice, Plan

XS = ramp(3, 2)


def total(xs):
    return lax.scan(lambda c, x: (c * 0.5 + x, c.sum()), jnp.zeros(xs.shape[1:]), xs)


def make(forms, **changes):
    environment = {} if forms is None else {"forms": forms}
    return Record("m.f", {}, "as-written", (Trial("as-written"),), environment=environment, **changes)


@pytest.mark.parametrize(
    ("stored", "allowed", "new"),
    [
        ("unroll inline", ["unroll", "inline"], ()),
        ("unroll", ["unroll", "inline"], ("inline",)),
        ("unroll gone", ["unroll"], ()),
        ("", ["unroll"], ("unroll",)),
        (None, ["unroll"], ()),  # it does not say, so nothing is known to be new
    ],
)
def test_new_forms_are_those_that_a_record_did_not_know(stored, allowed, new):
    assert _resume.new_forms(make(stored), _options.check({"forms": allowed})) == new
    assert _resume.new_forms(None, _options.check({"forms": allowed})) == ()


def test_a_check_of_known_plans_knows_no_more_forms_than_the_search_before():
    assert _resume.with_forms_of({"host": "h", "forms": "a b"}, make("a")) == {"host": "h", "forms": "a"}
    assert _resume.with_forms_of({"host": "h", "forms": "a b"}, make(None)) == {"host": "h"}


def test_only_plans_with_a_new_form_are_tried():
    space = _space.Space((), (), lambda plan: "illegal" if "9" in str(plan) else None, len, len, len)
    why_not = _resume.only(space, ["inline"]).why_not
    assert why_not(Plan()) is None
    assert why_not(Plan.parse("0=inline 0/0=unroll(2)")) is None
    assert why_not(Plan((Choice((9,), "inline", None),))) == "illegal"
    assert why_not(Plan.parse("0=unroll(2)")) == "it was tried before"
    assert _resume.only(space, ()) is space


def test_a_joined_record_keeps_what_the_first_search_said():
    before = make("a", complete=False, interrupted=True, notes=("busy",), created="2026-01-01")
    joined = _resume.joined(make("a b", notes=("busy", "long")), before, ["b"])
    assert (joined.complete, joined.interrupted) == (False, True)
    assert joined.notes == ("busy", "b were timed later than the other forms, whose times are of 2026-01-01", "long")
    assert _resume.joined(joined, before, ()) is joined
    assert _resume.joined(joined, None, ["b"]) is joined


# ------------------------------------------------ a whole tuning


@pytest.fixture
def measured(monkeypatch, quick):
    """Texts of the plans that trials measured so far."""
    found, real = [], _trial.Bench.measure

    def counted(bench, plans, best=1.0):
        found.extend(map(str, plans))
        return real(bench, plans, best)

    monkeypatch.setattr(_trial.Bench, "measure", counted)
    return found


def of_older_version(*without):
    """Makes the stored record one of an autoloop that did not have these forms, nor trials of them."""
    store = _decide.store_of(_config.current())
    ((key, record),) = store.items()
    forms = " ".join(name for name in record.environment["forms"].split() if name not in without)
    trials = tuple(t for t in record.trials if not any(name in t.plan for name in without))
    old = record.replace(trials=trials, winner="0=unroll(3)", environment={**record.environment, "forms": forms})
    store.put(key, old)
    return old


def stored():
    ((_, record),) = _decide.store_of(_config.current()).items()
    return record


FORMS = ["unroll", "inline", "eager"]


def test_one_more_form_times_only_that_form_and_the_baseline(measured, tunings):
    autoloop(total, forms=FORMS).warmup(XS)
    old = of_older_version("inline")
    assert old.complete
    measured.clear()
    fun = autoloop(total, forms=FORMS)
    assert_same(jax.jit(total)(XS), fun(XS))
    assert set(measured) == {"as-written", "0=inline"}
    new = stored()
    assert {t.plan for t in new.trials} >= {t.plan for t in old.trials} | {"0=inline"}
    assert new.trial("0=unroll(3)").replace(spent_s=0, breakeven_calls=None) == old.trial("0=unroll(3)").replace(
        spent_s=0, breakeven_calls=None
    )
    assert new.complete
    assert new.spent_s > old.spent_s
    assert any("inline were timed later" in note for note in new.notes)
    autoloop(total, forms=FORMS)(XS)
    assert len(tunings) == 2


def test_a_form_that_nothing_can_use_is_looked_for_once(measured, tunings):
    autoloop(total, forms=["unroll", "vmap"]).warmup(XS)
    of_older_version("vmap")  # the loop carries a dependence, so vmap is not legal
    measured.clear()
    autoloop(total, forms=["unroll", "vmap"]).warmup(XS)
    assert set(measured) == {"as-written"}
    assert stored().winner.startswith("0=unroll")
    autoloop(total, forms=["unroll", "vmap"]).warmup(XS)
    assert len(tunings) == 2


def test_in_mode_cached_a_record_without_the_new_form_is_used_as_it_is(measured, monkeypatch):
    autoloop(total, forms=FORMS).warmup(XS)
    old = of_older_version("inline")
    measured.clear()
    monkeypatch.setenv("AUTOLOOP_MODE", "cached")
    assert str(autoloop(total, forms=FORMS).plan(XS)) == "0=unroll(3)"
    assert_same(jax.jit(total)(XS), autoloop(total, forms=FORMS)(XS))
    assert measured == []
    assert stored() == old


def test_an_interrupt_of_the_new_form_leaves_the_old_record(measured, monkeypatch):
    autoloop(total, forms=FORMS).warmup(XS)
    old = of_older_version("inline")
    real = _trial.Bench.measure

    def interrupted(bench, plans, best=1.0):
        if "0=inline" in map(str, plans):
            raise KeyboardInterrupt
        return real(bench, plans, best)

    monkeypatch.setattr(_trial.Bench, "measure", interrupted)
    with pytest.raises(KeyboardInterrupt):
        autoloop(total, forms=FORMS)(XS)
    assert stored() == old


def test_a_plan_of_another_version_among_the_trials_is_left_out(measured):
    autoloop(total, forms=FORMS).warmup(XS)
    old = of_older_version("inline")
    store = _decide.store_of(_config.current())
    ((key, _),) = store.items()
    strange = [Trial(text, ratio=0.1, rounds=99) for text in ("eagerly", "0=fused(3)", "7=unroll(2)")]
    store.put(key, old.replace(trials=(*old.trials, *strange)))
    autoloop(total, forms=FORMS).warmup(XS)
    assert {"eagerly", "0=fused(3)", "7=unroll(2)"} & {t.plan for t in stored().trials} == set()
    assert stored().trial("0=inline") is not None
