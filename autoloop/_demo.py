"""The founding question, asked on the user's machine: should the outer loop be a Python loop?

A recurrent network over sequences: an outer scan over batches of data, inside it a `vmap` over the
sequences of a batch, inside that a scan over time.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from autoloop import _report, _signature, _tune
from autoloop._call import Call
from autoloop._function import Function
from autoloop._options import Options
from autoloop._plan import Plan
from autoloop._program import Program
from autoloop._records import AS_WRITTEN, Record, Trial

#: Batches, sequences in a batch, time steps, width of the network.
SIZES = (60, 16, 24, 48)
_BUDGET_S = 30.0
#: The forms of the founding question: Python loop over a jitted step, fully eager, jitted Python loop.
_CLASSICS = ("0=python(1)", "0=eager", "0=inline")

#: An interval of a ratio no wider than this that holds 1 means as fast; a wider one means not known.
_NARROW = 0.15


def program(weights: jax.Array, batches: jax.Array) -> tuple[jax.Array, jax.Array]:
    """An RNN over every sequence of every batch, its weights adapted a little after each batch.

    Args:
        weights: `[width, width]`.
        batches: `[batches, sequences, steps, width]`.

    Returns:
        The adapted weights, and `[batches]` mean activations.
    """

    def one_sequence(weights: jax.Array, inputs: jax.Array) -> jax.Array:
        def step(state: jax.Array, x: jax.Array) -> tuple[jax.Array, None]:
            return jnp.tanh(weights @ state + x), None

        return jax.lax.scan(step, jnp.zeros(inputs.shape[-1]), inputs)[0]

    def one_batch(weights: jax.Array, batch: jax.Array) -> tuple[jax.Array, jax.Array]:
        states = jax.vmap(one_sequence, (None, 0))(weights, batch)
        mean = states.mean(0)
        return 0.99 * weights + 0.01 * jnp.outer(mean, mean), states.mean()

    return jax.lax.scan(one_batch, weights, batches)


def arguments(sizes: tuple[int, int, int, int] = SIZES) -> tuple[jax.Array, jax.Array]:
    """Weights and data of the demo, the same each time."""
    batches, sequences, steps, width = sizes
    weights_key, data_key = jax.random.split(jax.random.key(0))
    weights = jax.random.normal(weights_key, (width, width)) / width**0.5
    return weights, jax.random.normal(data_key, (batches, sequences, steps, width))


def measure(budget_s: float = _BUDGET_S, sizes: tuple[int, int, int, int] = SIZES) -> Record:
    """Tunes the demo program afresh and stores nothing; the classic forms are tried in any case."""
    function, options = Function(program), Options(budget_s=budget_s)
    call = Call.of(function, arguments(sizes), {})
    traced = Program.trace(function, call.key, call.args, call.kwargs)
    assert traced is not None
    key = _signature.parts(traced.traced, call.key, call.places, options.context())
    also = tuple(map(Plan.parse, _CLASSICS))
    request = _tune.Request(traced, call.args, call.kwargs, options, key, call.device, budget_s, also=also)
    return _tune.tune(request).record


def answer(record: Record) -> str:
    """Two sentences: does the Python outer loop compile faster here, and does it run faster."""
    written, python = record.trials[0], record.trial("0=python(1)")
    if python is None or python.run_s is None:
        return "The Python outer loop was not measured: " + (python.reason if python else "it is not legal.")
    return f"{_compiles(written, python)} {_runs(written, python)}"


def _compiles(written: Trial, python: Trial) -> str:
    ratio = written.build_s / python.build_s
    how = "faster" if ratio > 1.1 else "slower" if ratio < 0.9 else "about as fast"
    return (
        f"The Python outer loop over a jitted step compiles {how} here: tracing and compiling take "
        f"{python.build_s:.2f} s, {1 / ratio:.2f}x the {written.build_s:.2f} s of the function as written."
    )


def _runs(written: Trial, python: Trial) -> str:
    assert python.ratio is not None
    assert python.ratio_low is not None
    assert python.ratio_high is not None
    figures = f"{python.ratio:.2f}x the time as written ({python.ratio_low:.2f} to {python.ratio_high:.2f})"
    if written.run_s and python.run_s and (python.run_s > written.run_s) == (python.ratio > 1):
        figures = f"{_ms(python)} a call against {_ms(written)}, {figures}"
    if python.ratio_high < 1 or python.ratio_low > 1:
        return f"It runs {'faster' if python.ratio < 1 else 'slower'}: {figures}."
    if python.ratio_high - python.ratio_low <= _NARROW:
        return f"It runs neither faster nor slower: {figures}."
    return f"Whether it runs faster can't be told, the measurements vary too much: {figures}."


def _ms(trial: Trial) -> str:
    assert trial.run_s is not None
    return f"{1e3 * trial.run_s:.3g} ms"


def text(record: Record) -> str:
    """What the demo prints once it has measured."""
    return "\n".join([_report.text(record), "", *_report.wrapped([_winner(record), answer(record)])])


def _winner(record: Record) -> str:
    winner = record.trial(record.winner)
    if record.winner == AS_WRITTEN or winner is None or winner.ratio is None:
        return f"No other form won, so it stays as written: {record.verdict}."
    return f"Winner: {record.winner}, {winner.ratio:.2f}x the time as written."
