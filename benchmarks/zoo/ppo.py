"""Proximal policy optimization with the environment written in jax: reinforcement learning on one device.

Loops, four deep: `lax.map` over seeds (4, small 2), each a scan of updates (8, small 3) that holds a rollout
(64 steps, small 32, over 4 substeps of a pendulum's physics), advantages in reverse, and epochs (3) over
minibatches (4). Bodies: a policy and a value of 32 hidden units for 8 environments; Gaussian actions, the key
split in the carry; the clipped loss, its gradient and a step of momentum. No seed waits for another; neither
do the random numbers.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from zoo._keys import split_chain

SUBSTEPS, EPOCHS, MINIBATCHES, ENVIRONMENTS = 4, 3, 4, 8
GAMMA, LAMBDA, CLIP, RATE, SPREAD, DT = 0.97, 0.95, 0.2, 0.003, 0.5, 0.0125


def net(params: Any, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The mean action and the value of observations [..., 3]."""
    hidden = jnp.tanh(x @ params["w"] + params["b"])
    out = hidden @ params["out"]
    return out[..., 0], out[..., 1]


def observe(state: Any) -> jax.Array:
    angle, speed = state
    return jnp.stack([jnp.cos(angle), jnp.sin(angle), speed / 8], axis=-1)


def physics(state: Any, torque: jax.Array, unroll: int = 1) -> Any:
    def substep(state: Any, _: None) -> Any:
        angle, speed = state
        speed = jnp.clip(speed + DT * (5 * torque - 15 * jnp.sin(angle) - speed), -8, 8)
        return (angle + DT * speed, speed), None

    state, _ = lax.scan(substep, state, None, length=SUBSTEPS, unroll=unroll)
    return state, jnp.cos(state[0] - 0.5) - 0.1 * (state[1] / 8) ** 2 - 0.001 * torque**2


def act(params: Any, state: Any, noise: jax.Array, unroll: int = 1) -> Any:
    x = observe(state)
    mean, value = net(params, x)
    state, reward = physics(state, mean + SPREAD * noise, unroll)
    return state, (x, noise, value, reward)


def advantages(values: jax.Array, rewards: jax.Array, last: jax.Array) -> jax.Array:
    def back(carry: Any, data: Any) -> Any:
        advantage, later = carry
        value, reward = data
        advantage = reward + GAMMA * later - value + GAMMA * LAMBDA * advantage
        return (advantage, value), advantage

    return lax.scan(back, (jnp.zeros_like(last), last), (values, rewards), reverse=True)[1]


def loss(params: Any, batch: Any) -> jax.Array:
    x, action, before, advantage, target = batch
    mean, value = net(params, x)
    ratio = jnp.exp(0.5 * (before**2 - ((action - mean) / SPREAD) ** 2))
    clipped = jnp.clip(ratio, 1 - CLIP, 1 + CLIP)
    return 0.5 * jnp.mean((value - target) ** 2) - jnp.mean(jnp.minimum(ratio * advantage, clipped * advantage))


def learn(params: Any, momentum: Any, rollout: Any, last: jax.Array, unroll: int = 1) -> Any:
    x, noise, values, rewards = rollout
    found = advantages(values, rewards, last)
    actions = net(params, x)[0] + SPREAD * noise
    flat = (x.reshape(-1, 3), *(a.reshape(-1) for a in (actions, noise, found, found + values)))
    batches = jax.tree.map(lambda a: a.reshape(MINIBATCHES, -1, *a.shape[1:]), flat)

    def minibatch(carry: Any, batch: Any) -> Any:
        params, momentum = carry
        value, grads = jax.value_and_grad(loss)(params, batch)
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, grads)
        return (jax.tree.map(lambda p, m: p - RATE * m, params, momentum), momentum), value

    def epoch(carry: Any, _: None) -> Any:
        carry, values = lax.scan(minibatch, carry, batches, unroll=unroll)
        return carry, values.mean()

    return lax.scan(epoch, (params, momentum), None, length=EPOCHS)


def begin(params: Any, angle: jax.Array) -> Any:
    return params, jax.tree.map(jnp.zeros_like, params), (angle, jnp.zeros_like(angle))


def program(keys: jax.Array, angles: jax.Array, params: Any, plan: Any) -> Any:
    """`plan`: [updates, steps], scales of the noise."""

    def seed(data: Any) -> Any:
        def update(carry: Any, scales: jax.Array) -> Any:
            params, momentum, state, key = carry

            def step(carry: Any, scale: jax.Array) -> Any:
                state, key = carry
                key, sub = jax.random.split(key)
                noise = scale * jax.random.normal(sub, (ENVIRONMENTS,))
                state, seen = act(params, state, noise)
                return (state, key), seen

            (state, key), rollout = lax.scan(step, (state, key), scales)
            (params, momentum), losses = learn(params, momentum, rollout, net(params, observe(state))[1])
            return (params, momentum, state, key), (losses[-1], rollout[3].mean())

        key, angle = data
        return lax.scan(update, (*begin(params, angle), key), plan)[1]

    return lax.map(seed, (keys, angles))


def by_hand(keys: jax.Array, angles: jax.Array, params: Any, plan: Any) -> Any:
    """All seeds at once, their random numbers before the loops, short loops unrolled."""

    def seed(key: jax.Array, angle: jax.Array) -> Any:
        _, subs = split_chain(key, plan.size)
        noises = jax.vmap(lambda sub: jax.random.normal(sub, (ENVIRONMENTS,)))(subs)
        noises = plan[..., None] * noises.reshape(*plan.shape, ENVIRONMENTS)

        def update(carry: Any, noises: jax.Array) -> Any:
            params, momentum, state = carry
            state, rollout = lax.scan(lambda s, n: act(params, s, n, SUBSTEPS), state, noises)
            last = net(params, observe(state))[1]
            (params, momentum), losses = learn(params, momentum, rollout, last, MINIBATCHES)
            return (params, momentum, state), (losses[-1], rollout[3].mean())

        return lax.scan(update, begin(params, angle), noises)[1]

    return jax.vmap(seed)(keys, angles)


def arguments(size: str) -> tuple[Any, ...]:
    seeds, updates, steps = {"small": (2, 3, 32), "large": (4, 8, 64)}[size]
    keys = jax.random.split(jax.random.key(0), 4)
    normal = jax.random.normal
    params = {"w": normal(keys[0], (3, 32)) / 2, "b": jnp.zeros(32), "out": normal(keys[1], (32, 2)) / 20}
    angles = 0.5 * normal(keys[2], (seeds, ENVIRONMENTS))
    return jax.random.split(keys[3], seeds), angles, params, jnp.ones((updates, steps))
