"""Small loop nests of different kinds, for questions about tuning itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


def scalar_nest(x: Any) -> Any:
    """200 inside 200, a scalar recurrence whose inner loop collects its states."""

    def outer(h: Any, _: Any) -> Any:
        return lax.scan(lambda c, _: (c * 0.999 + 0.001 * x, c), h, None, length=200)

    return lax.scan(outer, 0.0, None, length=200)


def rnn(weights: Any, xs: Any) -> Any:
    """40 sequences of 30 steps, one after the other, width 32."""

    def sequence(total: Any, seq: Any) -> Any:
        last = lax.scan(lambda h, x: (jnp.tanh(weights @ h + x), None), jnp.zeros(32), seq)[0]
        return total + last, last.sum()

    return lax.scan(sequence, jnp.zeros(32), xs)


def rnn_gradient(weights: Any, xs: Any) -> Any:
    """The gradient of an RNN of 60 steps, batch 16, width 32."""

    def loss(w: Any) -> Any:
        def step(h: Any, x: Any) -> Any:
            h = jnp.tanh(h @ w + x)
            return h, (h**2).mean()

        return lax.scan(step, jnp.zeros((16, 32)), xs)[1].sum()

    return jax.grad(loss)(weights)


def map_solver(params: Any) -> Any:
    """`lax.map` of a 50-step Newton-like iteration over 300 parameters."""
    return lax.map(lambda p: lax.fori_loop(0, 50, lambda _, z: z - (z * z - p) / (2 * z + 1e-3), p), params)


def langevin(key: Any, x: Any) -> Any:
    """10 blocks of 200 steps, the key in the carry, 16 dimensions."""

    def step(carry: Any, _: Any) -> Any:
        x, key = carry
        key, sub = jax.random.split(key)
        return (x - 0.01 * x + 0.1 * jax.random.normal(sub, x.shape), key), None

    def block(carry: Any, _: Any) -> Any:
        carry, _ = lax.scan(step, carry, None, length=200)
        return carry, carry[0]

    return lax.scan(block, (x, key), None, length=10)[1]


def life(board: Any) -> Any:
    """60 generations of the game of life on 48 by 48 cells."""

    def step(b: Any, _: Any) -> Any:
        moves = [(i, j) for i in (-1, 0, 1) for j in (-1, 0, 1) if (i, j) != (0, 0)]
        n = sum(jnp.roll(b, move, (0, 1)) for move in moves)
        return ((n == 3) | ((b == 1) & (n == 2))).astype(b.dtype), None

    return lax.scan(step, board, None, length=60)[0]


def garch(params: Any, returns: Any) -> Any:
    """A GARCH likelihood over 800 returns and its gradient."""

    def loss(p: Any) -> Any:
        def step(v: Any, r: Any) -> Any:
            v = p[0] + p[1] * r * r + p[2] * v
            return v, jnp.log(v) + r * r / v

        return lax.scan(step, jnp.float32(1.0), returns)[1].sum()

    return jax.value_and_grad(loss)(params)


def leapfrog(key: Any, x: Any) -> Any:
    """40 HMC samples of 10 leapfrog steps, 8 dimensions."""

    def sample(x: Any, key: Any) -> Any:
        p = jax.random.normal(key, x.shape)

        def step(state: Any, _: Any) -> Any:
            x, p = state
            p = p - 0.05 * x * (x**2).sum()
            return (x + 0.1 * p, p - 0.05 * x), None

        (y, _), _ = lax.scan(step, (x, p), None, length=10)
        return jnp.where((y**2).sum() < 2 * (x**2).sum() + 1, y, x), y

    return lax.scan(sample, x, jax.random.split(key, 40))


def matmuls(a: Any, x: Any) -> Any:
    """12 layers of a 128-wide residual network, batch 64: bound by its products."""
    return lax.scan(lambda h, w: (h + jax.nn.relu(h @ w), None), x, a)[0]


def wave(u: Any) -> Any:
    """100 steps of the wave equation on 64 by 64 points, energies collected."""

    def step(state: Any, _: Any) -> Any:
        u, v = state
        lap = sum(jnp.roll(u, s, ax) for s in (-1, 1) for ax in (0, 1)) - 4 * u
        v = v + 0.1 * lap
        return (u + 0.1 * v, v), (v**2).mean()

    return lax.scan(step, (u, jnp.zeros_like(u)), None, length=100)


def nests() -> dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]:
    """Name to function and arguments."""
    key = jax.random.key(0)
    normal = jax.random.normal
    return {
        "scalar_nest": (scalar_nest, (jnp.float32(1.5),)),
        "rnn": (rnn, (normal(key, (32, 32)) / 6, normal(key, (40, 30, 32)))),
        "rnn_gradient": (rnn_gradient, (normal(key, (32, 32)) / 6, normal(key, (60, 16, 32)))),
        "map_solver": (map_solver, (jnp.linspace(1.0, 9.0, 300),)),
        "langevin": (langevin, (key, jnp.zeros(16))),
        "life": (life, (jax.random.bernoulli(key, 0.4, (48, 48)).astype(jnp.int32),)),
        "garch": (garch, (jnp.array([0.1, 0.1, 0.8]), normal(key, (800,)))),
        "leapfrog": (leapfrog, (key, jnp.ones(8))),
        "matmuls": (matmuls, (normal(key, (12, 128, 128)) / 12, normal(key, (64, 128)))),
        "wave": (wave, (normal(key, (64, 64)),)),
    }
