"""Errors that a user's signal handler raises reach the user, wherever in a tuning they strike."""

import functools
import signal

import jax.numpy as jnp
import pytest
from jax import lax

from autoloop import _host, _runner, _signals, autoloop
from autoloop._store import Store

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="no such signals here")
X = jnp.arange(3.0)


class Late(Exception):
    """As a timeout's own class."""


def summed(x):
    return lax.scan(lambda c, _: (c * 0.5, None), x, None, length=3)[0]


def plain(number, frame):
    raise Late


class Object:
    def __call__(self, number, frame):
        raise RuntimeError("late")

    def method(self, number, frame):
        raise TimeoutError


def partly(error, number, frame):
    raise error


HANDLERS = {
    "a function": (plain, Late),
    "an object": (Object(), RuntimeError),
    "a method": (Object().method, TimeoutError),
    "a partial": (functools.partial(partly, ValueError("late")), ValueError),
    "nested partials": (functools.partial(functools.partial(partly, TypeError("late"))), TypeError),
}


@pytest.fixture
def handled():
    """Installs a handler of a signal."""
    before = signal.getsignal(signal.SIGUSR1)
    yield lambda handler: signal.signal(signal.SIGUSR1, handler)
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("step", ["lower", "build", "first", "sample"])
@pytest.mark.parametrize(("handler", "error"), HANDLERS.values(), ids=HANDLERS)
def test_it_is_no_failed_trial(step, handler, error, handled, quick, monkeypatch):
    real = getattr(_runner.Runner, step)

    def struck(self, plan, *args):
        if not plan.as_written:
            signal.raise_signal(signal.SIGUSR1)
        return real(self, plan, *args)

    monkeypatch.setattr(_runner.Runner, step, struck)
    handled(handler)
    looped = autoloop(forms=["inline"])(summed)
    with pytest.raises(error):
        looped(X)


def test_afterwards_the_function_is_tuned(handled, quick, monkeypatch):
    handled(plain)
    looped = autoloop(forms=["inline"])(summed)
    with monkeypatch.context() as patch:
        patch.setattr(_runner.Runner, "build", lambda *args: signal.raise_signal(signal.SIGUSR1))
        with pytest.raises(Late):
            looped(X)
    assert looped.plan(X) is None
    looped(X)
    assert str(looped.plan(X)) == "0=inline"


def test_the_same_errors_of_a_candidate_are_a_failed_trial(handled, quick, monkeypatch):
    handled(plain)
    real = _runner.Runner.build

    def build(self, plan):
        if not plan.as_written:
            raise RuntimeError("too hard")
        return real(self, plan)

    monkeypatch.setattr(_runner.Runner, "build", build)
    record = autoloop(forms=["inline"])(summed).warmup(X)
    assert record.trial("0=inline").reason == "RuntimeError: too hard"


def test_it_does_not_cost_the_store(handled, own_store, monkeypatch):
    handled(plain)
    store = Store(own_store)
    assert store.get("key") is None
    with monkeypatch.context() as patch:
        patch.setattr(store, "_open", lambda: signal.raise_signal(signal.SIGUSR1))
        with pytest.raises(Late):
            store.get("key")
        with pytest.raises(Late):
            store.note("key", lambda old: "new")
    assert not store._broken
    store.note("wanted:key", lambda old: "new")
    assert dict(store.notes("wanted:")) == {"wanted:key": "new"}
    store.close()


def _raised(run):
    try:
        run()
    except Exception as error:
        return error


def test_what_a_handlers_error_became_counts_but_not_what_was_handled_before(handled):
    handled(plain)

    def wrapped():
        try:
            signal.raise_signal(signal.SIGUSR1)
        except Late as error:
            raise RuntimeError("stopped") from error

    def handles():
        try:
            signal.raise_signal(signal.SIGUSR1)
        except Late:
            raise RuntimeError("another")  # noqa: B904

    assert _signals.from_handler(_raised(wrapped))
    assert not _signals.from_handler(_raised(handles))
    assert not _signals.from_handler(_raised(lambda: [][0]))
    assert not _signals.from_handler(Late())


def test_a_signal_in_the_middle_of_a_python_loop(handled, monkeypatch):
    """The call ends with the handler's error, and the next one is right."""
    handled(plain)
    pinned = autoloop(lambda x: lax.scan(lambda c, _: (jnp.sin(c), c.sum()), x, None, length=50)).using("0=eager")
    want, real, calls = pinned(X), _host.Piece.__call__, []

    def strike(self, *values):
        calls.append(self)
        if len(calls) == 20:
            signal.raise_signal(signal.SIGUSR1)
        return real(self, *values)

    with monkeypatch.context() as patch:
        patch.setattr(_host.Piece, "__call__", strike)
        with pytest.raises(Late):
            pinned(X)
    assert len(calls) == 20
    for a, b in zip(pinned(X), want, strict=True):
        assert jnp.array_equal(a, b)


def test_a_keyboard_interrupt_is_as_ever():
    assert not _signals.from_handler(KeyboardInterrupt())
