"""Why a call misses: in a person's words, on made-up signatures and on real calls."""

import json
import re

import jax
import jax.numpy as jnp
import pytest
from helpers import ramp
from jax import lax
from jax.experimental import io_callback

from autoloop import (
    AutoloopWarning,
    MissError,
    Record,
    Trial,
    _explain,
    _signature,
    _wanted,
    _wisdom,
    autoloop,
    settings,
)
from autoloop._store import Store

OLD = {
    "program": "p1",
    "skeleton": "s1",
    "arguments": "f32[8] f32[64,128]",
    "statics": "",
    "sharding": "",
    "device": "cpu cpu x1",
    "host": "EPYC, 2 cores",
    "versions": "jax 0.10.1, jaxlib 0.10.1",
    "flags": "--xla_a=1 jax_enable_x64=False",
    "schema": "1",
    "context": "call",
}

#: A change of parts, and what is said of it.
CHANGES = {
    "nothing": ({}, ["same program"]),
    "a shape": (
        {"program": "p2", "arguments": "f32[8] f32[64,129]"},
        ["same program", "array 1 was f32[64,128], is f32[64,129]"],
    ),
    "a count": ({"program": "p2", "arguments": "f32[8]"}, ["same program", "it had 2 arrays as arguments, has 1"]),
    "a literal": (
        {"program": "p2"},
        ["same equations, but a number, a loop's length or a size in the program differs"],
    ),
    "equations": ({"program": "p2", "skeleton": "s2"}, ["the program has other equations"]),
    "jaxlib": ({"versions": "jax 0.10.1, jaxlib 0.10.2"}, ["same program", "jaxlib 0.10.1 -> 0.10.2"]),
    "both": (
        {"versions": "jax 0.10.2, jaxlib 0.10.2"},
        ["same program", "jax 0.10.1 -> 0.10.2", "jaxlib 0.10.1 -> 0.10.2"],
    ),
    "a setting": (
        {"flags": "--xla_a=1 jax_enable_x64=True"},
        ["same program", "jax_enable_x64=False -> True"],
    ),
    "a flag less": ({"flags": "jax_enable_x64=False"}, ["same program", "without --xla_a=1 now"]),
    "a flag more": ({"flags": OLD["flags"] + " --xla_b"}, ["same program", "with --xla_b now"]),
    "a static": ({"statics": "1=2"}, ["same program", "static arguments were none, are 1=2"]),
    "placed": ({"sharding": "S(x)"}, ["same program", "arguments were placed where jax puts them, are placed S(x)"]),
    "a device": ({"device": "gpu H100 x1"}, ["same program", "device cpu cpu x1 -> gpu H100 x1"]),
    "a host": ({"host": "Xeon, 4 cores"}, ["same program", "processor EPYC, 2 cores -> Xeon, 4 cores"]),
    "an option": (
        {"context": "call, bitwise=True"},
        ["same program", "options of the decorator: call -> call, bitwise=True"],
    ),
    "a schema": ({"schema": "2"}, ["same program", "written in the form 1 of another autoloop, this one reads 2"]),
    "a new part": ({"epoch": "3"}, ["same program", "epoch nothing -> 3"]),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_difference_is_said_in_words(name):
    change, sentences = CHANGES[name]
    assert _explain.differences(OLD, {**OLD, **change}) == sentences


def test_arguments_are_called_by_their_names():
    new = {**OLD, "program": "p2", "arguments": "f32[9] f32[64,128]"}
    assert "argument 0['w'] was f32[8], is f32[9]" in _explain.differences(OLD, new, ["argument 0['w']", "argument n"])
    assert "array 0 was f32[8], is f32[9]" in _explain.differences(OLD, new, ["one name too few"])


def test_parts_that_are_gone_are_said():
    assert _explain.differences({"schema": "0"}, {"schema": "1", "program": "p"}) == [
        "written in the form 0 of another autoloop, this one reads 1"
    ]
    assert "host" not in str(_explain.differences(OLD, OLD))


def test_a_long_part_is_cut_around_the_difference():
    old = {"statics": "x" * 200 + "1"}
    (_, text) = _explain.differences(old, {"statics": "x" * 200 + "2"})
    before, after = re.fullmatch(r"static arguments were (\S+), are (\S+)", text).groups()
    assert (before, after) == ("..." + "x" * 20 + "1", "..." + "x" * 20 + "2")


# ------------------------------------------------ the nearest


def make(function="m.f", created="2026-01-01", **changes):
    return Record(function, {**OLD, **changes}, "as-written", (Trial("as-written"),), created=created)


@pytest.fixture
def store(tmp_path):
    found = Store(tmp_path / "store")
    yield found
    found.close()


def keep(store, *records):
    for record in records:
        store.put(_signature.digest(record.key), record)


def test_wisdom_files_are_named_and_unusable_ones_said_to_be_so(tmp_path):
    good, missing = tmp_path / "good.json", tmp_path / "missing.json"
    _wisdom.write(good, {})
    store = Store(tmp_path / "store", [str(good), str(missing)])
    with pytest.warns(AutoloopWarning, match="missing.json"):
        found = _explain.miss("m.f", OLD, store)
    assert found.places == f"the store {store.folder}, nor in {good}, nor in {missing} (which can't be used)"
    store.close()


def test_an_empty_store_is_said(store):
    found = _explain.miss("m.f", OLD, store)
    assert found.nearest is None
    assert (
        str(found)
        == f"m.f(f32[8] f32[64,128]): no record is remembered; nothing of this function or program is in {found.places}"
    )


def test_a_stored_record_is_no_miss(store):
    keep(store, make())
    assert _explain.miss("m.f", OLD, store) is None
    unfit = _explain.miss("m.f", OLD, store, unfit="its plan does not fit")
    assert unfit.differences == ("its plan does not fit",)


def test_the_record_with_the_fewest_differences_is_the_nearest(store):
    keep(
        store,
        make(created="2026-05-05", host="a", device="b", versions="c"),
        make(created="2026-02-02", host="near"),
        make(created="2026-03-03", host="nearer"),
        make(created="2026-04-04", skeleton="other", program="other"),
        make("m.other", created="2026-06-06", skeleton="stranger"),
    )
    found = _explain.miss("m.f", OLD, store)
    assert found.differences == ("same program", "processor nearer -> EPYC, 2 cores")
    assert ", 2026-03-03: same program" in found.why


def test_of_other_shapes_those_with_most_in_common_are_the_nearest(store):
    keep(store, make(arguments="f32[9] f32[1,1]"), make(arguments="f32[8] f32[1,1]", created="2025-01-01"))
    assert _explain.miss("m.f", OLD, store).differences[-1] == "array 1 was f32[1,1], is f32[64,128]"


def test_the_same_program_under_another_name_is_near(store):
    keep(store, make("m.g", host="x"))
    assert "is 4" not in _explain.miss("m.f", OLD, store).why
    assert " of m.g, 2026-01-01: same program" in _explain.miss("m.f", OLD, store).why


def test_a_record_of_a_wisdom_file_may_be_the_nearest(tmp_path):
    record = make(host="x")
    _wisdom.write(tmp_path / "w.json", {_signature.digest(record.key): record})
    store = Store(tmp_path / "store", [str(tmp_path / "w.json")])
    assert "the nearest of a wisdom file is" in _explain.miss("m.f", OLD, store).why
    store.close()


def test_a_record_of_an_older_schema_is_explained(store):
    stale = {**make(schema="0").to_dict(), "schema": 0, "unknown": 3}
    store._attempt(lambda cache: cache.set(_signature.digest(stale["key"]), json.dumps(stale)))
    assert store.get(_signature.digest(stale["key"])) is None
    found = _explain.miss("m.f", OLD, store)
    assert found.differences == ("same program", "written in the form 0 of another autoloop, this one reads 1")


def test_an_unreadable_record_under_the_very_key_is_explained(store):
    store._attempt(lambda cache: cache.set(_signature.digest(OLD), '{"function": "m.f"}'))
    (text,) = _explain.miss("m.f", OLD, store).differences
    assert text.startswith("it is of this very call, but can't be read: record has missing or unknown fields")


# ------------------------------------------------ real calls


@autoloop(forms=["inline"], static_argnames="times")
def total(xs, scale, times=1):
    step = lambda c, x: (c * 0.5 + x * scale["by"], c.sum())
    return lax.scan(step, jnp.zeros(xs.shape[1:]), xs)[0] * times


XS, SCALE = ramp(3, 2), {"by": 2.0}


@pytest.fixture(autouse=True)
def fresh(quick):
    total._reset()
    total._decider._known.clear()


def test_explain_says_where_a_call_goes_on_with_a_tuning(own_store):
    record = total.warmup(XS, SCALE)
    store = Store(own_store)
    store.put(_signature.digest(record.key), record.replace(complete=False, spent_s=9.0, budget_s=10.0))
    store.close()
    assert total.explain_miss(XS, SCALE).endswith(
        "remembered: 0=inline; a call goes on with its tuning first, of which 9 s of a budget of 10 s were spent"
    )
    for told in ({"budget_s": 11.0}, {"mode": "cached"}):
        with settings(**told):
            assert total.explain_miss(XS, SCALE).endswith("remembered: 0=inline")


def test_explain_miss_of_a_call(tunings):
    assert "nothing of this function" in total.explain_miss(XS, SCALE)
    total.warmup(XS, SCALE)
    assert "no miss, the record" in total.explain_miss(XS, SCALE)
    assert "remembered: 0=inline" in total.explain_miss(XS, SCALE)
    text = total.explain_miss(jax.ShapeDtypeStruct((5, 2), jnp.float32), SCALE)
    assert "same program, argument 0 was f32[3,2], is f32[5,2]" in text
    command = f"python -m autoloop warm {__name__}:total --specs "
    assert f"""{command}'{{"args": ["f32[5,2]", {{"by": 2.0}}]}}'""" in text
    text = total.explain_miss(XS, {"by": jnp.float32(2)})
    assert "argument 1['by'] was f32[]*, is f32[]" in text
    assert "static arguments were none, are times=3" in total.explain_miss(XS, SCALE, times=3)
    assert len(tunings) == 1


def test_explain_miss_where_nothing_is_looked_up():
    assert "there is no loop" in autoloop(lambda x: x + 1).explain_miss(XS)
    loud = autoloop(lambda xs: lax.scan(lambda c, x: (io_callback(print, None, x), (c, c))[1], 0.0, xs))
    assert "side effects" in loud.explain_miss(XS)

    def outer(w):
        inner = autoloop(lambda xs: lax.scan(lambda c, x: (c * w, x), 0.0, xs)[0])
        texts.append(inner.explain_miss(XS))
        return w

    texts = []
    jax.make_jaxpr(outer)(1.0)
    assert "closes over values of an outer trace" in texts[0]


@pytest.mark.parametrize(
    ("winner", "why"),
    [
        ("eagerly", "is of another version of autoloop"),
        ("0=eagerly(3)", "does not fit the program: "),
        ("3=inline", "does not fit the program: "),
    ],
)
def test_a_plan_that_can_not_be_used_is_explained(winner, why, own_store):
    record = total.warmup(XS, SCALE)
    key = _signature.digest(record.key)
    store = Store(own_store)
    trials = (*record.trials, record.trials[1].replace(plan=winner))
    store.put(key, record.replace(winner=winner, trials=trials))
    total._decider._known.clear()
    text = total.explain_miss(XS, SCALE)
    assert f"its plan '{winner}' {why}" in text
    assert key[:12] in text
    store.close()


def test_a_strict_error_says_which_part_missed_and_how_to_warm_it():
    total.warmup(XS, SCALE)
    with settings(mode="strict"), pytest.raises(MissError) as caught:
        total(ramp(5, 2), SCALE)
    for part in (
        f"{__name__}.total(f32[5,2] f32[]*): no record is remembered",
        "same program, argument 0 was f32[3,2], is f32[5,2]",
        f"python -m autoloop warm {__name__}:total --specs",
    ):
        assert part in str(caught.value)


def test_a_function_that_can_not_be_imported_gets_advice_instead_of_a_command():
    local = autoloop(lambda xs: lax.scan(lambda c, x: (c + x, c), jnp.zeros(2), xs))
    text = local.explain_miss(XS)
    assert "python -m" not in text
    assert "call .warmup(...) with these shapes" in text
    assert "can't be imported under its name" in text


def test_the_command_of_a_script_is_none():
    assert _wanted.importable(total._function) == f"{__name__}:total"
    assert _wanted.importable(autoloop(len)._function) is None  # builtins.len is not decorated


def test_a_stored_record_of_an_older_schema_is_tuned_again_and_explained_before(own_store, tunings):
    record = total.warmup(XS, SCALE)
    key, store = _signature.digest(record.key), Store(own_store)
    stale = json.dumps({**record.to_dict(), "schema": 0})
    store._attempt(lambda cache: cache.set(key, stale))
    total._decider._known.clear()
    text = total.explain_miss(XS, SCALE)
    assert "it is of this very call, but can't be read: record schema is 0, this version reads 1" in text
    assert total.warmup(XS, SCALE).winner == "0=inline"
    assert len(tunings) == 2
    assert store.get(key) is not None
    store.close()
