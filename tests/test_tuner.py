"""What a tuning takes over from records of the same program: under other versions, and with other sizes."""

import contextlib
import types

import jax
import jax.numpy as jnp
import pytest
from helpers import assert_same, ramp
from jax import lax

from autoloop import AutoloopWarning, _config, _signature, _stores, _timing, autoloop
from autoloop._store import Store

XS = ramp(3, 2)

pytestmark = pytest.mark.usefixtures("quick")


def total(xs):
    return lax.scan(lambda c, x: (c * 0.5 + x, c.sum()), jnp.zeros(xs.shape[1:]), xs)


def another_jaxlib(monkeypatch):
    monkeypatch.setattr(_signature, "version", lambda name: "99.0")


def exactly(seconds):
    interval = _timing.Interval(seconds, seconds, seconds)
    return _timing.Timing(interval, interval, rounds=6)


def test_a_winner_under_other_versions_is_checked_again_and_kept_if_it_still_wins(monkeypatch, tunings):
    first = autoloop(total, forms=["unroll", "inline"]).warmup(XS)
    assert len(first.trials) > 2
    another_jaxlib(monkeypatch)
    fun = autoloop(total, forms=["unroll", "inline"])
    assert fun.plan(XS) is None
    assert_same(jax.jit(total)(XS), fun(XS))
    record = fun.report(XS)
    assert len(tunings) == 2
    assert [t.plan for t in record.trials] == ["as-written", first.winner]
    assert record.winner == first.winner
    (note,) = record.notes
    assert all(part in note for part in (first.winner, "jaxlib 99.0", first.key["versions"], "checked again"))


def test_a_winner_under_other_versions_that_lost_is_demoted(monkeypatch):
    first = autoloop(total, forms=["unroll", "inline"]).warmup(XS)
    another_jaxlib(monkeypatch)
    slow = lambda base, rest, *args, **kwargs: ([exactly(2.0) for _ in rest], exactly(1.0))
    monkeypatch.setattr(_timing, "race", slow)
    record = autoloop(total, forms=["unroll", "inline"]).warmup(XS)
    assert record.winner == "as-written"
    assert record.trial(first.winner).ratio == 2.0
    assert len(record.trials) == len(first.trials)


def test_a_hint_that_the_options_forbid_is_not_taken(monkeypatch):
    autoloop(total, forms=["inline"]).warmup(XS)
    another_jaxlib(monkeypatch)
    record = autoloop(total, forms=["unroll"]).warmup(XS)
    assert record.notes == ()
    assert record.trial("0=inline") is None


def test_a_stored_plan_of_a_newer_autoloop_is_no_hint(monkeypatch):
    record = autoloop(total, forms=["inline"]).warmup(XS)
    odd = record.replace(winner="0=warp(9)", trials=(*record.trials, record.trials[1].replace(plan="0=warp(9)")))
    _stores.store_of(_config.current()).put(_signature.digest(record.key), odd)
    another_jaxlib(monkeypatch)
    assert autoloop(total, forms=["inline"]).warmup(XS).winner == "0=inline"


def test_the_driver_of_an_accelerator_is_among_the_versions():
    client = types.SimpleNamespace(platform_version="PJRT C API\ncuda 12090")
    gpu = types.SimpleNamespace(platform="gpu", client=client)
    assert _signature.versions_part(gpu).endswith("driver PJRT C API cuda 12090")
    assert "driver" not in _signature.versions_part(jax.devices()[0])


def test_a_record_that_another_process_stored_while_this_one_waited_is_taken(monkeypatch, tunings):
    record = autoloop(total, forms=["inline"]).warmup(XS)
    key = _signature.digest(record.key)
    _stores.store_of(_config.current()).delete(key)
    real = Store.lock

    @contextlib.contextmanager
    def waits(self, *args):
        with real(self, *args) as alone:
            self.put(key, record)
            yield alone

    monkeypatch.setattr(Store, "lock", waits)
    assert autoloop(total, forms=["inline"]).warmup(XS) == record
    assert len(tunings) == 1


def test_a_killed_process_holds_no_lock(own_store, python):
    script = """
import os
from pathlib import Path
from autoloop._store import Store
with Store(Path(os.environ["FOLDER"])).lock("device", 600, 0) as had:
    print(had, flush=True)
    os._exit(0)
"""
    assert python(script, FOLDER=str(own_store)).strip() == "True"
    with Store(own_store).lock("device", 600, 30) as had:
        assert had


def test_what_jit_does_not_consume_a_python_loop_does_not_either():
    def fun(unused, other, carry, xs):
        return lax.scan(lambda c, x: (c + x, c.sum()), carry + other[0], xs)

    args = [jnp.ones(2), jnp.ones(5), jnp.ones(2), XS]
    pinned = autoloop(fun, donate_argnums=(0, 1, 2)).using("0=python(1)")
    wanted = jax.jit(fun)(*args)
    assert_same(wanted, pinned(*args))
    assert [a.is_deleted() for a in args] == [False, False, True, False]


def test_bodies_without_an_equation_are_tuned():
    fun = autoloop(lambda w, xs: lax.scan(lambda c, x: ((c[1], c[0]), x), (w, w + 1), xs), budget_s=2)
    assert len(fun.warmup(1.0, XS).trials) > 2


def test_a_process_without_a_home_runs_all_the_same(monkeypatch):
    monkeypatch.setenv("AUTOLOOP_CACHE_DIR", "~nosuchuser/x")
    with pytest.warns(AutoloopWarning, match="nosuchuser|home"):
        assert_same(jax.jit(total)(XS), autoloop(total, forms=["inline"])(XS))


@pytest.mark.parametrize("form", ["inline", "python"])
def test_an_argument_may_be_called_self(form):
    fun = autoloop(lambda self, xs: lax.scan(lambda c, x: (c * 0.5 + x, x), self, xs), forms=[form])
    for _ in range(2):
        assert fun(self=XS[0], xs=XS)[1].shape == XS.shape
    assert fun.using("0=inline")(self=XS[0], xs=XS)[1].shape == XS.shape


def test_the_first_call_says_in_the_log_that_it_tunes_and_for_how_long_later_ones_nothing(caplog):
    fun = autoloop(total, forms=["inline"], budget_s=7)
    with caplog.at_level("INFO", "autoloop"):
        fun(XS)
        fun(XS)
    lines = [r.getMessage() for r in caplog.records if r.getMessage().startswith("tuning ")]
    assert lines == ["tuning test_tuner.total(f32[3,2]) for at most 7 s; later calls use the winner"]
