"""Real training: a GRU that reads digits row by row; one decorated call is one epoch.

The epoch donates its state, as a training loop would: what trials must not consume is here the only
copy of the parameters.
"""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from sklearn.datasets import load_digits

from autoloop import autoloop

pytestmark = pytest.mark.slow

HIDDEN, CLASSES, ROWS, PIXELS = 32, 10, 8, 8
BATCH, TRAINED_ON, EPOCHS = 32, 1440, 10
RATE, DECAY_1, DECAY_2 = 0.01, 0.9, 0.999

#: Largest difference of trained parameters, relative to the largest of each array. A form sums in another
#: order, and ten epochs of Adam carry an error of a last digit forward: 450 steps.
RTOL_STEPS, RTOL_EPOCHS = 1e-5, 1e-2


@functools.cache
def digits():
    """(minibatches of images and labels to train on, images and labels to test on)."""
    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    images, labels = (data.images[order] / 16).astype(np.float32), data.target[order].astype(np.int32)
    train = (images[:TRAINED_ON].reshape(-1, BATCH, ROWS, PIXELS), labels[:TRAINED_ON].reshape(-1, BATCH))
    return train, (images[TRAINED_ON:], labels[TRAINED_ON:])


def start():
    """Parameters and Adam's state, the same in every process."""
    rng = np.random.default_rng(1)

    def normal(*shape):
        return jnp.asarray(rng.normal(size=shape) / np.sqrt(shape[0]), jnp.float32)

    params = {
        "x": normal(PIXELS, 3 * HIDDEN),
        "h": normal(HIDDEN, 3 * HIDDEN),
        "bias": jnp.zeros(3 * HIDDEN),
        "out": normal(HIDDEN, CLASSES),
        "out_bias": jnp.zeros(CLASSES),
    }
    zeros = jax.tree.map(jnp.zeros_like, params)
    return {"params": params, "mean": zeros, "square": jax.tree.map(jnp.copy, zeros), "count": jnp.int32(0)}


def logits(params, images):
    """The inner loop: one GRU step a row."""

    def step(h, row):
        x = row @ params["x"] + params["bias"]
        g = h @ params["h"]
        x_reset, x_update, x_new = jnp.split(x, 3, -1)
        h_reset, h_update, h_new = jnp.split(g, 3, -1)
        update = jax.nn.sigmoid(x_update + h_update)
        new = jnp.tanh(x_new + jax.nn.sigmoid(x_reset + h_reset) * h_new)
        return update * h + (1 - update) * new, None

    h, _ = lax.scan(step, jnp.zeros((images.shape[0], HIDDEN)), images.swapaxes(0, 1))
    return h @ params["out"] + params["out_bias"]


def loss(params, images, labels):
    return -jnp.mean(jnp.sum(jax.nn.log_softmax(logits(params, images)) * jax.nn.one_hot(labels, CLASSES), -1))


def epoch(state, images, labels):
    """The outer loop: a step of Adam for each minibatch. Returns the state and the losses."""

    def step(state, batch):
        value, grads = jax.value_and_grad(loss)(state["params"], *batch)
        count = state["count"] + 1
        mean = jax.tree.map(lambda m, g: DECAY_1 * m + (1 - DECAY_1) * g, state["mean"], grads)
        square = jax.tree.map(lambda s, g: DECAY_2 * s + (1 - DECAY_2) * g * g, state["square"], grads)
        unbias_1, unbias_2 = 1 - DECAY_1**count, 1 - DECAY_2**count

        def moved(p, m, s):
            return p - RATE * (m / unbias_1) / (jnp.sqrt(s / unbias_2) + 1e-8)

        params = jax.tree.map(moved, state["params"], mean, square)
        return {"params": params, "mean": mean, "square": square, "count": count}, value

    return lax.scan(step, state, (images, labels))


def train(run, epochs=EPOCHS, batches=None):
    """The state after some epochs of `run`, and the losses of the last."""
    (images, labels), _ = digits()
    state = start()
    for _ in range(epochs):
        state, losses = run(state, images[:batches], labels[:batches])
    return state, losses


def accuracy(state):
    _, (images, labels) = digits()
    return float(np.mean(np.argmax(jax.jit(logits)(state["params"], images), -1) == labels))


def assert_close(wanted, got, rtol):
    assert jax.tree.structure(got) == jax.tree.structure(wanted)
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(wanted), jax.tree.leaves(got), strict=True):
        a, b = np.asarray(a), np.asarray(b)
        assert a.dtype == b.dtype
        error = np.max(np.abs(a - b)) / np.max(np.abs(a))
        assert error <= rtol, f"{jax.tree_util.keystr(path)} is off by {error:.1e}"


def decorated():
    # Forms that build quickly, so that the search ends before its budget on any machine.
    return autoloop(epoch, donate_argnums=0, budget_s=60, forms=["python", "eager"])


def train_and_print():
    """What the second process runs: trains, and prints how many tunings and trials it took."""
    import fakes

    from autoloop import _trial

    tunings, trials, measure = fakes.count_tunings(), [], _trial.Bench.measure
    _trial.Bench.measure = lambda self, plans, *args: trials.extend(plans) or measure(self, plans, *args)
    fun = decorated()
    (images, labels), _ = digits()
    state, _ = train(fun)
    plan = str(fun.plan(start(), images, labels))
    print(json.dumps([len(tunings), len(trials), accuracy(state), plan]))


@functools.cache
def plain():
    return jax.jit(epoch, donate_argnums=0)


def test_training_is_the_same_and_a_second_process_does_not_try_again(python, tunings):
    fun = decorated()
    (images, labels), _ = digits()
    wanted, _ = train(plain())
    got, losses = train(fun)
    assert len(tunings) == 1
    assert_close(wanted, got, RTOL_EPOCHS)
    assert accuracy(wanted) > 0.93
    assert accuracy(got) > 0.93
    assert float(losses.mean()) < 0.2
    plan = str(fun.plan(start(), images, labels))
    again = json.loads(python("import test_digits; test_digits.train_and_print()"))
    assert again == [0, 0, pytest.approx(accuracy(got), abs=0.01), plan]


PLANS = [
    "as-written",
    "0=unroll(3)",
    "0/0=unroll(8) 0/1=unroll(8)",
    "0=inline",
    "0/0=inline 0/1=unroll(4)",
    "0=python(1)",
    "0=python(3)",
    "0=python(1) 0/0=unroll(2) 0/1=inline",
    "0=eager",
]


@pytest.mark.parametrize("plan", PLANS)
def test_every_form_trains_the_same_parameters(plan, tunings):
    wanted, wanted_losses = train(plain(), epochs=2, batches=4)
    got, losses = train(autoloop(epoch, donate_argnums=0).using(plan), epochs=2, batches=4)
    assert_close(wanted, got, RTOL_STEPS)
    assert_close(wanted_losses, losses, RTOL_STEPS)
    assert tunings == []


def test_the_loops_are_those_of_training():
    (images, labels), _ = digits()
    plans = [str(plan) for plan in autoloop(epoch, donate_argnums=0).plans(start(), images, labels)]
    paths = {word.split("=")[0] for plan in plans if plan != "as-written" for word in plan.split()}
    assert {"0", "0/0", "0/1"} <= paths  # minibatches, rows forward, rows backward
