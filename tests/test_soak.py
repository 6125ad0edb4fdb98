"""A long run: threads of two processes on one store, ever changing shapes; nothing grows beyond plain jit's.

`python -m pytest -m soak` takes 30 minutes; AUTOLOOP_SOAK_S says otherwise.
"""

import json
import os

import pytest

from autoloop._store import Store

SECONDS = float(os.environ.get("AUTOLOOP_SOAK_S", "1800"))
SIGNATURES = 200
#: Beyond plain jit's: fragments of the heap, sqlite's pages; a leak of a kilobyte a call would be gigabytes.
_MORE_MB, _MORE_FILES = 40, 4

RUN = """
import gc, json, os, threading, time, warnings
import fakes, jax, jax.numpy as jnp
from autoloop import autoloop

warnings.simplefilter("always")
told = []
warnings.showwarning = lambda message, *rest: told.append(str(message))
fakes.make_quick()
signatures, seconds, plain = {signatures}, {seconds}, {plain}

def make():
    def step(w, xs):
        return jax.lax.scan(lambda c, x: (0.9 * c + 0.1 * jnp.tanh(c * x), c.sum()), w, xs)
    return jax.jit(step) if plain else autoloop(forms=["inline", "unroll"], donate_argnums=0)(step)

step = make()
inputs = [(jnp.ones(size), jnp.ones((3, size))) for size in range(1, signatures + 1)]
calls, errors, end = [0], [], [float("inf")]

def train(first):
    number = first
    while time.monotonic() < end[0]:
        w, xs = inputs[number % signatures]
        try:
            step(w + 0, xs)
        except Exception as error:
            errors.append(repr(error))
        calls[0] += 1
        number += 7
        if number % 5_000 < 7 and first == 0:  # as a program that starts anew
            make()(w + 0, xs)

def seen():
    gc.collect()
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6, len(os.listdir("/proc/self/fd"))

for w, xs in inputs:  # what every program pays once
    step(w + 0, xs)
    step(w + 0, xs)
end[0] = time.monotonic() + seconds / 4
def together():
    threads = [threading.Thread(target=train, args=(first,)) for first in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
together()
before = seen()
end[0] = time.monotonic() + seconds * 3 / 4
together()
after = seen()
print(json.dumps({{"mb": after[0] - before[0], "files": after[1] - before[1], "calls": calls[0],
    "errors": errors[:3], "told": told[:3]}}))
"""


@pytest.mark.soak
@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="memory is not told here")
def test_nothing_grows_and_nothing_is_lost(start_python, own_store):
    plain, *ours = [
        start_python(RUN.format(signatures=SIGNATURES, seconds=SECONDS, plain=plain)) for plain in (True, False, False)
    ]
    found = []
    for process in (plain, *ours):
        out, err = process.communicate(timeout=2 * SECONDS + 1200)
        assert process.returncode == 0, err
        found.append(json.loads(out))
    print(*found, sep="\n")
    for one in found[1:]:
        assert one["errors"] == []
        assert one["told"] == []
        assert one["mb"] <= max(found[0]["mb"], 0) + _MORE_MB
        assert one["files"] <= found[0]["files"] + _MORE_FILES
        assert one["calls"] > 1000
    store = Store(own_store)
    arguments = {record.key["arguments"] for _, record in store.items()}
    store.close()
    assert {f"f32[{size}] f32[3,{size}]" for size in range(1, SIGNATURES + 1)} <= arguments
