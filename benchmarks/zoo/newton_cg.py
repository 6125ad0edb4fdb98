"""Newton's method with conjugate gradients inside: logistic regression, inverse problems, second-order training.

Loops: Newton steps (8, small 5) over 20 iterations of conjugate gradients. Body: a product with the Hessian
of a regularized logistic loss, as the derivative of its gradient, over 1,024 rows of 64 (small 128 rows of
16), two inner products, three updates. What the Hessian's product needs of the weights is the same in all
iterations of one step.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

ITERATIONS, RIDGE = 20, 1e-2


def solve(product: Any, b: jax.Array) -> jax.Array:
    def step(_: Any, state: Any) -> Any:
        x, r, p, rr = state
        ap = product(p)
        alpha = rr / (p @ ap + 1e-20)
        x, r = x + alpha * p, r - alpha * ap
        new = r @ r
        return x, r, r + new / (rr + 1e-20) * p, new

    return lax.fori_loop(0, ITERATIONS, step, (jnp.zeros_like(b), b, b, b @ b))[0]


def loss(w: jax.Array, x: jax.Array, labels: jax.Array) -> jax.Array:
    return jnp.mean(jax.nn.softplus(-labels * (x @ w))) + 0.5 * RIDGE * w @ w


def newton(w: jax.Array, dampings: jax.Array, x: jax.Array, labels: jax.Array, hessian: Any) -> Any:
    def step(w: jax.Array, damping: jax.Array) -> Any:
        value, grad = jax.value_and_grad(loss)(w, x, labels)
        return w - damping * solve(hessian(w), grad), value

    return lax.scan(step, w, dampings)


def program(w: jax.Array, dampings: jax.Array, x: jax.Array, labels: jax.Array) -> Any:
    def hessian(w: jax.Array) -> Any:
        return lambda v: jax.jvp(lambda w: jax.grad(loss)(w, x, labels), (w,), (v,))[1]

    return newton(w, dampings, x, labels, hessian)


def by_hand(w: jax.Array, dampings: jax.Array, x: jax.Array, labels: jax.Array) -> Any:
    """The curvature of each row once a step."""

    def hessian(w: jax.Array) -> Any:
        chance = jax.nn.sigmoid(labels * (x @ w))
        curvature = chance * (1 - chance) / len(x)
        return lambda v: (curvature * (x @ v)) @ x + RIDGE * v

    return newton(w, dampings, x, labels, hessian)


def arguments(size: str) -> tuple[Any, ...]:
    steps, rows, wide = {"small": (5, 128, 16), "large": (8, 1024, 64)}[size]
    keys = jax.random.split(jax.random.key(0), 3)
    x, truth = jax.random.normal(keys[0], (rows, wide)), jax.random.normal(keys[1], (wide,))
    labels = jnp.sign(x @ truth + 3 * jax.random.normal(keys[2], (rows,)))
    return jnp.zeros(wide), jnp.ones(steps), x, labels
