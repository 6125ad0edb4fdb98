"""Accidents of processes and devices: whatever happens, calls return what they should and the store is sound."""

import itertools
import multiprocessing
import os
import signal
import time
import warnings

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from autoloop import Record, Trial, _runner, _tune, autoloop
from autoloop._store import Store

X = jnp.arange(3.0)


def summed(x):
    return lax.scan(lambda c, _: (c * 0.5, c.sum()), x, None, length=6)


def same(got):
    for a, b in zip(got, jax.jit(summed)(X), strict=True):
        assert jnp.array_equal(a, b)


# ------------------------------------------------ killed


TUNING = """
import fakes, jax, jax.numpy as jnp
from autoloop import autoloop

fakes.make_quick()
fun = autoloop(forms=["inline", "unroll"])(lambda x: jax.lax.scan(lambda c, _: (c * 0.5, None), x, None, length=4)[0])
for size in range(1, 10_000):
    print("begins", size, flush=True)
    fun(jnp.ones(size))
    print("kept", size, fun.report(jnp.ones(size)).winner, flush=True)
"""


@pytest.mark.skipif(os.name != "posix", reason="no such signal here")
@pytest.mark.parametrize("kills", [2, pytest.param(50, marks=pytest.mark.slow)])
def test_a_tuning_that_is_killed_leaves_a_sound_store(kills, start_python, own_store):
    kept = 0
    for number in range(kills):
        process = start_python(TUNING)
        lines = iter(process.stdout.readline, "")
        after = 2 * number % 7 + 2  # of the records that earlier processes left, it tunes none anew
        for line in itertools.islice(lines, after):
            kept = max(kept, int(line.split()[1]) if line.startswith("kept") else 0)
        time.sleep(0.013 * (number % 11))
        process.send_signal(signal.SIGKILL)
        process.wait()
    store = Store(own_store)
    shapes = {record.key["arguments"]: record for _, record in store.items()}
    assert {f"f32[{size}]" for size in range(1, kept + 1)} <= set(shapes)
    assert all(record.trial(record.winner).ok and len(record.trials) > 1 for record in shapes.values())
    store.put("after", Record("after", {}, "as-written", (Trial("as-written"),)))
    assert store.get("after").function == "after"
    store.close()
    assert not [path.name for path in own_store.iterdir() if "damaged" in path.name]


IMPORTING = """
import os
from pathlib import Path
from autoloop import Record, Trial
from autoloop._store import Store
from kills import lines_of_killed

folder, kills, batch = Path({folder!r}), {kills}, 40

def take(name, go):
    store, number = Store(folder), 0
    while True:
        parts = {{"program": "x" * (50_000 if number % 2 else 10)}}  # half of them in files of their own
        record = Record("m.f", parts, "as-written", (Trial("as-written"),))
        store.put_all({{f"{{name}}-{{number}}-{{i}}": record for i in range(batch)}})
        os.write(go, f"{{name}}-{{number}}\\n".encode())
        number += 1

finished = lines_of_killed(kills, take)

groups = {{}}
for key, record in Store(folder).items():
    groups.setdefault(key.rpartition("-")[0], []).append(key)
print(len(finished) >= kills, set(finished) <= set(groups), {{len(keys) for keys in groups.values()}} == {{batch}})
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize("kills", [3, pytest.param(50, marks=pytest.mark.slow)])
def test_an_import_that_is_killed_takes_all_or_nothing(kills, python, tmp_path):
    assert python(IMPORTING.format(folder=str(tmp_path / "store"), kills=kills)).split() == ["True"] * 3


# ------------------------------------------------ devices


def failing(monkeypatch, step, make_error, every=1):
    """Every so manyth candidate fails in a step of its trial."""
    real, count = getattr(_runner.Runner, step), itertools.count()

    def run(self, plan, *args):
        if not plan.as_written and next(count) % every == 0:
            raise make_error()
        return real(self, plan, *args)

    monkeypatch.setattr(_runner.Runner, step, run)


@pytest.mark.parametrize("step", ["build", "first"])
def test_a_device_whose_memory_ends_at_every_second_candidate(step, quick, monkeypatch):
    failing(monkeypatch, step, lambda: jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory\nmore"), every=2)
    looped = autoloop(forms=["unroll", "inline"])(summed)
    same(looped(X))
    same(looped(X))
    record = looped.report(X)
    failed = [trial for trial in record.trials if trial.status == "failed"]
    assert {trial.reason for trial in failed} == {"JaxRuntimeError: RESOURCE_EXHAUSTED: out of memory"}
    assert len(failed) >= 1
    assert any(trial.ok for trial in record.trials if trial.plan != "as-written")
    assert record.trial(record.winner).ok


@pytest.mark.parametrize("step", ["lower", "build", "first", "sample"])
def test_candidates_that_all_fail_in_the_compiler(step, quick, monkeypatch):
    failing(monkeypatch, step, lambda: jax.errors.JaxRuntimeError("INTERNAL: an assertion of the compiler"))
    looped = autoloop(forms=["inline"])(summed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        same(looped(X))
    same(looped(X))
    assert looped.plan(X).as_written


def test_a_clock_that_goes_backwards_neither_hangs_nor_fails(quick, monkeypatch):
    ticks = itertools.count(1e6, -3600.0)
    monkeypatch.setattr(time, "perf_counter", lambda: next(ticks))
    monkeypatch.setattr(_tune, "now", lambda later_s=0.0: "1970-01-01T00:00:00+00:00")
    looped = autoloop(forms=["inline", "unroll"])(summed)
    same(looped(X))
    same(looped(X))
    assert looped.report(X).trials[0].ok
    assert str(looped.report(X))


# ------------------------------------------------ processes


def _in_child(queue, store):
    os.environ["AUTOLOOP_CACHE_DIR"] = store
    found = autoloop(forms=["inline"])(summed)
    queue.put((str(found.plan(X)), [float(v) for v in found(X)[1]]))


def test_a_spawned_process_finds_what_its_parent_tuned(quick, own_store):
    looped = autoloop(forms=["inline"])(summed)
    want = [float(v) for v in looped(X)[1]]
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    child = context.Process(target=_in_child, args=(queue, str(own_store)))
    child.start()
    plan, got = queue.get(timeout=120)
    child.join(60)
    assert (plan, got, child.exitcode) == ("0=inline", want, 0)


FORKED = """
import os, warnings
import fakes, jax, jax.numpy as jnp
from autoloop import autoloop
warnings.filterwarnings("ignore", "os.fork")
fakes.make_quick()
fun = autoloop(forms=["inline"])(lambda x: jax.lax.scan(lambda c, _: (c * 0.5, None), x, None, length=4)[0])
fun(jnp.ones(3))
child = os.fork()
if not child:
    store = fun._decider and __import__("autoloop._stores")._stores
    (one,) = store.stores.values()
    found = [record.winner for _, record in one.items()]
    one.put("child", next(record for _, record in one.items()))
    os._exit(0 if found == ["0=inline"] else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
(one,) = __import__("autoloop._stores")._stores.stores.values()
print(one.get("child").winner, fun(jnp.ones(3)))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_uses_the_store_and_leaves_the_parent_in_peace(python):
    status, after = python(FORKED).splitlines()
    assert status == "0"
    assert after.startswith("0=inline [0.0625")


SHUTDOWN = """
import threading, fakes, jax, jax.numpy as jnp
from autoloop import autoloop, _runner
fakes.make_quick()
begun, real = threading.Event(), _runner.Runner.sample
def sample(self, plan, calls):
    begun.set()
    return real(self, plan, calls)
_runner.Runner.sample = sample
fun = autoloop({options})(lambda x: jax.lax.scan(lambda c, _: (jnp.sin(c), None), x, None, length=9)[0])
def work():
    for size in range(1, 1000):
        fun(jnp.ones(size))
threading.Thread(target=work, daemon=True).start()
assert begun.wait(60)
print("ends")
"""


@pytest.mark.parametrize("options", ["", "budget_s=0.2"])
def test_an_interpreter_that_ends_while_a_thread_tunes_says_nothing(options, start_python):
    process = start_python(SHUTDOWN.format(options=options))
    out, err = process.communicate(timeout=120)
    assert out == "ends\n"
    assert "autoloop" not in err, err
