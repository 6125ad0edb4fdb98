"""What type checkers see: a decorated function keeps its signature. Checked by mypy and pyright, never run.

A line that must be an error ends with an ignore; mypy says so where it is none (`warn_unused_ignores`).
"""

from collections.abc import Callable
from typing import Any, assert_type

import jax

import autoloop as package
from autoloop import Autoloop, LoopTree, Plan, Record, autoloop


@autoloop
def plain(weights: jax.Array, rate: float = 0.1, *, steps: int) -> tuple[jax.Array, int]:
    return weights, steps


@autoloop(static_argnames="steps", budget_s=5, forms=["inline"], mode="cached")
def with_options(weights: jax.Array, steps: int = 3) -> jax.Array:
    return weights


class Model:
    scale = 2.0

    @autoloop(static_argnums=0)
    def step(self, x: jax.Array, steps: int = 1) -> jax.Array:
        return x

    @staticmethod
    @autoloop
    def static(x: jax.Array) -> float:
        return 0.0


def calls(w: jax.Array) -> None:
    assert_type(plain(w, steps=2), tuple[jax.Array, int])
    assert_type(plain(w, 0.5, steps=2), tuple[jax.Array, int])
    assert_type(with_options(w), jax.Array)
    assert_type(with_options(weights=w, steps=2), jax.Array)
    plain(w)  # type: ignore[call-arg]  # pyright: ignore
    plain(w, steps="2")  # type: ignore[arg-type]  # pyright: ignore
    plain("w", steps=2)  # type: ignore[arg-type]  # pyright: ignore
    with_options(w, step=2)  # type: ignore[call-arg]  # pyright: ignore


def methods(model: Model, w: jax.Array) -> None:
    assert_type(model.step(w), jax.Array)
    assert_type(model.step(w, steps=2), jax.Array)
    assert_type(Model.step(model, w), jax.Array)
    assert_type(Model.static(w), float)
    model.step("x")  # type: ignore[arg-type]  # pyright: ignore
    model.step(w, 1, 2)  # type: ignore[call-arg]  # pyright: ignore


def asked(w: jax.Array) -> None:
    assert_type(plain.plan(w, steps=2), Plan | None)
    assert_type(plain.report(w, steps=2), Record | None)
    assert_type(plain.plans(w, steps=2), list[Plan])
    assert_type(plain.loops(w, steps=2), LoopTree)
    assert_type(plain.warmup(w, steps=2, under="grad"), Record)
    assert_type(plain.using("0=inline")(w, steps=2), tuple[jax.Array, int])
    plain.plan(w)  # type: ignore[call-arg]  # pyright: ignore
    plain.using("0=inline")(w)  # type: ignore[call-arg]  # pyright: ignore


def doubled(x: jax.Array, times: int, /) -> jax.Array:
    return x


def passed_on(w: jax.Array) -> None:
    same: Callable[[jax.Array], jax.Array] = with_options
    wrapped: Autoloop[[jax.Array, int], float] = autoloop(lambda x, n: 1.0)
    assert_type(same(w), jax.Array)
    assert_type(autoloop(doubled, budget_s=5.0, static_argnums=1), Autoloop[[jax.Array, int], jax.Array])
    assert_type(wrapped(w, 2), float)


def others(record: Record) -> None:
    remove = package.on_record(lambda r: print(r.gain))
    assert_type(remove, Callable[[], None])
    assert_type(record.to_dict(), dict[str, Any])
    with package.settings(mode="off") as found:
        assert_type(found.mode, str)
    autoloop(budget=5)  # type: ignore[call-overload]  # pyright: ignore
    autoloop(forms=1)  # type: ignore[call-overload]  # pyright: ignore
