"""Real processes under `jax.distributed` on loopback: whatever their timings and stores say, all run one program."""

import json
import socket
import time

import pytest

from autoloop import _processes
from autoloop._together import Stopped

SCRIPT = """
import hashlib, json, os, sys, warnings
rank, count = int(os.environ["RANK"]), int(os.environ["COUNT"])
import jax, jax.numpy as jnp, numpy as np
jax.distributed.initialize(os.environ["ADDRESS"], count, rank)
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from autoloop import _config, _decide, _stores, _machine, _runner, _several, _signature, _timing, autoloop

_machine.calibrate = lambda: 0.0
_several._JOIN_S = 60.0
_timing.MAX_ROUNDS = 8
mesh = Mesh(np.array(jax.devices()), "x")
spread = NamedSharding(mesh, P(None, "x"))
xs = jax.make_array_from_process_local_data(spread, np.linspace(0, rank, 6, dtype=np.float32).reshape(3, 2))

def total(xs):
    return lax.scan(lambda c, x: (c * 0.5 + x.sum(), c + x), jnp.float32(0), xs)

# Each process is told other times: to each, another plan is the fastest.
real = _runner.Runner.sample
def sample(self, plan, calls):
    real(self, plan, 1)
    factor = {"as-written": 1.0, "0=unroll(2)": (0.2, 0.9, 0.8, 0.8), "0=unroll(3)": (0.8, 0.1, 0.3, 0.3)}
    factor = factor.get(str(plan), (0.3, 5.0, 0.1, 0.1))
    return 0.05 * (factor if isinstance(factor, float) else factor[rank])
_runner.Runner.sample = sample

def same(wanted, got):
    for a, b in zip(jax.tree.leaves(wanted), jax.tree.leaves(got), strict=True):
        assert a.sharding.is_equivalent_to(b.sharding, a.ndim), (a.sharding, b.sharding)
        for one, other in zip(a.addressable_shards, b.addressable_shards, strict=True):
            np.testing.assert_allclose(np.asarray(one.data), np.asarray(other.data), rtol=1e-5)

def program(fun, *args):
    # What a call of the function with these arguments runs.
    keyed = [candidate.planned.jitted for candidate in fun._keyed.values()]
    text = (keyed[0] if keyed else fun._fast).lower(*args).as_text()
    return hashlib.sha256(text.encode()).hexdigest()[:12]

def traced(fun, *args):
    return str(jax.make_jaxpr(lambda *a: fun(*a))(*args)).count("scan[")

def function():
    return autoloop(total, forms=["unroll", "inline"], budget_s=60)

store = _stores.store_of(_config.current())

def store_another(key, record):
    # Stores that say other things: each process has another winner, of four the last one has none.
    winner = ["0=inline", "as-written", "0=unroll(2)", "0=unroll(2)"][rank]
    if rank < max(2, count - 1):
        store.put(key, record.replace(winner=winner))

found = {}
for name, args in (("shared", (xs,)), ("local", (jnp.ones((3, 2)) * (rank + 1),))):
    cold, wanted = function(), jax.jit(total)(*args)
    for _ in range(2):
        same(wanted, cold(*args))
    stored = [item for item in store.items() if item[1].winner == "0=unroll(3)"]
    store_another(_signature.digest(cold.report(*args).key), cold.report(*args))
    warm = function()
    in_trace = traced(warm, *args)
    for _ in range(2):
        same(wanted, warm(*args))
    if rank == 0:
        store.clear()
    again = function()
    same(wanted, again(*args))
    plans = [str(fun.plan(*args)) for fun in (cold, warm, again)]
    found[name] = [plans, [program(fun, *args) for fun in (cold, warm, again)], in_trace]
    found["stored " + name] = len(stored)
    if rank == 0:
        store.clear()
print(json.dumps(found))
"""


def run_all(start_python, tmp_path, count):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    start = time.monotonic()
    running = [
        start_python(
            SCRIPT,
            RANK=str(rank),
            COUNT=str(count),
            ADDRESS=f"127.0.0.1:{port}",
            AUTOLOOP_CACHE_DIR=str(tmp_path / f"store{rank}"),
            XLA_FLAGS="--xla_force_host_platform_device_count=1",
            JAX_PLATFORMS="cpu",
        )
        for rank in range(count)
    ]
    ended = [process.communicate(timeout=max(1.0, 300 - time.monotonic() + start)) for process in running]
    for process, (_, err) in zip(running, ended, strict=True):
        assert process.returncode == 0, err
    print(*(err for _, err in ended), sep="\n")  # what was warned of, for where the rest fails
    return [json.loads(out.splitlines()[-1]) for out, _ in ended]


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 4])
def test_all_processes_run_the_same_program(count, start_python, tmp_path):
    found = run_all(start_python, tmp_path, count)
    for name in ("shared", "local"):
        # Only the process that decides stores what was found.
        assert [one.pop(f"stored {name}") for one in found] == [1] + [0] * (count - 1), found
    assert found == [found[0]] * count
    for name in ("shared", "local"):
        plans, programs, _ = found[0][name]
        # The plan that is fastest where it is slowest, which no process alone would have taken; what the
        # first process has stored; and again, where only the others have stored something.
        assert plans == ["0=unroll(3)", "0=inline", "0=unroll(3)"]
        assert programs[0] == programs[2] != programs[1]
    assert found[0]["local"][2] == 0
    # In a trace nothing is known of where the data is, so this has no plan there.
    assert found[0]["shared"][2] == 1


# ------------------------------------------------ texts in the coordination service


class Client:
    """The coordination service's client, as far as it is used; it says what it can't do as jaxlib does."""

    def __init__(self):
        self.texts, self.asked_ms = {}, []

    def key_value_set(self, key, text):
        if key in self.texts:
            raise RuntimeError(f"ALREADY_EXISTS: key {key} already exists.")
        self.texts[key] = text

    def key_value_try_get(self, key):
        if key not in self.texts:
            raise RuntimeError(f"NOT_FOUND: Config key {key} not found.")
        return self.texts[key]

    def blocking_key_value_get(self, key, timeout_ms):
        self.asked_ms.append(timeout_ms)
        if key not in self.texts:
            raise RuntimeError(f"DEADLINE_EXCEEDED: GetKeyValue() timed out with key: {key}")
        return self.texts[key]

    def key_value_delete(self, key):
        assert key.endswith("/")
        self.texts = {k: v for k, v in self.texts.items() if not k.startswith(key)}


def test_the_first_text_under_a_key_stands():
    values = _processes.KeyValues(Client())
    assert values.put("a/b", "one")
    assert not values.put("a/b", "two")
    assert values.get("a/b", 0.0) == values.get("a/b", 1.0) == "one"
    values.drop("a/")
    assert values.get("a/b", 0.0) is None


def test_a_wait_is_bounded_and_lets_interrupts_in():
    client, now = Client(), [0.0]

    def clock():
        now[0] += 0.4
        return now[0]

    assert _processes.KeyValues(client, clock).get("a", 2.0) is None
    assert len(client.asked_ms) > 1
    assert max(client.asked_ms) <= 1000


def test_a_service_that_is_gone_ends_the_talk():
    class Gone(Client):
        def key_value_set(self, key, text):
            raise RuntimeError("UNAVAILABLE: failed to connect")

    with pytest.raises(Stopped, match="coordination service failed: UNAVAILABLE"):
        _processes.KeyValues(Gone()).put("a", "b")


def test_one_process_is_no_group():
    assert _processes.group(()) is None


class Device:
    def __init__(self, process_index):
        self.process_index = process_index


class Sharding:
    def __init__(self, *processes):
        self.device_set = {Device(number) for number in processes}


@pytest.mark.parametrize(
    ("places", "ranks", "shared"),
    [
        ((None, None), (0, 1, 2, 3), False),
        ((Sharding(1),), (0, 1, 2, 3), False),
        ((None, Sharding(1, 2)), (1, 2), True),
        ((Sharding(0, 1, 2, 3), Sharding(1)), (0, 1, 2, 3), True),
    ],
)
def test_who_makes_a_call(places, ranks, shared, monkeypatch):
    monkeypatch.setattr(_processes.jax, "process_count", lambda: 4)
    monkeypatch.setattr(_processes.jax, "process_index", lambda: 1)
    found = _processes.group(places)
    assert (found.ranks, found.own, found.shared, found.transport) == (ranks, 1, shared, None)
