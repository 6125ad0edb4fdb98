"""Bars over the outermost loop of a call: what runs meanwhile, that results are the same, and Ctrl-C."""

import contextlib
import io
import signal
import subprocess
import sys
import types
import warnings

import jax
import jax.numpy as jnp
import pytest
from helpers import assert_same, ramp

import autoloop
from autoloop import AutoloopWarning, _pace, _progress, _tune, settings
from autoloop._call import Call
from autoloop._decision import AS_WRITTEN


class Bar:
    """Stands in for tqdm; `stop` is raised once so many iterations are done."""

    made: list = []
    stop = None

    def __init__(self, **given):
        self.given, self.n, self.closed = given, 0, False
        Bar.made.append(self)

    def update(self, n):
        self.n += n
        if Bar.stop is not None and self.n >= Bar.stop:
            raise KeyboardInterrupt

    def close(self):
        self.closed = True


@pytest.fixture
def bars(monkeypatch):
    Bar.made, Bar.stop = [], None
    monkeypatch.setitem(sys.modules, "tqdm.auto", types.SimpleNamespace(tqdm=Bar))
    return Bar.made


def nest(x, ks):
    def step(c, k):
        c, _ = jax.lax.scan(lambda d, _: (jnp.tanh(d) + k, None), c, None, length=2)
        return c, c.sum()

    return jax.lax.scan(step, x, ks)


X, KS = ramp(3), ramp(7)


def decorated(fun=nest, **options):
    return autoloop.autoloop(**{"mode": "cached", **options})(fun)


def watched_plan(function):
    (found,) = function._watches._known.values()
    return found if isinstance(found, str) else found.plan


# ---------------------------------------------------------------- what runs


def test_the_option_and_the_context_show_a_bar_over_the_outermost_loop(bars):
    by_option, by_context = decorated(progress=True), decorated()
    assert_same(by_option.using("0=python(1)")(X, KS), by_option(X, KS))
    with autoloop.progress():
        assert_same(jax.jit(nest)(X, KS), by_context(X, KS))
    by_context(X, KS)
    assert [(bar.given["total"], bar.n, bar.closed) for bar in bars] == [(7, 7, True)] * 2
    assert bars[0].given["desc"] == "test_watch.nest"


@pytest.mark.parametrize("plan", ["0=python(3)", "0=python(1) 0/0=python(2)", "0=eager", "0=python(2) 0/0=unroll(2)"])
def test_a_plan_in_force_with_a_python_loop_outside_stays_as_it_is(bars, plan):
    function = decorated()
    expected = function.using(plan)(X, KS)
    with settings(plan=plan), autoloop.progress():
        got = function(X, KS)
    for one, other in zip(expected, got, strict=True):
        assert one.tobytes() == other.tobytes()
    assert str(watched_plan(function)) == plan
    assert bars[0].n == 7


def test_else_the_outermost_loop_runs_in_steps_and_the_loops_inside_as_planned(bars):
    function = decorated()
    with settings(plan="0=unroll(2) 0/0=inline"), autoloop.progress():
        assert_same(jax.jit(nest)(X, KS), function(X, KS))
    assert str(watched_plan(function)) == "0=python(1) 0/0=inline"


def test_the_winner_of_a_tuning_is_watched(bars, quick):
    function = decorated(mode="tune", forms=["python"], progress=True)
    function(X, KS)
    assert function.plan(X, KS).choice((0,)).form == "python"
    assert watched_plan(function) == function.plan(X, KS)


@pytest.mark.parametrize("reverse", [False, True])
def test_steps_of_any_length_give_the_same_results(bars, reverse, monkeypatch):
    def fun(x, ks):
        return jax.lax.scan(lambda c, k: (c * 2 + k, c), x, ks, reverse=reverse)

    given = iter([1, 1, 4, 4, 2, 9])
    monkeypatch.setattr(_pace.Pace, "step", lambda pace, chunk, left: min(next(given), left))
    function = decorated(fun)
    x, ks = jnp.arange(3), jnp.arange(17)
    with autoloop.progress():
        assert_same(jax.jit(fun)(x, ks), function(x, ks))
    assert bars[0].n == 17


def test_the_bar_is_over_the_loop_with_the_most_work(bars):
    def fun(x, ks):
        short, _ = jax.lax.scan(lambda c, _: (c + 1, None), x, None, length=3)
        return jax.lax.scan(lambda c, k: (c * k, None), short, ks)[0]

    function = decorated(fun, progress=True)
    assert_same(jax.jit(fun)(X, KS), function(X, KS))
    assert str(watched_plan(function)) == "1=python(1)"


def test_donated_arguments_are_consumed_as_ever(bars):
    function = decorated(progress=True, donate_argnums=0)
    x = jnp.array(X)
    function(x, KS)
    assert x.is_deleted()


def test_an_empty_loop_shows_an_empty_bar(bars):
    function = decorated(progress=True)
    assert_same(jax.jit(nest)(X, KS[:0]), function(X, KS[:0]))
    assert [(bar.n, bar.closed) for bar in bars] == [(0, True)]


def test_real_tqdm_shows_iterations_per_second(monkeypatch):
    pytest.importorskip("tqdm")
    text = io.StringIO()
    monkeypatch.setattr(sys, "stderr", text)
    decorated(progress=True)(X, KS)
    assert "test_watch.nest: 100%" in text.getvalue()
    assert "7/7" in text.getvalue()
    assert "it/s" in text.getvalue()


def test_the_bar_comes_less_often_where_it_goes_to_a_file(monkeypatch, bars):
    for is_terminal in (True, False):
        monkeypatch.setattr(sys.stderr, "isatty", lambda answer=is_terminal: answer, raising=False)
        _progress.loop_bar("f", 3)
    assert [bar.given["mininterval"] for bar in bars] == [0.1, 10.0]


# ---------------------------------------------------------------- where there is no bar


def test_under_a_trace_there_is_no_bar(bars):
    function = decorated(progress=True)
    with autoloop.progress():
        assert_same(jax.jit(nest)(X, KS), jax.jit(function)(X, KS))
        jax.grad(lambda x: function(x, KS)[0].sum())(X)
    assert bars == []


def test_mode_off_is_plain_jit(bars):
    with settings(mode="off"), autoloop.progress():
        decorated()(X, KS)
    assert bars == []


def _none(x, ks):
    return x + ks[0]


def _printing(x, ks):
    def step(c, k):
        jax.debug.callback(lambda _: None, k)
        return c + k, None

    return jax.lax.scan(step, x, ks)[0]


def _in_cond(x, ks):
    return jax.lax.cond(x[0] > 0, lambda: nest(x, ks)[0], lambda: x)


WITHOUT = [
    (_none, {}, "there is no loop in the program"),
    (_printing, {}, "the body has side effects"),
    (_in_cond, {}, "a Python loop can't stand inside a cond or while"),
    (nest, {"bitwise": True}, "bitwise=True, and as-written is not a Python loop"),
]


@pytest.mark.parametrize(("fun", "options", "reason"), WITHOUT, ids=["none", "printing", "cond", "bitwise"])
def test_where_no_bar_can_be_it_is_said_once_and_the_call_runs_as_usual(bars, fun, options, reason):
    function = decorated(fun, **options)
    with autoloop.progress():
        with pytest.warns(AutoloopWarning, match=rf"no bar over test_watch.*{reason}.*; it runs as usual"):
            assert_same(jax.jit(fun)(X, KS), function(X, KS))
        function(X, KS)
    assert bars == []


def test_by_option_it_is_said_once_too_and_the_winner_runs(bars, quick):
    function = decorated(_none, progress=True, mode="tune")
    with pytest.warns(AutoloopWarning, match="there is no loop"):
        function(X, KS)
    assert_same(jax.jit(_none)(X, KS), function(X, KS))


def test_without_tqdm_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    with pytest.warns(AutoloopWarning, match=r"tqdm is not installed: pip install 'autoloop\[progress\]'; it runs"):
        assert_same(jax.jit(nest)(X, KS), decorated(progress=True)(X, KS))


def test_a_python_loop_that_a_trial_found_wrong_is_not_used(bars, quick, monkeypatch):
    def retouched(request):
        wrong = {"status": autoloop.Status.WRONG, "reason": "output 0 differs", "run_s": None}
        return _tune.trial_all(request, lambda t: t if t.plan == "as-written" else t.replace(**wrong))

    monkeypatch.setattr(_tune, "tune", retouched)
    function = decorated(mode="tune", forms=["python"], progress=True)
    with pytest.warns(AutoloopWarning, match=r"0=python\(\d+\) wrong: output 0 differs"):
        function(X, KS)
    assert bars == []


def test_several_processes_show_no_bar(bars):
    function = decorated(progress=True)
    call = Call.of(function._function, (X, KS), {})
    with pytest.warns(AutoloopWarning, match="several processes run it together"):
        assert function._watches.find(call, AS_WRITTEN, "tune", lambda call: "two processes") is None
    assert bars == []


def test_a_thread_that_comes_meanwhile_runs_as_usual(bars):
    function = decorated(progress=True)
    function(X, KS)
    (watched,) = function._watches._known.values()
    with watched.lock:
        assert_same(jax.jit(nest)(X, KS), function(X, KS))
    function(X, KS)
    assert len(bars) == 2


# ---------------------------------------------------------------- Ctrl-C


@pytest.mark.parametrize("plan", ["as-written", "0=python(1) 0/0=python(1)"])
def test_ctrl_c_stops_between_steps_and_leaves_everything_usable(bars, plan):
    function = decorated(donate_argnums=0)
    Bar.stop, x = 2, jnp.array(X)
    with settings(plan=plan), autoloop.progress():
        with pytest.raises(KeyboardInterrupt) as stop:
            function(x, KS)
        assert stop.value.__context__ is None
        assert bars[0].closed
        assert 2 <= bars[0].n < 7
        Bar.stop = None
        assert not x.is_deleted()
        assert_same(jax.jit(nest)(X, KS), function(x, KS))
    assert bars[1].n == 7


SLEEPER = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
import jax, jax.numpy as jnp, numpy as np
import autoloop

def slow(c):
    time.sleep(0.05)
    return c

@autoloop.autoloop(mode="cached", progress=True)
def f(x):
    def step(c, _):
        c = jax.pure_callback(slow, jax.ShapeDtypeStruct((), jnp.float32), c + 1)
        return c, None
    return jax.lax.scan(step, x, None, length=100_000)[0]

print("ready", flush=True)
try:
    f(jnp.float32(0))
except KeyboardInterrupt as stop:
    # Where it falls into the compilation of a step, JAX adds a cause: the line of the user's function.
    print("stopped", stop.__context__, len(stop.args))
print(jax.jit(lambda x: x + 1)(1))
"""


def test_a_real_sigint_stops_a_long_loop(start_python):
    pytest.importorskip("tqdm")
    process = start_python(SLEEPER)
    assert process.stdout.readline() == "ready\n"
    shown = ""
    with contextlib.suppress(StopIteration):
        while "it/s" not in shown and "s/it" not in shown:  # the bar moves, so the loop runs
            shown += process.stderr.read(1)
    out = ""
    for _ in range(5):  # Python drops an interrupt that falls into a finalizer; a person presses again
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            out, _ = process.communicate(timeout=20)
            break
    assert out.splitlines() == ["stopped None 0", "2"]


# ---------------------------------------------------------------- what changes between two calls


@pytest.mark.parametrize("again", [jax.clear_caches, None])
def test_a_watched_call_takes_in_what_the_function_reads_where_jit_does(again, bars):
    weight = [2.0]

    def body(x, ks):
        return jax.lax.scan(lambda c, k: (c + weight[0] * k, c), x, ks)

    fun, plain = decorated(body, progress=True), jax.jit(body)
    assert_same(fun(0.0, KS), plain(0.0, KS))
    weight[0] = 3.0
    (again or (lambda: None))()
    assert_same(fun(0.0, KS), plain(0.0, KS))


def test_a_watched_call_sees_a_mesh_in_force(bars):
    def names(xs):
        mesh = jax.sharding.get_abstract_mesh()
        return jax.lax.scan(lambda c, x: (c + len(mesh.axis_names) * x, None), 0.0, xs)[0]

    fun = decorated(names, progress=True)
    assert fun(KS) == 0
    with jax.set_mesh(jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))):
        assert fun(KS) == KS.sum()
    assert fun(KS) == 0


def test_a_watched_program_is_kept_from_call_to_call(bars):
    fun = decorated(progress=True)
    fun(X, KS)
    (known,) = fun._watches._known.values()
    fun(X, KS)
    assert [*fun._watches._known.values()] == [known]
    fun.forget(X, KS)


# ---------------------------------------------------------------- a standard error that is none


class _WritesOnly:
    def write(self, text):
        return len(text)


class _Gone(io.StringIO):
    def write(self, text):
        raise BrokenPipeError

    def isatty(self):
        return True


def _closed():
    stream = io.StringIO()
    stream.close()
    return stream


@pytest.mark.parametrize("stderr", [None, _WritesOnly(), _Gone(), _closed()], ids=["none", "object", "gone", "closed"])
def test_a_call_runs_whatever_standard_error_is(stderr, monkeypatch):
    monkeypatch.setattr(sys, "stderr", stderr)
    fun = decorated(progress=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AutoloopWarning)  # there can be no bar
        for _ in range(2):
            assert_same(fun(X, KS), jax.jit(nest)(X, KS))
    monkeypatch.setattr(_progress, "_QUIET_S", 0.0)
    shown = _progress.Progress("f", 10.0, None)
    shown.step("0=inline", 1.0)
    shown.close()


def test_a_bar_that_fails_costs_the_bar_only(bars, monkeypatch):
    monkeypatch.setattr(Bar, "update", lambda self, n: 1 / 0)
    monkeypatch.setattr(Bar, "close", lambda self: 1 / 0)
    fun = decorated(progress=True)
    for _ in range(2):
        assert_same(fun(X, KS), jax.jit(nest)(X, KS))
    (known,) = fun._watches._known.values()
    assert not known.lock.locked()
