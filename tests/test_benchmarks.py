"""What the benchmark scripts compute from figures; that the scripts run is for `run.py --suite quick`."""

import argparse
import importlib
import json
import sys
from pathlib import Path

import pytest

import autoloop

BENCHMARKS = Path(autoloop.__file__).parents[1] / "benchmarks"
pytestmark = pytest.mark.skipif(not BENCHMARKS.exists(), reason="installed without its benchmarks")
sys.path.insert(0, str(BENCHMARKS))

HERE = {"date": "2026-01-01", "device": "cpu", "host": "a", "jax": "1", "autoloop": "2", "python": "3"}


def module(name):
    return importlib.import_module(name)


def way(ms, speedup, **others):
    return {"ms": ms, "speedup": [speedup, speedup, speedup], "first_s": 1.0, "tuning_s": 0.0, "reason": ""} | others


def row(program, gain=2.0, peer=1.5, regret=1.0, hand=1.0):
    ways = {"jit": way(2.0, 1.0), "tuned": way(2.0 / gain, gain)}
    ratios = {"peer_over_tuned": [peer] * 3, "hand_over_tuned": [hand] * 3, "regret": [regret] * 3}
    return {"program": program, "ways": ways, **ratios}


def test_goals_that_are_met():
    lines = module("goals").against([row("a"), row("b", gain=4.0)])
    assert lines[0] == "2 of 2 programs measured; goals are those for the CPU"
    assert all(line.startswith("met ") for line in lines[1:])
    assert "geometric mean 2.83 (goal 1.6)" in lines[1]


def test_goals_that_are_missed_name_what_misses_them():
    rows = [row("slow", gain=0.5, peer=0.9, regret=1.2, hand=0.5), {"program": "bad", "failed": "out of memory"}]
    lines = module("goals").against(rows)
    assert lines[0].startswith("1 of 2 programs")
    text = "\n".join(lines)
    assert text.count("MISSED") == 6
    assert "slow 0.50" in text
    assert "slow 0.90" in text
    assert "above: slow 1.20" in text
    assert "slow: by hand 2.00 times as fast: not explained yet" in text


def test_no_program_measured():
    assert module("goals").against([{"program": "bad", "failed": "x"}]) == ["no program was measured"]


@pytest.mark.parametrize(
    ("first_s", "ms", "count"), [(3.0, 1.0, 2000.0), (3.0, 2.0, None), (3.0, 5.0, None), (0.5, 1.0, 0.0)]
)
def test_breakeven(first_s, ms, count):
    found = module("contenders").breakeven({"first_s": first_s, "ms": ms}, {"first_s": 1.0, "ms": 2.0})
    assert found == pytest.approx(count)


@pytest.mark.parametrize("power", [0.0, 1.0, 2.0])
def test_exponent_of_a_power(power):
    sizes = (10, 100, 1000)
    assert module("growth").exponent(sizes, [3.0 * n**power for n in sizes]) == pytest.approx(power)


def test_growth_faster_than_linear_in_the_outer_length_is_named():
    growth = module("growth")
    common = {"axis": "outer", "trials": 1, "spent_s": 1.0, "budget_s": 2.0, "plan": "as-written"}
    rows = [
        {"name": f"outer={n}", "size": n, "figures": {"tuning": float(n * n), "build": 1.0}, **common}
        for n in (10, 100)
    ]
    text = growth.report(rows, growth.curves(rows))
    assert text.endswith("faster than linear in the outer length: tuning")


def test_a_slow_call_takes_part_in_the_first_rounds_only():
    calls = dict.fromkeys(("fast", "slow"), lambda: None)
    found = module("common").bounded_rounds(calls, {"fast": 0.01, "slow": 1.0}, share_s=0.1, rounds=9)
    assert [len(found[name]) for name in ("fast", "slow")] == [9, 2]


@pytest.mark.parametrize(("part", "names"), [("1/2", ["a", "c"]), ("2/2", ["b"]), ("1/1", ["a", "b", "c"])])
def test_parts_hold_every_name_once(part, names):
    assert module("run").chosen(argparse.Namespace(only=None, part=part), ("a", "b", "c")) == names


@pytest.mark.parametrize("part", ["0/2", "3/2", "2", "a/b"])
def test_a_part_that_is_none_is_refused(part):
    with pytest.raises(ValueError, match=rf"--part must be i/n .* got '{part}'"):
        module("run").chosen(argparse.Namespace(only=None, part=part), ("a",))


def test_a_name_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="--only names x; there are a, b"):
        module("run").chosen(argparse.Namespace(only="a,x", part="1/1"), ("a", "b"))


def test_rows_of_other_parts_are_kept_where_all_else_is_the_same(tmp_path):
    common = module("common")
    earlier = [{"n": "a", "size": "s"}, {"n": "b", "size": "s"}, {"n": "c", "size": "other"}]
    lines = [json.dumps({**HERE, **row, "date": "2025-01-01"}) for row in earlier]
    (tmp_path / "x.jsonl").write_text("\n".join(lines))
    fresh = [{"n": "b", "size": "s", "new": 1, **HERE}]
    found = common.with_earlier("x", "n", fresh, ("c", "b", "a"), tmp_path, size="s")
    assert [row["n"] for row in found] == ["b", "a"]
    assert found[0]["new"] == 1


def test_what_a_process_printed_before_it_was_ended_counts(tmp_path):
    script = tmp_path / "s.py"
    script.write_text("import time; print('{\"a\": 1}', flush=True); print('half', end='', flush=True); time.sleep(60)")
    common = module("common")
    assert common.alone(str(script), ["x"], 1.5, partial=True) == {"a": 1, "ended": "after 2 s"}
    with pytest.raises(RuntimeError, match="x: ended after 1 s"):
        common.alone(str(script), ["x"], 1.0)


def test_another_device_than_was_asked_for_is_refused():
    with pytest.raises(RuntimeError, match="--device gpu was asked for, and jax runs on cpu"):
        module("common").require("gpu")
