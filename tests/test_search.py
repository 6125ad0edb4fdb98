from dataclasses import replace

import pytest

from autoloop import _choose, _foretell, _space
from autoloop._choose import Rules, choose
from autoloop._plan import Choice, Plan
from autoloop._records import Budget, Status, Trial
from autoloop._search import search
from autoloop._space import Axis, Space


def trial(plan, ratio=1.0, spread=0.01, build=0.1, rounds=6, memory=0, run=1.0, **changes):
    return Trial(
        plan,
        trace_s=0.0,
        compile_s=build,
        run_s=run * ratio,
        ratio=ratio,
        ratio_low=ratio * (1 - spread),
        ratio_high=ratio * (1 + spread),
        rounds=rounds,
        peak_bytes=memory,
        spent_s=changes.pop("spent_s", 0.2),
        **changes,
    )


class Table:
    """A measure that reads a table of ratios (or trials) and remembers what it was asked."""

    def __init__(self, table, default=1.5, run=1.0, **changes):
        self.table, self.default, self.run, self.changes, self.asked = table, default, run, changes, []

    def __call__(self, plans, best):
        self.asked.append(tuple(map(str, plans)))
        return [self.one(str(p)) for p in plans]

    def one(self, text):
        found = self.table.get(text, 1.0 if text == "as-written" else self.default)
        if isinstance(found, BaseException):
            raise found
        return found if isinstance(found, Trial) else trial(text, found, run=self.run, **self.changes)

    @property
    def tried(self):
        return [text for plans in self.asked for text in plans if len(plans) == 1]


LADDERS = {
    "unroll": ((2, 4, 8, 16), (100,)),
    "inline": ((None,),),
    "python": ((1,), (16,)),
    "vmap": ((100,), (8, 32)),
    "distribute": (("heavy",), ("all",)),
}


def axis(path, work=1.0, forms=("unroll", "inline", "python"), first=()):
    ladders = [tuple(Choice(path, f, p) for p in ladder) for f in (*first, *forms) for ladder in LADDERS[f]]
    return Axis(path, work, tuple(ladders), sum(len(LADDERS[f]) for f in first))


def copies(plan):
    found = 1.0
    for c in plan.choices:
        found *= 100 if c.form == "inline" else c.parameter if c.form == "unroll" else 1
    return 10.0 * found


def space(axes, illegal=(), options=(), size=copies, dispatches=lambda plan: 1.0, chain=lambda plan: 0):
    return Space(tuple(axes), options, lambda p: "no" if str(p) in illegal else None, size, dispatches, chain)


def run(table, axes=None, budget=1000.0, rules=Rules(), known=(), hint=None, **given):
    axes = [axis((0,))] if axes is None else axes
    return search(space(axes, **given), table, Budget(budget), rules, known, hint)


# ---------------------------------------------------------------- choosing


@pytest.mark.parametrize(
    ("others", "winner"),
    [
        ([], "as-written"),
        ([trial("a", 0.9)], "a"),
        ([trial("a", 1.1)], "as-written"),
        ([trial("a", 0.98)], "as-written"),  # gains less than the margin
        ([trial("a", 0.9, spread=0.2)], "as-written"),  # too noisy
        ([trial("a", 0.5, rounds=5)], "as-written"),  # too few rounds for an interval
        ([trial("a", 0.5), trial("b", 0.49)], "a"),  # a tie, same build: the plan's text
        ([trial("a", 0.5, build=2.0), trial("b", 0.51)], "b"),  # a tie: what builds faster
        ([trial("a", 0.5, memory=9), trial("b", 0.5, memory=5)], "b"),  # then less memory
        ([trial("a", 0.5, build=2.0), trial("b", 0.6)], "a"),  # no tie
        ([trial("a", 0.5, status=Status.WRONG), trial("b", 0.8)], "b"),
        ([trial("a", 0.5, status=Status.SKIPPED)], "as-written"),
        ([Trial("a", Status.FAILED, "boom")], "as-written"),
    ],
)
def test_choice(others, winner):
    assert choose([trial("as-written"), *others], Rules())[0].plan == winner


@pytest.mark.parametrize(
    ("others", "words"),
    [
        ([], "no other plan could be tried"),
        ([trial("a", 1.3)], "no other plan is faster; the best is a at 1.30x"),
        ([trial("a", 0.98)], "gains less than the margin of 3%"),
        ([trial("a", 0.9, spread=0.2)], "too noisy to decide: a"),
        ([trial("a", 0.5)], "a runs 2.00x as fast as written"),
        ([trial("a", 0.5), trial("b", 0.5, build=3.0)], "1 more within the margin"),
    ],
)
def test_verdict_says_why(others, words):
    assert words in choose([trial("as-written"), *others], Rules())[1]


def test_expected_calls_charge_building():
    trials = [trial("as-written", build=1.0), trial("fast", 0.5, build=9.0), trial("quick", 1.5, build=0.1)]
    assert choose(trials, Rules(expected_calls=None))[0].plan == "fast"
    assert choose(trials, Rules(expected_calls=1))[0].plan == "quick"
    assert choose(trials, Rules(expected_calls=1000))[0].plan == "fast"


@pytest.mark.parametrize(
    ("other", "calls"),
    [
        (trial("a", 0.5, build=10.1), 20),
        (trial("a", 0.5, build=0.05), 0),
        (trial("a", 1.5), None),
        (Trial("a", Status.FAILED), None),
    ],
)
def test_breakeven(other, calls):
    assert _choose.with_breakeven([trial("as-written"), other])[1].breakeven_calls == calls


# ---------------------------------------------------------------- searching


def test_as_written_comes_first_and_stays_without_a_better_plan():
    table = Table({})
    found = run(table)
    assert found.trials[0].plan == found.winner == "as-written"
    assert table.asked[0] == ("as-written",)
    assert found.complete


def test_loops_are_searched_by_work_and_what_helps_is_kept():
    table = Table({"0/0=unroll(8)": 0.5, "0=unroll(2) 0/0=unroll(8)": 0.4})
    found = run(table, [axis((0,), 1.0), axis((0, 0), 5.0)])
    assert found.winner == "0=unroll(2) 0/0=unroll(8)"
    assert table.tried[1].startswith("0/0=")


def nest(first=("vmap", "distribute")):
    """An outer loop with little work of its own around a busy one."""
    return [axis((0,), 1.0, first=first), axis((0, 0), 5.0, first=first)]


def test_forms_that_come_first_are_tried_on_all_loops_from_the_outermost_in():
    table = Table({"0=vmap(100)": 0.5, "0=vmap(100) 0/0=distribute(heavy)": 0.3})
    found = run(table, nest())
    assert found.winner == "0=vmap(100) 0/0=distribute(heavy)"
    assert table.tried[:5] == ["as-written", "0=vmap(100)", "0=vmap(8)", "0=vmap(32)", "0=distribute(heavy)"]
    early = [k for k, text in enumerate(table.tried) if "unroll" not in text and "python" not in text]
    assert early[:10] == list(range(10))


def test_a_large_gain_on_the_outer_loop_is_found_before_inner_ones_use_the_budget_up():
    # Each trial takes 1 s of 10: the busy inner loop alone has seven rungs that gain nothing.
    table = Table({"0=distribute(heavy)": 0.05}, default=0.99, spent_s=1.0)
    found = run(table, nest(first=("distribute",)), budget=10.0)
    assert found.winner == "0=distribute(heavy)"
    assert not found.complete


def side_by_side(path, length=100):
    return replace(axis(path), length=length, together=(Choice(path, "inline"),))


def test_loops_of_one_length_side_by_side_are_tried_together():
    # The backward pass of a gradient reads what the forward pass stacked: neither gains much alone.
    table = Table({"0=inline 1=inline": 0.5}, default=1.05)
    found = run(table, [side_by_side((0,)), side_by_side((1,))], size=lambda plan: 10.0)
    assert found.winner == "0=inline 1=inline"
    assert table.tried[1] == "0=inline 1=inline"


@pytest.mark.parametrize("other", [side_by_side((1,), 99), side_by_side((0, 0)), axis((1,))])
def test_loops_that_do_not_go_together_are_not(other):
    table = Table({})
    run(table, [side_by_side((0,)), other], size=lambda plan: 10.0)
    assert not [t for t in table.tried if t.count("inline") == 2]


def test_the_second_pass_tries_what_comes_first_too():
    table = Table({"0/0=unroll(8)": 0.7, "0=vmap(8) 0/0=unroll(8)": 0.4})
    assert run(table, nest()).winner == "0=vmap(8) 0/0=unroll(8)"


def test_a_loop_is_visited_again_when_another_changed():
    table = Table({"0=python(1)": 0.9, "0=python(1) 0/0=inline": 0.5, "0=unroll(2) 0/0=inline": 0.3})
    found = run(table, [axis((0,), 5.0), axis((0, 0), 1.0)])
    assert found.winner == "0=unroll(2) 0/0=inline"


def test_a_cliff_ends_the_ladder_but_not_the_full_length():
    table = Table({"0=unroll(4)": 20.0, "0=unroll(100)": 0.4})
    found = run(table)
    assert "0=unroll(8)" not in table.tried
    assert found.winner == "0=unroll(100)"


def test_a_mere_loss_does_not_end_the_ladder():
    table = Table({"0=unroll(2)": 1.5, "0=unroll(4)": 1.4, "0=unroll(16)": 0.6})
    assert run(table).winner == "0=unroll(16)"


def test_illegal_plans_are_not_measured():
    table = Table({})
    run(table, illegal={"0=inline"})
    assert "0=inline" not in table.tried


def test_the_best_are_raced_together_at_the_end():
    table = Table({"0=unroll(2)": 0.6, "0=unroll(4)": 0.5, "0=unroll(8)": 0.7, "0=unroll(16)": 0.8})
    run(table)
    assert table.asked[-2] == ("0=unroll(4)", "0=unroll(2)", "0=unroll(8)")


def test_options_are_tried_with_the_best_with_as_written_and_with_each_form():
    o = (("xla_cpu_opt_preset", "X"),)
    table = Table({"0=unroll(4)": 0.6, "0=inline xla_cpu_opt_preset=X": 0.2})
    found = run(table, options=(o,))
    tried = [t for t in table.tried if "xla" in t]
    assert tried[0] == "0=unroll(4) xla_cpu_opt_preset=X"
    assert "xla_cpu_opt_preset=X" in tried
    assert found.winner == "0=inline xla_cpu_opt_preset=X"


def test_an_option_that_the_back_end_refuses_is_tried_once():
    o = (("xla_cpu_opt_preset", "X"),)
    refused = Trial("0=unroll(4) xla_cpu_opt_preset=X", Status.FAILED, "No such compile option")
    table = Table({"0=unroll(4)": 0.6, refused.plan: refused})
    run(table, options=(o,))
    assert [t for t in table.tried if "xla" in t] == [refused.plan]


# ---------------------------------------------------------------- spending


def test_budget_ends_the_search_and_the_rest_is_skipped_with_the_reason():
    table = Table({}, spent_s=4.0)
    found = run(table, budget=10.0)
    assert not found.complete
    skipped = [t for t in found.trials if t.status is Status.SKIPPED]
    assert skipped
    assert all("budget" in t.reason for t in skipped)
    assert sum(t.spent_s for t in found.trials) <= 10.0 + 4.0


def test_a_build_that_would_not_fit_is_predicted_and_skipped():
    table = Table({"0=unroll(16)": trial("0=unroll(16)", 1.2, build=3.0)})
    found = run(table, budget=20.0)
    (full,) = (t for t in found.trials if t.plan == "0=unroll(100)")
    assert full.status is Status.SKIPPED
    assert "building would take about" in full.reason
    assert "predicted from 0=unroll(16)" in full.reason


@pytest.mark.parametrize(
    ("built", "wanted", "least_s", "most_s"),
    [
        ({"as-written": 1.0}, "0=unroll(4)", 4.0, 4.0),  # nothing is known of what copies add
        ({"as-written": 1.0, "0=unroll(2)": 1.2}, "0=unroll(4)", 1.4, 2.0),  # most of it does not grow with them
        ({"as-written": 1.0, "0=unroll(2)": 2.0}, "0=unroll(4)", 4.0, 6.0),
        ({"as-written": 1.0, "0=unroll(2)": 1.2, "0=unroll(4)": 1.6}, "0=unroll(8)", 2.4, 3.0),
        ({"as-written": 1.0, "0=unroll(2)": 0.9}, "0=unroll(100)", 40.0, 90.0),  # no growth seen yet is no promise
        ({"as-written": 1.0, "0=unroll(8)": 3.0}, "0=unroll(4)", 3.0, 3.0),  # no more than more copies took
    ],
)
def test_build_times_are_foretold_from_what_copies_added(built, wanted, least_s, most_s):
    trials = {Plan.parse(text): trial(text, 1.0, build=seconds) for text, seconds in built.items()}
    found_s, source = _foretell.build_s(Plan.parse(wanted), space([axis((0,))]), trials)
    assert least_s <= found_s <= most_s
    assert source in built


def test_dear_plans_wait_until_the_cheap_ones_were_tried():
    table = Table({"0=unroll(16)": trial("0=unroll(16)", 1.2, build=1.0)})
    run(table, budget=60.0)
    assert table.tried.index("0=unroll(100)") > table.tried.index("0=python(16)")


def test_a_twin_of_a_bad_loser_is_not_built():
    table = Table({"0=unroll(100)": 50.0})
    found = run(table)
    (inline,) = (t for t in found.trials if t.plan == "0=inline")
    assert inline.status is Status.SKIPPED
    assert "0=unroll(100), which builds as much" in inline.reason


def test_dispatches_that_can_not_pay_are_not_tried():
    many = lambda plan: 1e6 if any(c.form == "python" for c in plan.choices) else 1.0
    table = Table({}, run=1e-3)
    found = run(table, dispatches=many)
    (python,) = (t for t in found.trials if t.plan == "0=python(1)")
    assert python.status is Status.SKIPPED
    assert "1,000,000 dispatches" in python.reason


# ---------------------------------------------------------------- failing, stopping, going on


@pytest.mark.parametrize("status", [Status.WRONG, Status.FAILED, Status.SKIPPED])
def test_what_did_not_run_can_not_win(status):
    bad = Trial("0=unroll(2)", status, "bad", ratio=0.01 if status is Status.WRONG else None)
    found = run(Table({"0=unroll(2)": bad, "0=python(1)": 0.7}))
    assert found.winner == "0=python(1)"
    assert bad.reason in [t.reason for t in found.trials]


def test_an_interrupt_keeps_the_best_so_far():
    table = Table({"0=unroll(2)": 0.5, "0=unroll(4)": KeyboardInterrupt()})
    with pytest.raises(_space.SearchInterrupted) as stop:
        run(table)
    assert stop.value.outcome.winner == "0=unroll(2)"
    assert not stop.value.outcome.complete


def test_an_interrupt_before_anything_is_known_passes_through():
    with pytest.raises(KeyboardInterrupt) as stop:
        run(Table({"as-written": KeyboardInterrupt()}))
    assert not isinstance(stop.value, _space.SearchInterrupted)


def test_errors_of_the_baseline_pass_through():
    with pytest.raises(ZeroDivisionError):
        run(Table({"as-written": ZeroDivisionError()}))


def test_known_trials_are_not_measured_again_but_in_the_last_race():
    known = [trial("as-written"), trial("0=unroll(2)", 0.5), trial("0=unroll(4)", 1.9)]
    table = Table({"0=unroll(2)": 0.5})
    found = run(table, known=known)
    assert "0=unroll(4)" not in table.tried
    assert found.winner == "0=unroll(2)"
    assert any("0=unroll(2)" in plans for plans in table.asked[-3:])


def test_a_shortened_program_has_a_last_race():
    """Its run times are those foretold of whole calls, here 100 s; a trial takes 0.2 s."""
    table = Table({"0=unroll(2)": 0.5}, run=100.0)
    assert run(table, budget=30.0).winner == "0=unroll(2)"
    assert table.tried.count("0=unroll(2)") == 2


def test_a_hint_that_holds_ends_the_search():
    table = Table({"0=python(16)": 0.5})
    found = run(table, hint=Plan.parse("0=python(16)"))
    assert found.winner == "0=python(16)"
    assert set(table.tried) == {"as-written", "0=python(16)"}


@pytest.mark.parametrize("hint", ["0=python(16)", "as-written", "7=inline"])
def test_a_hint_that_does_not_hold_costs_one_trial(hint):
    table = Table({"0=unroll(2)": 0.5})
    found = run(table, hint=Plan.parse(hint), illegal={"7=inline"})
    assert found.winner == "0=unroll(2)"


def test_search_is_the_same_every_time():
    tables = [Table({"0=unroll(2)": 0.5, "0/0=inline": 0.7}) for _ in range(2)]
    for table in tables:
        run(table, [axis((0,), 1.0), axis((0, 0), 5.0)])
    assert tables[0].asked == tables[1].asked


def test_plans_lists_singles_and_nested_pairs():
    texts = list(map(str, space([axis((0,), forms=["inline"]), axis((0, 0), forms=["inline"])]).plans()))
    assert texts == ["as-written", "0=inline", "0/0=inline", "0=inline 0/0=inline"]
