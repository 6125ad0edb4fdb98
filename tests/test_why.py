"""Each sentence follows from the figures, and none is said without them."""

import jax.numpy as jnp
import pytest
from helpers import outline
from jax import lax

from autoloop import _why
from autoloop._records import Record, Status, Trial

LOOPS = (
    "0: 60 iterations, 9216 bytes carried, 4423680 bytes stacked; "
    "0/0: 24 iterations, 3072 bytes carried, 73728 bytes stacked"
)


def trial(plan, ratio, build=0.1, spread=0.01):
    low, high = ratio * (1 - spread), ratio * (1 + spread)
    return Trial(
        plan,
        trace_s=0.0,
        compile_s=build,
        run_s=1.8e-3 * ratio,
        ratio=ratio,
        ratio_low=low,
        ratio_high=high,
        rounds=9,
    )


WRITTEN = trial("as-written", 1.0)


def sentences(*trials, loops=LOOPS, device="cpu cpu x1", written=WRITTEN):
    environment = {"loops": loops} if loops else {}
    record = Record("m.f", {"device": device}, "as-written", (written, *trials), environment=environment)
    return _why.sentences(record)


@pytest.mark.parametrize(
    ("written", "other", "said"),
    [
        (
            WRITTEN,
            trial("0=inline", 0.9, 0.3),
            "As written, building takes 0.1 s, as long as 56 calls of 1.8 ms: compiling is most of the time until "
            "then, running afterwards; for a single call as-written would have been chosen, 0.102 s to build and run.",
        ),
        (
            trial("as-written", 1.0, 1e-4),
            trial("0=eager", 0.9, 0.0),
            "As written, a call takes 1.8 ms, building 100 us: running is most of the time from the first call on; "
            "for a single call 0=eager would have been chosen, 1.62 ms to build and run.",
        ),
    ],
)
def test_where_the_time_goes_and_what_one_call_would_choose(written, other, said):
    assert sentences(other, written=written)[0] == said


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (
            trial("0/0=unroll(8)", 0.75),
            "The body of loop 0/0 is small, at most 1.25 us an iteration: part of the time is the loop's own, and "
            "0/0=unroll(8) saves 25% of it all.",
        ),
        (
            trial("0=inline", 0.999),
            "The body of loop 0 is large enough, at most 30 us an iteration: copies of it gain nothing that could be "
            "measured.",
        ),
        (
            trial("0=inline", 1.5),
            "The body of loop 0 is too large to copy, at most 30 us an iteration: the best of its copies, 0=inline, "
            "takes 1.50x the time as written.",
        ),
        (
            trial("0=inline", 1.5, spread=0.3),
            "The body of loop 0 is too large to copy, at most 30 us an iteration: the best of its copies, 0=inline, "
            "takes 1.05x to 1.95x the time as written.",
        ),
        (
            trial("0=inline", 1.0, spread=0.5),
            "Too noisy to tell whether the body of loop 0 is small: 0=inline takes 0.50x to 1.50x the time as written.",
        ),
    ],
)
def test_whether_the_body_is_small_or_large(other, said):
    assert sentences(other)[1] == said


@pytest.mark.parametrize(
    ("loops", "device", "memory"),
    [
        ("0: 10 iterations, 0 bytes carried, 18000000 bytes stacked", "cpu cpu x1", "10 GB/s"),
        ("0: 10 iterations, 9000000 bytes carried, 0 bytes stacked", "cpu cpu x1", "100 GB/s"),
        ("0: 10 iterations, 90000 bytes carried, 1800000 bytes stacked", "cpu cpu x1", None),  # fits a cache
        ("0: 10 iterations, 0 bytes carried, 18000000 bytes stacked", "gpu H200 x1", None),
        ("0: 10 iterations, 0 bytes carried, 18000000000 bytes stacked", "gpu H200 x1", "1e+04 GB/s"),
        ("0: 10 iterations, 0 bytes carried, 18000000 bytes stacked", "tpu v5 x1", None),
    ],
)
def test_what_may_be_bound_by_memory(loops, device, memory):
    said = sentences(trial("0=inline", 1.001), loops=loops, device=device)[1]
    assert ("memory may be what bounds it" in said) == (memory is not None)
    assert memory is None or f"alone move {memory}" in said


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (
            trial("0=python(1)", 1.5),
            "The Python loop 0=python(1) did not hide its dispatches: 1.50x the time as written, 15 us more for each "
            "of its 60 steps, whose work takes 30 us.",
        ),
        (
            trial("0=python(7)", 2.0),
            "The Python loop 0=python(7) did not hide its dispatches: 2.00x the time as written, 200 us more for each "
            "of its 9 steps, whose work takes 200 us.",
        ),
        (
            trial("0=python(1)", 1.02),
            "The Python loop 0=python(1) hid its dispatches behind the device: 1.01x to 1.03x the time as written.",
        ),
        (
            trial("0=eager", 1.2, spread=0.4),
            "Too noisy to tell whether the Python loop 0=eager hid its dispatches: 0.72x to 1.68x the time as written.",
        ),
    ],
)
def test_whether_a_python_loop_hid_its_dispatches(other, said):
    assert sentences(other)[1] == said


def test_the_classic_python_loop_is_spoken_of_if_it_ran():
    said = sentences(trial("0=python(4)", 0.9), trial("0=python(1)", 1.5), trial("0=eager", 0.8))
    assert said[1].startswith("The Python loop 0=python(1) did not hide")


def test_the_steepest_cliff_is_named_also_within_other_choices():
    said = sentences(
        trial("0=unroll(2)", 0.9),
        trial("0=unroll(8)", 2.0),
        trial("0=unroll(2) 0/0=inline", 0.5),
        trial("0=unroll(16) 0/0=inline", 8.0),
        trial("0=unroll(4)", 1.1),
    )
    assert said[-1] == (
        "There is a cliff: 0=unroll(2) 0/0=inline takes 0.50x the time as written, 0=unroll(16) 0/0=inline 8.00x."
    )


def test_without_a_cliff_none_is_named():
    assert not any("cliff" in s for s in sentences(trial("0=unroll(2)", 0.9), trial("0=unroll(4)", 1.7)))


def test_without_the_loops_sizes_nothing_is_said_of_iterations():
    said = sentences(trial("0=inline", 0.5), trial("0=python(1)", 1.5), loops="")
    assert said[1] == (
        "The body of loop 0 is small: part of the time is the loop's own, and 0=inline saves 50% of it all."
    )
    assert said[2] == "The Python loop 0=python(1) did not hide its dispatches: 1.50x the time as written."


@pytest.mark.parametrize(
    "trials",
    [
        (Trial("as-written", reason="not tuned"),),
        (WRITTEN,),
        (WRITTEN, Trial("0=inline", Status.SKIPPED, "too dear")),
        (WRITTEN, trial("0=inline", 0.5).replace(status=Status.WRONG)),
    ],
)
def test_nothing_is_said_where_nothing_was_compared(trials):
    assert _why.sentences(Record("m.f", {}, "as-written", trials)) == []


def test_plans_of_a_newer_autoloop_are_passed_over():
    assert len(sentences(trial("0=fuse[3]", 0.5))) == 1


def test_at_most_four_sentences():
    said = sentences(
        trial("0=inline", 1.1), trial("0=python(1)", 2.0), trial("0=unroll(2)", 1.5), trial("0=unroll(4)", 9.0)
    )
    assert len(said) == 4


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (12.34, "12.3 s"),
        (0.1, "0.1 s"),
        (0.0995, "99.5 ms"),
        (0.00172, "1.72 ms"),
        (29e-6, "29 us"),
        (72.4e-9, "72.4 ns"),
    ],
)
def test_seconds_are_short(seconds, text):
    assert _why.seconds_text(seconds) == text


def test_what_a_record_keeps_of_the_loops_is_what_the_sentences_read():
    def nest(c, n):
        c, _ = lax.scan(lambda c, t: (lax.fori_loop(0, 4, lambda i, c: jnp.sin(c) + t, c), c), c, jnp.arange(5.0))
        return lax.while_loop(lambda c: c.sum() > n, lambda c: lax.fori_loop(0, 3, lambda i, c: c * 0.5, c), c)

    _, loops = outline(nest, jnp.zeros(3), 1.0)
    text = _why.describe(loops)
    assert text.startswith("0: 5 iterations, 12 bytes carried, 80 bytes stacked; 0/0: 4 iterations, ")
    assert "1: " not in text  # inside a while: nobody knows how often it runs
    found = _why._facts(Record("m.f", {}, "x", (), environment={"loops": text}))
    assert _why._iterations(found, (0, 0)) == 20
    assert _why._iterations(found, (1,)) is None
