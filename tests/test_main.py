import jax.numpy as jnp
import pytest
from jax import lax

from autoloop import _demo, autoloop
from autoloop.__main__ import main
from autoloop._records import Record, Status, Trial


def trial(plan, ratio=1.0, build=0.1, **changes):
    times = {"run_s": 1e-3 * ratio, "run_low_s": 0.9e-3 * ratio, "run_high_s": 1.1e-3 * ratio}
    ratios = {"ratio": ratio, "ratio_low": 0.95 * ratio, "ratio_high": 1.05 * ratio}
    given = {"trace_s": 0.0, "compile_s": build, "peak_bytes": 4096, "max_error": 0.0, "rounds": 9}
    return Trial(plan, **{**times, **ratios, **given, **changes})


def record(*trials, winner="as-written", **changes):
    return Record("m.f", {"arguments": "f32[3]", "device": "cpu cpu x1"}, winner, trials, "because", **changes)


@pytest.fixture
def stored(tunings):
    fun = autoloop(
        lambda x: lax.scan(lambda c, _: (c * 0.5, None), x, None, length=3)[0], forms=["inline"], budget_s=60
    )
    return fun.warmup(jnp.float32(1.0))


def test_an_empty_store_is_said(capsys):
    assert main(["list"]) == 0
    assert capsys.readouterr().out == "no records\n"


def test_list_show_and_clear(stored, capsys, own_store):
    assert main(["list"]) == 0
    header, row = capsys.readouterr().out.splitlines()
    assert header.split() == ["key", "function", "shapes", "device", "plan", "gain", "age", "state"]
    key = row.split()[0]
    assert "f32[]" in row
    assert stored.winner in row
    assert main(["show", key[:6]]) == 0
    assert f"plan in force: {stored.winner}" in capsys.readouterr().out
    assert main(["path"]) == 0
    assert capsys.readouterr().out.strip() == str(own_store)
    assert main(["clear"]) == 0
    assert capsys.readouterr().out == "dropped 1 record\n"
    assert main(["list"]) == 0
    assert capsys.readouterr().out == "no records\n"


def test_an_unknown_key_is_said_on_standard_error(stored, capsys):
    assert main(["show", "zzz"]) == 1
    assert "no record has a key that begins with 'zzz'" in capsys.readouterr().err
    assert main(["show", ""]) == 0  # the only record there is


@pytest.mark.parametrize("words", [[], ["fly"], ["show"], ["demo", "--budget", "-1"], ["demo", "--budget", "x"]])
def test_wrong_usage_ends_with_2(words, capsys):
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 2
    assert "usage" in capsys.readouterr().err


def test_a_bad_setting_ends_with_2(monkeypatch, capsys):
    monkeypatch.setenv("AUTOLOOP_MODE", "fast")
    with pytest.raises(SystemExit):
        main(["list"])
    assert "AUTOLOOP_MODE must be one of" in capsys.readouterr().err


def test_the_demo_tries_the_classic_forms_and_answers(own_store):
    found = _demo.measure(budget_s=20.0, sizes=(6, 2, 3, 4))
    assert {"as-written", "0=python(1)"} <= {t.plan for t in found.trials}
    text = _demo.text(found)
    assert text.count("The Python outer loop") == 1
    assert (f"Winner: {found.winner}" in text) != ("No other form won, so it stays as written: " in text)
    assert not own_store.exists()


@pytest.mark.parametrize(
    ("python", "words"),
    [
        (trial("0=python(1)", 2.0, 0.05), ["compiles faster", "It runs slower: 2 ms a call against 1 ms", "2.00x"]),
        (trial("0=python(1)", 0.5, 0.5), ["compiles slower", "It runs faster"]),
        (trial("0=python(1)", 1.0, 0.1), ["compiles about as fast", "neither faster nor slower"]),
        (
            trial("0=python(1)", 1.1).replace(ratio_low=0.7, ratio_high=2.2),
            ["Whether it runs faster can't be told, the measurements vary too much: 1.1 ms a call", "(0.70 to 2.20)"],
        ),
        (
            trial("0=python(1)", 1.28).replace(run_s=0.7e-3, ratio_low=1.24, ratio_high=1.32),
            ["It runs slower: 1.28x the time as written (1.24 to 1.32)."],
        ),
        (Trial("0=python(1)", Status.SKIPPED, "too dear"), ["was not measured: too dear"]),
    ],
)
def test_the_answer_follows_the_figures(python, words):
    text = _demo.answer(record(trial("as-written"), python))
    assert all(word in text for word in words)


@pytest.mark.parametrize(
    ("winner", "words"),
    [
        ("0=python(1)", "\nWinner: 0=python(1), 0.50x the time as written.\n"),
        ("as-written", "\nNo other form won, so it stays as written: because.\n"),
    ],
)
def test_the_demo_says_who_won_or_that_nobody_did(winner, words):
    assert words in _demo.text(record(trial("as-written"), trial("0=python(1)", 0.5), winner=winner))


def test_the_answer_without_a_python_loop():
    assert "it is not legal" in _demo.answer(record(trial("as-written")))


def test_whoever_reads_may_stop_reading(python):
    gone = "import os, sys; reader, writer = os.pipe(); os.close(reader); os.dup2(writer, 1)"
    python(f"{gone}; import autoloop.__main__ as command; sys.exit(command.main(['path']))")
