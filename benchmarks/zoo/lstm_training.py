"""Training of an LSTM by stochastic gradient descent: sequence models in any recurrent library.

Loops: minibatches (10) over time forward and, by `jax.grad`, backward (50 steps). Body: two products
and the gates, 64 units, batch 32 (small: 5 minibatches of 30 steps, 16 units, batch 8). The input's
product needs no carry; the weights' gradient is a sum over time.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


def cell(state: Any, gates: jax.Array) -> Any:
    _, c = state
    i, f, g, o = jnp.split(gates, 4, axis=-1)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


def start(batch: int, units: int) -> Any:
    return jnp.zeros((batch, units)), jnp.zeros((batch, units))


def program(params: Any, xs: jax.Array, targets: jax.Array) -> Any:
    def loss(params: Any, x: jax.Array, target: jax.Array) -> jax.Array:
        def step(state: Any, x: jax.Array) -> Any:
            return cell(state, x @ params["wx"] + state[0] @ params["wh"] + params["b"]), None

        (h, _), _ = lax.scan(step, start(x.shape[1], params["wh"].shape[0]), x)
        return jnp.mean((h @ params["out"] - target) ** 2)

    def update(params: Any, batch: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(params, *batch)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

    return lax.scan(update, params, (xs, targets))


def by_hand(params: Any, xs: jax.Array, targets: jax.Array) -> Any:
    """Input products before the loop; weights' gradients after it, from the stacked gates' gradients."""

    def loss(from_x: jax.Array, out: jax.Array, wh: jax.Array, target: jax.Array) -> Any:
        def step(state: Any, from_x: jax.Array) -> Any:
            return cell(state, from_x + state[0] @ wh), state[0]

        (h, _), before = lax.scan(step, start(from_x.shape[1], wh.shape[0]), from_x)
        return jnp.mean((h @ out - target) ** 2), before

    def update(params: Any, batch: Any) -> Any:
        x, target = batch
        from_x = x @ params["wx"] + params["b"]
        with_grad = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)
        (value, before), (gates, out) = with_grad(from_x, params["out"], params["wh"], target)
        x, before, gates = (a.reshape(-1, a.shape[-1]) for a in (x, before, gates))
        grads = {"wx": x.T @ gates, "wh": before.T @ gates, "b": gates.sum(0), "out": out}
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

    return lax.scan(update, params, (xs, targets))


def arguments(size: str) -> tuple[Any, ...]:
    minibatches, steps, batch, units = {"small": (5, 30, 8, 16), "large": (10, 50, 32, 64)}[size]
    keys = jax.random.split(jax.random.key(0), 5)
    params = {
        "wx": jax.random.normal(keys[0], (units, 4 * units)) / units**0.5,
        "wh": jax.random.normal(keys[1], (units, 4 * units)) / units**0.5,
        "b": jnp.zeros(4 * units),
        "out": jax.random.normal(keys[2], (units, 8)) / units**0.5,
    }
    xs = jax.random.normal(keys[3], (minibatches, steps, batch, units))
    return params, xs, jax.random.normal(keys[4], (minibatches, batch, 8))
