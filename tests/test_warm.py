"""Tuning ahead of time: made arguments, modes per function, what is wanted, and the commands for it."""

import json
import sys
import types

import jax
import jax.numpy as jnp
import pytest
from helpers import assert_same, ramp
from jax import lax

from autoloop import (
    MissError,
    Record,
    Trial,
    _config,
    _decide,
    _doctor,
    _made,
    _progress,
    _wanted,
    _warm,
    autoloop,
    settings,
)
from autoloop.__main__ import main
from autoloop._store import Store

pytestmark = pytest.mark.usefixtures("quick")

XS = ramp(3, 2)
SPEC = jax.ShapeDtypeStruct((3, 2), jnp.float32)


def walk(xs, scale):
    return lax.scan(lambda c, x: (c * 0.5 + x * scale, c.sum()), jnp.zeros(xs.shape[1:]), xs)


def stored():
    return dict(_decide.store_of(_config.current()).items())


@pytest.fixture
def module(monkeypatch):
    """A user's module, with two decorated functions, one that fails, and specs."""
    found = types.ModuleType("users_module")

    def put(name, fun, **options):
        fun.__module__, fun.__qualname__ = "users_module", name
        setattr(found, name, autoloop(fun, forms=["inline"], **options))

    put("walk", lambda xs, scale: walk(xs, scale))
    put("total", lambda xs: walk(xs, 1.0))
    put("fails", lambda xs: 1 / 0)
    put("flat", lambda xs: xs + 1)
    found.plain = walk
    found.specs = [(SPEC, 2.0), {"args": (SPEC,), "kwargs": {"scale": 2.0}}]
    found.by_target = lambda: {"users_module:total": (SPEC,), "users_module:walk": [(SPEC, 0.5)]}
    monkeypatch.setitem(sys.modules, "users_module", found)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return found


# ------------------------------------------------ made arguments


def index(xs, at):
    return lax.scan(lambda c, i: (c + xs[i], c), jnp.zeros(2), at)


AT = jax.ShapeDtypeStruct((4,), jnp.int32)


def test_make_inputs_gives_the_values_that_specs_lack():
    seen = []

    def make(xs, at):
        seen.append((xs, at))
        return {"at": jnp.array([2, 0, 1, 2], jnp.int32)}

    fun = autoloop(index, forms=["inline"], make_inputs=make)
    call = _made.call(fun._function, fun._options, (SPEC, AT), {})
    assert call.args[0] is SPEC
    assert call.args[1].tolist() == [2, 0, 1, 2]
    record = fun.warmup(SPEC, at=AT)
    assert seen[0] == (SPEC, AT)
    assert record.notes == (
        "arguments were made by make_inputs, not real",
        "arguments were made from their specs, not real",
    )
    assert_same(jax.jit(index)(XS, jnp.zeros(4, int)), fun(XS, at=jnp.zeros(4, int)))


def test_make_inputs_of_one_warmup_wins_over_the_decorators(tunings):
    fun = autoloop(index, forms=["inline"], make_inputs=lambda xs, at: 1 / 0)
    record = fun.warmup(SPEC, AT, make_inputs=lambda xs, at: {"xs": XS, "at": jnp.zeros(4, jnp.int32)})
    assert record.notes == ("arguments were made by make_inputs, not real",)
    assert len(tunings) == 1
    fun.warmup(XS[:2], jnp.zeros(4, jnp.int32))  # nothing is missing, so nothing is made


def test_a_function_may_have_a_parameter_of_that_name():
    fun = autoloop(lambda xs, make_inputs: walk(xs, make_inputs), forms=["inline"])
    assert fun.warmup(SPEC, make_inputs=2.0).winner == "0=inline"


@pytest.mark.parametrize(
    ("made", "error", "message"),
    [
        ([1], TypeError, "must return a dict whose names are among xs, at; got list"),
        ({"to": 1}, TypeError, r"names are among xs, at; got \['to'\]"),
        ({"at": jnp.zeros(5, jnp.int32)}, ValueError, r"argument 1 is i32\[5\], its spec i32\[4\]"),
        ({"at": [jnp.zeros(4, jnp.int32)]}, ValueError, "their structure differs"),
    ],
)
def test_inputs_that_do_not_fit_are_said(made, error, message):
    with pytest.raises(error, match=message):
        autoloop(index, make_inputs=lambda xs, at: made).warmup(SPEC, AT)


# ------------------------------------------------ a mode of one function


def test_a_function_has_a_mode_of_its_own(tunings, monkeypatch):
    strict, free = (autoloop(walk, forms=["inline"], mode=mode) for mode in ("strict", None))
    with pytest.raises(MissError):
        strict(XS, 2.0)
    assert strict.plan(XS, 2.0) is None
    with settings(mode="cached"):  # says more than the decorator
        assert_same(jax.jit(walk)(XS, 2.0), strict(XS, 2.0))
    monkeypatch.setenv("AUTOLOOP_MODE", "off")
    assert_same(jax.jit(walk)(XS, 2.0), strict(XS, 2.0))
    monkeypatch.delenv("AUTOLOOP_MODE")
    assert tunings == []
    free(XS, 2.0)
    again = autoloop(walk, forms=["inline"], mode="strict")
    assert_same(jax.jit(walk)(XS, 2.0), again(XS, 2.0))
    assert len(tunings) == 1


def test_the_mode_off_of_a_function_is_plain_jit(tunings):
    fun = autoloop(walk, forms=["inline"], mode="off")
    assert_same(jax.jit(walk)(XS, 2.0), fun(XS, 2.0))
    assert tunings == []
    assert stored() == {}


# ------------------------------------------------ what is wanted


def noted():
    return _wanted.noted(_decide.store_of(_config.current()))


def test_a_miss_in_mode_cached_is_noted(module, tunings, monkeypatch):
    monkeypatch.setenv("AUTOLOOP_MODE", "cached")
    for _ in range(3):
        module.walk(XS, 2.0)
    module.walk._reset()  # as in another process
    module.walk(XS, 2.0)
    module.total(XS)
    jax.jit(module.total)(ramp(5, 2))
    module.flat(XS)  # has no loop, so it is not wanted
    first, *others = noted()
    assert (first.function, first.target, first.count) == ("users_module.walk", "users_module:walk", 2)
    assert first.specs == {"args": ["f32[3,2]", 2.0]}
    assert {(w.function, w.parts["arguments"], w.count) for w in others} == {
        ("users_module.total", "f32[3,2]", 1),
        ("users_module.total", "f32[5,2]", 1),
    }
    assert stored() == {}
    assert tunings == []


@pytest.mark.parametrize("mode", ["strict", "off"])
def test_other_modes_want_nothing(mode, module, monkeypatch):
    monkeypatch.setenv("AUTOLOOP_MODE", mode)
    try:
        module.total(XS)
    except MissError:
        assert mode == "strict"
    assert noted() == []


def test_what_can_not_be_made_again_is_noted_with_the_reason(monkeypatch):
    monkeypatch.setenv("AUTOLOOP_MODE", "cached")
    local = autoloop(lambda xs: walk(xs, 1.0))
    local(XS)
    (wanted,) = noted()
    assert wanted.target is None
    assert "can't be imported under its name" in wanted.problem
    assert _wanted.command(wanted) is None


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "3",
        "{}",
        '{"function": 1}',
        '{"function": "f", "target": 3, "specs": null, "problem": "", "parts": {}}',
    ],
)
def test_a_note_that_is_none_is_passed_over(text, own_store):
    store = Store(own_store)
    store.note("wanted:x", lambda old: text)
    assert _wanted.noted(store) == []
    assert list(store.items()) == []
    store.close()


def test_a_note_that_can_not_be_kept_costs_nothing(module, monkeypatch):
    module.total.warmup(XS)
    monkeypatch.setenv("AUTOLOOP_MODE", "cached")
    monkeypatch.setattr("diskcache.Cache.set", lambda *args, **kwargs: 1 / 0)
    assert_same(jax.jit(walk)(XS, 2.0), module.walk(XS, 2.0))  # warnings are errors here
    module.total._reset()
    module.total._decider._known.clear()
    assert str(module.total.plan(XS)) == "0=inline"


def test_warm_wanted_tunes_what_was_noted_and_clears_it(module, tunings, monkeypatch, capsys):
    monkeypatch.setenv("AUTOLOOP_MODE", "cached")
    module.walk(XS, 2.0)
    module.total(XS)
    autoloop(lambda xs: walk(xs, 3.0))(XS)
    assert main(["warm", "--wanted"]) == 1
    out = capsys.readouterr().out
    assert "users_module:walk(f32[3,2] f32[]*): 0=inline, 2.00x as fast as written, tuned in" in out
    assert "can't be imported under its name" in out
    assert "2 of 3 are tuned" in out
    assert [wanted.target for wanted in noted()] == [None]
    assert sorted(tunings) == ["users_module.total", "users_module.walk"]
    monkeypatch.setenv("AUTOLOOP_MODE", "strict")
    module.walk._reset()
    assert_same(jax.jit(walk)(XS, 2.0), module.walk(XS, 2.0))


def test_warm_wanted_of_some_functions(module, monkeypatch, capsys):
    monkeypatch.setenv("AUTOLOOP_MODE", "cached")
    module.walk(XS, 2.0)
    module.total(XS)
    assert main(["warm", "users_module:total", "--wanted"]) == 0
    assert [wanted.target for wanted in noted()] == ["users_module:walk"]
    assert main(["warm", "users_module:total", "--wanted"]) == 0
    assert "nothing is wanted" in capsys.readouterr().out


def test_a_wanted_call_of_another_machine_stays_wanted(module, own_store, monkeypatch, capsys):
    monkeypatch.setenv("AUTOLOOP_MODE", "cached")
    with monkeypatch.context() as patch:
        patch.setattr("autoloop._signature.host_part", lambda: "another processor")
        module.total(XS)
    assert main(["warm", "--wanted"]) == 1
    assert (
        "the call that was wanted is another: same program, processor another processor ->" in capsys.readouterr().out
    )
    assert len(noted()) == 1


# ------------------------------------------------ the command


def test_warm_takes_specs_of_every_kind(module, tmp_path, tunings, capsys):
    file = tmp_path / "specs.json"
    file.write_text('{"users_module:total": [["f32[3,2]"], ["f32[4,2]"]]}')
    for words in (
        ["users_module:walk", "--specs", "users_module:specs"],
        ["--specs", str(file)],
        ["users_module:total", "--specs", '{"args": ["f32[5,2]"]}'],
        ["users_module:total", "--specs", "users_module:by_target"],
    ):
        assert main(["warm", *words, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert all(one["plan"] == "0=inline" and one["problem"] == "" for one in found)
    assert tunings.count("users_module.walk") == 1  # by keyword or not, it is the same call
    assert tunings.count("users_module.total") == 3


def test_warm_goes_on_after_a_failure_and_names_it(module, tunings, capsys):
    targets = ["users_module:fails", "users_module:flat", "users_module:total"]
    assert main(["warm", *targets, "--specs", '["f32[3,2]"]', "--budget", "5"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "[1/3] users_module:fails(f32[3,2]): failed: ZeroDivisionError: division by zero"
    assert lines[1].startswith("[2/3] users_module:flat(f32[3,2]): failed: not tuned: there is no loop")
    assert lines[2].startswith("[3/3] users_module:total(f32[3,2]): 0=inline")
    assert lines[3:] == ["1 of 3 are tuned"]
    ((_, record),) = stored().items()
    assert record.budget_s == 5
    assert main(["warm", "users_module:total", "--specs", '["f32[3,2]"]']) == 0
    assert len(tunings) == 1


def test_a_bar_is_shown_where_there_is_one(module, monkeypatch, capsys):
    shown = []

    class Bar:
        def __init__(self, total, **how):
            shown.append(total)

        def update(self):
            shown.append("update")

        def set_postfix_str(self, text):
            shown.append(text)

        def close(self):
            shown.append("closed")

    monkeypatch.setattr(_progress, "bar_class", lambda: Bar)
    assert main(["warm", "users_module:total", "--specs", '["f32[3,2]"]']) == 0
    assert shown == [1, "update", "users_module:total", "closed"]
    out, err = capsys.readouterr()
    assert (out.count("users_module:total"), err) == (1, "")


def test_outcomes_do_not_stand_in_the_json(module, tunings, capsys):
    assert main(["warm", "users_module:total", "--specs", '["f32[3,2]"]', "--json"]) == 0
    out, err = capsys.readouterr()
    assert [one["plan"] for one in json.loads(out)] == ["0=inline"]
    assert err.startswith("[1/1] users_module:total(f32[3,2]): 0=inline")


def test_a_search_that_its_budget_ended_is_said_to_be_partial():
    trials = Trial("as-written"), Trial("0=inline", ratio=0.5)
    record = Record("m.f", {}, "0=inline", trials, complete=False, spent_s=3.0, budget_s=3.0)
    done = str(_warm.Done("m:f", "f32[3]", record, fresh=True))
    assert done.startswith("m:f(f32[3]): 0=inline, 2.00x as fast as written, tuned in 3.0 s, partial: its budget")
    assert "partial" not in str(_warm.Done("m:f", "f32[3]", record.replace(complete=True), fresh=True))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "warm needs --specs"),
        (["users_module:total"], "warm needs --specs"),
        (["--specs", "[]"], "name a module:function"),
        (["users_module:totl", "--specs", "[]"], "did you mean 'total'?"),
        (["users_modul:total", "--specs", "[]"], "users_modul can't be imported"),
        (["users_module", "--specs", "[]"], "write module:name"),
        (["users_module:plain", "--specs", "[]"], "is not decorated with @autoloop; it is a function"),
        (["users_module:total", "--specs", "no-such-file"], "there is no file 'no-such-file'"),
        (["users_module:total", "--specs", "{"], "is not JSON"),
        (["users_module:total", "--specs", '["f32"]'], "an array is written as f32[64,128]"),
        (["users_module:total", "--specs", "users_module:plain"], "missing 2 required"),
        (["users_module:total", "--specs", "users_module:__name__"], "specs in Python are a tuple"),
        (["users_module:flat", "--specs", "users_module:by_target"], "the specs do not name users_module:flat"),
        (["users_module:total", "--specs", "[]", "--budget", "-1"], "--budget must be a finite number"),
    ],
)
def test_wrong_usage_of_warm(words, message, module, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["warm", *words])
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


def test_explain_a_call_and_what_is_wanted(module, monkeypatch, capsys):
    assert main(["explain"]) == 0
    assert "no call is noted as wanted" in capsys.readouterr().out
    module.total.warmup(XS)
    monkeypatch.setenv("AUTOLOOP_MODE", "cached")
    module.total(ramp(5, 2))
    words = ["explain", "users_module:total", "--specs", '[["f32[3,2]"], ["f32[5,2]"]]', "--json"]
    assert main(words) == 0
    hit, miss = json.loads(capsys.readouterr().out)
    ((key, _),) = stored().items()
    assert (hit["miss"], hit["nearest"], hit["differences"]) == (False, None, [])
    assert (miss["miss"], miss["nearest"]) == (True, key)
    assert miss["differences"] == ["same program", "argument 0 was f32[3,2], is f32[5,2]"]
    assert main(["explain"]) == 0
    out = capsys.readouterr().out
    assert "array 0 was f32[3,2], is f32[5,2]" in out
    assert "met 1 time," in out
    assert """to warm it: python -m autoloop warm users_module:total --specs '{"args": ["f32[5,2]"]}'""" in out


def test_explain_needs_specs(module, capsys):
    with pytest.raises(SystemExit):
        main(["explain", "users_module:total"])
    assert "needs --specs: the arguments of the call" in capsys.readouterr().err


def test_explain_of_specs_that_the_function_can_not_take(module, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["explain", "users_module:total", "--specs", '{"args": [["f32[5,2]", "f32[3]"]]}'])
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert "users_module:total can't be traced with these specs: " in error
    assert 'write {"tuple": [...]} where the function takes a tuple' in error
    assert "Traceback" not in error


# ------------------------------------------------ the doctor


def test_the_doctor_finds_a_good_store(module, capsys, monkeypatch, tmp_path):
    module.total.warmup(XS)
    monkeypatch.setenv("AUTOLOOP_MODE", "cached")
    module.walk(XS, 2.0)
    assert main(["doctor", "--json"]) == 0
    found = {finding["name"]: finding for finding in json.loads(capsys.readouterr().out)}
    assert found["permissions"]["text"].startswith("mode 0700")
    assert found["records"]["text"] == "1 stored, 0 of them unreadable by this version"
    assert found["wanted"] == {"name": "wanted", "state": "look", "text": found["wanted"]["text"]}
    assert f"jax {jax.__version__}" in found["versions"]["text"]
    assert {"device", "store", "timer", "noise", "noise of the device", "other processes"} <= set(found)
    assert "mode cached" in found["settings"]["text"]


def test_the_doctor_finds_what_is_broken(own_store, monkeypatch, tmp_path, capsys):
    own_store.write_text("")
    monkeypatch.setenv("AUTOLOOP_WISDOM", str(tmp_path / "none.json"))
    assert main(["doctor"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if " broken " in line] == ["store", "wisdom"]


def test_the_doctor_finds_records_of_another_version(own_store, capsys):
    store = Store(own_store)
    store._attempt(lambda cache: cache.set("old", '{"schema": 0}'))
    (finding, _) = _doctor._contents(store)
    assert finding.state == "look"
    assert "prune --unreadable" in finding.text
    store.close()


def test_a_coarse_timer_and_a_noisy_machine_are_said(monkeypatch):
    ticks = iter([i // 100 * 1e-3 for i in range(10_000)])
    assert _doctor.timer(lambda: next(ticks)) == ("timer", "look", "steps of 1000000 ns")
    assert _doctor.timer(lambda: 0.0).state == "look"
    times = iter([t for i in range(1000) for t in (10.0 * i, 10.0 * i + 1 + (i % 3))])
    states = [(finding.name, finding.state) for finding in _doctor.noise(lambda: next(times))]
    assert states[1] == ("noise of the device", "look")
    for load, state in ((1000.0, "look"), (0.0, "fine")):
        monkeypatch.setattr("autoloop._machine.load", lambda load=load: load)
        monkeypatch.setattr("autoloop._machine.busy_note", lambda *given: "busy" if given[-1] > 10 else "")
        assert _doctor.others().state == state


def test_the_command_and_the_script_agree_on_what_is_imported(module):
    assert _warm.function("users_module:total") is module.total


# ------------------------------------------------ jax's own cache

COMPILED = """
import jax, jax.numpy as jnp
from jax import lax
import fakes
from autoloop import autoloop

fakes.make_quick()
hits = []
jax.monitoring.register_event_listener(lambda name, **_: hits.append(name) if name.endswith("cache_hits") else None)

@autoloop(forms=["inline"])
def total(xs):
    return lax.scan(lambda c, x: (c * 0.5 + x, c.sum()), jnp.zeros(2), xs)

spec = jax.ShapeDtypeStruct((3, 2), jnp.float32)
xs = jnp.zeros((3, 2))
hits.clear()
if {warm}:
    total.warmup(spec)
else:
    total(xs)
print(len(hits), str(total.plan(spec)))
"""


@pytest.mark.slow
def test_warming_leaves_the_winners_executable_in_jaxs_cache(python, tmp_path):
    variables = {
        "AUTOLOOP_CACHE_DIR": str(tmp_path / "store"),
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    assert python(COMPILED.format(warm=True), **variables).split()[1] == "0=inline"
    assert python(COMPILED.format(warm=False), **variables).split() == ["1", "0=inline"]
