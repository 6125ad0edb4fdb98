"""Listeners hear of each finished record, and can't hurt the call that made it."""

import logging
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import autoloop
from autoloop import _config as settings
from autoloop import _listeners
from autoloop._call import Call

XS = jnp.arange(4.0)


@pytest.fixture(autouse=True)
def nobody_listens():
    yield
    assert _listeners._listeners == {}


@pytest.fixture
def heard():
    found = []
    remove = autoloop.on_record(found.append)
    yield found
    remove()


@pytest.fixture
def total(quick):
    @autoloop.autoloop(forms=["inline"], budget_s=60)
    def total(xs):
        return lax.scan(lambda c, x: (c * 0.5 + x, None), 0.0, xs)[0]

    return total


def test_a_record_is_heard_of_once(total, heard):
    total(XS)
    total(XS)
    assert heard == [total.report(XS)]
    assert heard[0].winner == "0=inline"


def test_what_is_remembered_or_not_tuned_is_not_heard_of(total, heard):
    total(XS)
    again = autoloop.autoloop(forms=["inline"], budget_s=60)(total.__wrapped__)
    again(XS)
    autoloop.autoloop(jnp.sin)(XS)
    jax.jit(total)(jnp.arange(5.0))
    assert len(heard) == 1


def test_a_tuning_that_failed_is_heard_of(total, heard, monkeypatch):
    def fail(request):
        raise OSError("no such device")

    monkeypatch.setattr(autoloop._tune, "tune", fail)
    with pytest.warns(autoloop.AutoloopWarning, match="no such device"):
        total(XS)
    assert "no such device" in heard[0].verdict


def test_a_record_that_a_whole_call_demotes_is_heard_of_again(total, heard):
    total(XS)
    decider, call, current = total._decider, Call.of(total._function, (XS,), {}), settings.current()
    (name,) = decider._known
    decider._known[name] = replace(decider._known[name], whole_s=1.0)
    decider.confirm(call, current, 2.0)
    assert [record.winner for record in heard] == ["0=inline", "as-written"]


@pytest.mark.parametrize(("seconds", "winner"), [(3.2, "0=inline"), (3.4, "as-written")])
def test_a_plan_that_was_chosen_though_it_runs_slower_is_held_to_its_own_time(total, seconds, winner):
    total(XS)
    decider, call, current = total._decider, Call.of(total._function, (XS,), {}), settings.current()
    (name,) = decider._known
    record = decider._known[name].record
    slow = record.replace(trials=tuple(t.replace(ratio=3.0) if t.plan == record.winner else t for t in record.trials))
    decider._known[name] = replace(decider._known[name], record=slow, whole_s=1.0)
    assert str(decider.confirm(call, current, seconds).plan) == winner


def test_listeners_are_removed_one_by_one(total):
    found = []
    first, second = autoloop.on_record(found.append), autoloop.on_record(found.append)
    first()
    first()
    total(XS)
    second()
    total(jnp.arange(5.0))
    assert len(found) == 1


def test_what_a_listener_raises_is_logged_and_the_others_are_told(total, heard, caplog):
    def broken(record):
        raise ZeroDivisionError("mine")

    remove = autoloop.on_record(broken)
    last = []
    remove_last = autoloop.on_record(last.append)
    with caplog.at_level(logging.ERROR, "autoloop"):
        np.testing.assert_allclose(total(XS), jax.jit(total.__wrapped__)(XS))
    remove()
    remove_last()
    (line,) = caplog.records
    assert line.name == "autoloop"
    assert "broken" in line.getMessage()
    assert line.exc_info[0] is ZeroDivisionError
    assert len(heard) == len(last) == 1


def test_a_listener_may_call_the_function(total):
    found = []
    remove = autoloop.on_record(lambda record: found.append(total(XS)))
    total(XS)
    remove()
    assert len(found) == 1


def test_a_tuning_adds_no_log_handler(total):
    logger = logging.getLogger("autoloop")
    before = logger.handlers[:], logger.level, logger.propagate
    total(XS)
    assert (logger.handlers, logger.level, logger.propagate) == before == ([], before[1], True)


@pytest.mark.parametrize("value", [None, "print", 3])
def test_only_a_function_can_listen(value):
    with pytest.raises(TypeError, match=rf"^on_record takes a function of a record; got {value!r}$"):
        autoloop.on_record(value)
