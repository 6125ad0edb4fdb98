"""The report as text: what is in force first, a table that fits the screen, one line for each reason."""

import re

import jax.numpy as jnp
import pytest
from jax import lax

import autoloop as package
from autoloop import Record, Status, Trial, _report, autoloop, settings


def trial(plan, ratio=1.0, build=0.1, **changes):
    times = {"run_s": 1e-3 * ratio, "run_low_s": 0.9e-3 * ratio, "run_high_s": 1.1e-3 * ratio}
    ratios = {"ratio": ratio, "ratio_low": 0.95 * ratio, "ratio_high": 1.05 * ratio}
    given = {"trace_s": 0.02, "compile_s": build, "peak_bytes": 4096, "max_error": 0.0, "rounds": 9}
    return Trial(plan, **{**times, **ratios, **given, **changes})


def skipped(plan, reason):
    return Trial(plan, Status.SKIPPED, reason)


def record(*trials, winner="as-written", verdict="because", **changes):
    return Record("m.f", {"arguments": "f32[3]", "device": "cpu cpu x1"}, winner, trials, verdict, **changes)


TRIALS = (
    trial("as-written"),
    trial("0=inline", 0.5, breakeven_calls=123.0),
    trial("0=unroll(2)", 1.5),
    trial("0=unroll(4)", 1.0),
    trial("0=python(1)", 0.1, status=Status.WRONG, reason="output 0 is off"),
    skipped("0=eager", "too dear"),
)


def text(*trials, **changes):
    return _report.text(record(*(trials or TRIALS), **changes))


# ---------------------------------------------------------------- the table


def test_the_table_ranks_what_was_tried():
    lines = _report.table(record(*TRIALS, winner="0=inline")).splitlines()
    plans = ["plan", "0=inline", "as-written", "0=unroll(4)", "0=unroll(2)", "0=python(1)"]
    assert [line.split()[0] for line in lines] == plans
    ends = ["verdict", "chosen", "the baseline", "unclear, 0.95-1.05", "slower", "wrong"]
    assert all(line.endswith(end) for line, end in zip(lines, ends, strict=True))
    for cell in (" 0.5 ", " 0.45-0.55 ", " 0.500 ", " 0.02+0.10 ", " 4.1 kB ", " 0.0e+00 ", " 123 calls "):
        assert cell in lines[1]


def test_a_time_of_one_round_has_no_interval():
    assert " run once " in _report.table(record(trial("as-written"), trial("0=inline", 7.0, rounds=1)))


XLA = ("xla_backend_optimization_level=1", "xla_cpu_opt_preset=CPU_OPT_PRESET_FAST_COMPILE")


def test_the_table_fits_120_columns_whatever_xla_options_a_plan_has():
    plans = [f"0=python(16) 0/0=unroll(16) {option}" for option in XLA] + [XLA[1]]
    trials = [trial(plan, 12.345, breakeven_calls=12345.0) for plan in plans]
    shown = _report.table(record(trial("as-written"), *trials))
    assert max(map(len, shown.splitlines())) <= 120
    for line in ("[a] is " + XLA[0], "[b] is " + XLA[1]):
        assert line in shown.splitlines()
    firsts = [line.split("  ")[0] for line in shown.splitlines()]
    assert firsts[2:5] == ["0=python(16) 0/0=unroll(16) [a]", "0=python(16) 0/0=unroll(16) [b]", "[b]"]


def test_lines_around_the_table_are_wrapped():
    late = [skipped(f"0=unroll({k})", "the budget was spent") for k in range(2, 30)]
    whole = text(trial("as-written"), trial("0=inline", 0.5), *late)
    table = _report.table(record(trial("as-written"), trial("0=inline", 0.5))).splitlines()
    around = [line for line in whole.splitlines() if line not in table]
    assert max(map(len, around)) <= _report.COLUMNS
    assert "  two run ms; unclear: its 95 % interval, which follows, holds 1" in around


@pytest.mark.parametrize(
    ("count", "shown"),
    [(None, "-"), (0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (2.5e6, "2.5 MB"), (7e12, "7e+03 GB")],
)
def test_sizes_are_short(count, shown):
    assert _report.size_text(count) == shown


# ---------------------------------------------------------------- around it


def test_the_verdict_comes_before_the_table():
    verdict = "0=inline runs 2.00x as fast as written"
    lines = text(winner="0=inline", verdict=verdict).splitlines()
    assert lines[0] == "m.f  [f32[3]]"
    assert lines[2] == "plan in force: 0=inline (runs 2.00x as fast as written)"
    assert lines[4].startswith("plan ")


def test_what_went_wrong_stands_below_the_table():
    assert "wrong: 0=python(1): output 0 is off" in text().splitlines()


def test_plans_that_did_not_run_are_one_line_for_each_reason():
    late = [skipped(f"0=unroll({k})", "the budget was spent") for k in range(2, 30)]
    dear = [
        skipped(f"0/0=unroll({k})", f"building would take about {k}.5 s (predicted from {near})")
        for k, near in ((60, "0=inline"), (70, "as-written"))
    ]
    lines = _report.below(record(trial("as-written"), *dear, *late))
    assert [line for line in lines if line.startswith("not run")] == [
        "not run: 28 plans, the budget was spent: "
        "0=unroll(2), 0=unroll(3), 0=unroll(4), 0=unroll(5), 0=unroll(6) and 23 more",
        "not run: 2 plans, building would take about 60.5 s (predicted from 0=inline); the others likewise: "
        "0/0=unroll(60), 0/0=unroll(70)",
    ]
    assert not any(line.startswith("0=unroll(2)") for line in text(trial("as-written"), *late).splitlines())


def test_one_plan_that_did_not_run_is_one():
    assert "not run: 1 plan, too dear: 0=eager" in text().splitlines()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"spent_s": 9.0}, "in 9.0 s, budget 10 s"),
        ({"spent_s": 11.2}, "in 11.2 s, budget 10 s: the last trial was let finish"),
        ({"spent_s": 9.0, "complete": False}, "budget 10 s: what would not have fitted into it was not run"),
        ({"spent_s": 11.0, "complete": False}, "it ended the search, and the last trial was let finish"),
        ({"spent_s": 3.0, "complete": False, "interrupted": True}, "it was interrupted, and goes on at the next call"),
    ],
)
def test_the_budget_does_not_contradict_itself(changes, said):
    (line,) = [line for line in text(budget_s=10.0, created="2026", **changes).splitlines() if "budget" in line]
    assert line.startswith("tuned 2026 in ")
    assert line.endswith(said)


def test_it_says_after_how_many_calls_the_tuning_is_paid_for():
    assert "budget 30 s; 18,000 calls pay it back" in text(winner="0=inline", spent_s=9.0, budget_s=30.0)


def test_a_record_without_a_tuning_has_no_legend():
    untuned = record(Trial("as-written", reason="no loop"), verdict="not tuned: no loop", created="2026")
    assert "plan in force: as-written (not tuned: no loop)" in _report.text(untuned)
    assert "ratio:" not in _report.text(untuned)
    assert _report.text(untuned).endswith("\ndecided 2026")


def test_a_record_prints_as_its_report():
    shown = record(*TRIALS, notes=("the machine was busy",))
    assert str(shown) == _report.text(shown)
    assert str(shown).endswith("\nnote: the machine was busy")


def test_what_an_arguments_star_is():
    weak = record(*TRIALS).replace(key={"arguments": "f32[3] f32[]*"})
    assert "\n*: an argument of weak type, as a Python number is\n" in _report.text(weak)
    assert "weak type" not in _report.text(record(*TRIALS))


# ---------------------------------------------------------------- another plan is forced


XS = jnp.arange(4.0)


@pytest.fixture
def total(quick):
    @autoloop(forms=["inline"], budget_s=60)
    def total(xs):
        return lax.scan(lambda c, x: (c * 0.5 + x, None), 0.0, xs)[0]

    return total


def test_a_forced_plan_is_in_force_and_the_report_says_so(total):
    total(XS)
    assert str(total.plan(XS)) == "0=inline"
    with settings(plan="0=unroll(2)"):
        assert str(total.plan(XS)) == "0=unroll(2)"
        assert total.report(XS).winner == "0=inline"
        assert "plan in force: 0=unroll(2), forced; the remembered is 0=inline (" in str(total.report(XS))
    assert str(total.plan(XS)) == "0=inline"
    assert "forced" not in str(total.report(XS))


@pytest.mark.filterwarnings("ignore:autoloop. the forced plan does not fit")
def test_a_forced_plan_that_does_not_fit_is_not_said_to_be_in_force(total):
    total(XS)
    with settings(plan="7=inline"):
        assert "plan in force: as-written (as 7=inline does not fit), forced; the rem" in str(total.report(XS))


def test_a_forced_plan_has_a_report_even_if_nothing_is_remembered(total, monkeypatch, own_store):
    monkeypatch.setenv("AUTOLOOP_PLAN", "0=unroll(2)")
    assert str(total.plan(XS)) == "0=unroll(2)"
    assert "plan in force: 0=unroll(2), forced (nothing is remembered for these arguments)" in str(total.report(XS))
    assert re.search(r"these arguments\)\n\ndecided \S+\Z", str(total.report(XS)))  # no table without a figure
    monkeypatch.delenv("AUTOLOOP_PLAN")
    assert total.plan(XS) is None
    assert total.report(XS) is None


def test_a_forced_plan_that_does_not_fit_leaves_as_written_in_force(total):
    with settings(plan="3=inline"), pytest.warns(package.AutoloopWarning, match="does not fit"):
        assert total.plan(XS).as_written


def test_in_mode_off_no_plan_is_in_force(total):
    total(XS)
    with settings(mode="off"):
        assert total.plan(XS) is None
        assert "plan in force: as-written (mode 'off'), forced; the remembered is 0=inline" in str(total.report(XS))
        assert total.report(XS * 1j) is None


def test_a_pinned_function_says_its_plan(total):
    assert str(total.using("0=unroll(2)").plan(XS)) == "0=unroll(2)"
