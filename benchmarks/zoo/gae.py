"""Generalized advantage estimation: PPO and other actor-critic learners.

Loops: `lax.map` over learners (64, small 16), each in reverse over time (256, small 128). Body: the
temporal difference of 8 environments and its discounted sum. No learner waits for another, the
differences need no carry, and the sum is a linear recurrence.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

GAMMA, LAMBDA = 0.99, 0.95


def program(rewards: jax.Array, values: jax.Array, dones: jax.Array, last: jax.Array) -> Any:
    def learner(data: Any) -> Any:
        rewards, values, dones, last = data

        def step(carry: Any, data: Any) -> Any:
            advantage, next_value = carry
            reward, value, done = data
            delta = reward + GAMMA * next_value * (1 - done) - value
            advantage = delta + GAMMA * LAMBDA * (1 - done) * advantage
            return (advantage, value), advantage

        begin = (jnp.zeros_like(last), last)
        _, advantages = lax.scan(step, begin, (rewards, values, dones), reverse=True)
        return advantages, advantages + values

    return lax.map(learner, (rewards, values, dones, last))


def by_hand(rewards: jax.Array, values: jax.Array, dones: jax.Array, last: jax.Array) -> Any:
    later = jnp.concatenate([values[:, 1:], last[:, None]], axis=1)
    deltas = rewards + GAMMA * later * (1 - dones) - values
    decays = GAMMA * LAMBDA * (1 - dones)

    def learner(data: Any) -> jax.Array:
        def step(advantage: jax.Array, data: Any) -> Any:
            delta, decay = data
            advantage = delta + decay * advantage
            return advantage, advantage

        return lax.scan(step, jnp.zeros(last.shape[-1]), data, reverse=True)[1]

    advantages = lax.map(learner, (deltas, decays))
    return advantages, advantages + values


def arguments(size: str) -> tuple[Any, ...]:
    learners, steps = {"small": (16, 128), "large": (64, 256)}[size]
    keys = jax.random.split(jax.random.key(0), 4)
    shape = (learners, steps, 8)
    dones = jax.random.bernoulli(keys[2], 0.02, shape).astype(jnp.float32)
    rewards, values = jax.random.normal(keys[0], shape), jax.random.normal(keys[1], shape)
    return rewards, values, dones, jax.random.normal(keys[3], (learners, 8))
