"""What a tuning takes over from records of the same program: under other versions, and with other sizes."""

import types

import jax
import jax.numpy as jnp
import pytest
from helpers import assert_same, ramp
from jax import lax

from autoloop import _config, _signature, _stores, _timing, autoloop

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
