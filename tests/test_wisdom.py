"""Wisdom files: they hold what they were given, and more rigorous records replace lesser ones."""

import json
import os

import pytest

from autoloop import Record, RecordError, Trial, _wisdom
from autoloop._store import Store


def make(function="m.f", rounds=9, plan="0=inline", **changes):
    trials = (Trial("as-written", run_s=1e-3, ratio=1.0, rounds=rounds), Trial(plan, ratio=0.5, rounds=rounds))
    fields = {"key": {"arguments": "f32[8]", "device": "cpu"}, "winner": plan, "trials": trials, "notes": ("Größe",)}
    return Record(function, **{"spent_s": 3.0, "created": "2026-01-01", **fields, **changes})


def test_a_file_holds_what_it_was_given(tmp_path):
    records = {"b": make(), "a": make("m.g", complete=False)}
    _wisdom.write(tmp_path / "w.json", records)
    assert _wisdom.read(tmp_path / "w.json") == records
    assert [path.name for path in tmp_path.iterdir()] == ["w.json"]


def test_a_file_can_be_reviewed(tmp_path):
    text = _wisdom.to_text({"b": make(), "a": make()})
    assert text == _wisdom.to_text({"a": make(), "b": make()})
    data = json.loads(text)
    assert (data["format"], data["version"]) == ("autoloop wisdom", 1)
    assert list(data["records"]) == ["a", "b"]
    assert list(data["records"]["a"]) == sorted(data["records"]["a"])
    changed = _wisdom.to_text({"a": make(), "b": make(spent_s=4.0)})
    lines = [pair for pair in zip(text.splitlines(), changed.splitlines(), strict=True) if pair[0] != pair[1]]
    assert lines == [('   "spent_s": 3.0,', '   "spent_s": 4.0,')]
    assert "Größe" in text


def test_wisdom_goes_from_one_store_to_another_and_back_unchanged(tmp_path):
    first, second = Store(tmp_path / "first"), Store(tmp_path / "second")
    for key in "abc":
        first.put(key, make(key))
    before = dict(first.texts())
    _wisdom.write(tmp_path / "out.json", dict(first.items()))
    assert second.put_all(_wisdom.read(tmp_path / "out.json"))
    assert dict(second.texts()) == before
    _wisdom.write(tmp_path / "back.json", dict(second.items()))
    assert (tmp_path / "back.json").read_bytes() == (tmp_path / "out.json").read_bytes()
    first.close()
    second.close()


BAD = {
    "no JSON": ("{", "not JSON"),
    "a list": ("[]", "must hold .*KEY: RECORD"),
    "no version": ('{"records": {}}', "has format None, version None; this autoloop reads .*wisdom"),
    "another version": ('{"format": "autoloop wisdom", "version": 2, "records": {}}', "has version 2; .* reads .* 1}"),
    "another format": ('{"format": "x", "version": 1, "records": {}}', "has format 'x';"),
}


@pytest.mark.parametrize(("text", "message"), [pytest.param(*bad, id=name) for name, bad in BAD.items()])
def test_what_is_no_wisdom_is_said(text, message):
    with pytest.raises(RecordError, match=message):
        _wisdom.from_text(text)


def test_one_bad_record_refuses_the_file_and_is_named():
    data = json.loads(_wisdom.to_text({"good": make(), "other": make()}))
    data["records"]["other"]["schema"] = 0
    with pytest.raises(RecordError, match="its record other: record schema is 0, this version reads 1"):
        _wisdom.from_text(json.dumps(data))


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "w.json"
    _wisdom.write(path, {"a": make()})

    def fail(*args):
        raise OSError("no space left")

    monkeypatch.setattr(os, "replace", fail)
    monkeypatch.setattr(type(path), "replace", fail)
    with pytest.raises(OSError, match="no space"):
        _wisdom.write(path, {})
    assert _wisdom.read(path) == {"a": make()}
    assert [found.name for found in tmp_path.iterdir()] == ["w.json"]


#: Pairs of which the second is more rigorous, or as rigorous and newer.
RIGOUR = {
    "not of a failure": (make(expires="2026-01-01", rounds=99), make(complete=False)),
    "complete": (make(complete=False, rounds=99, spent_s=99.0), make()),
    "samples": (make(spent_s=99.0), make(rounds=10)),
    "budget used": (make(created="2026-09-09"), make(spent_s=3.5)),
    "newer": (make(), make(created="2026-01-02")),
}


@pytest.mark.parametrize(("lesser", "greater"), [pytest.param(*pair, id=name) for name, pair in RIGOUR.items()])
def test_a_more_rigorous_record_replaces_a_lesser_one_never_the_reverse(lesser, greater):
    assert _wisdom.merge({"k": lesser}, {"k": greater}) == {"k": greater}
    assert _wisdom.merge({"k": greater}, {"k": lesser}) == {"k": greater}
    assert _wisdom.taken({"k": lesser}, {"k": greater}) == ((), ("k",), ())
    assert _wisdom.taken({"k": greater}, {"k": lesser}) == ((), (), ("k",))


def test_merging_takes_all_keys_in_any_order():
    one, two, three = {"a": make()}, {"a": make(rounds=20), "b": make()}, {"c": make("m.c"), "a": make(rounds=15)}
    merged = _wisdom.merge(one, two, three)
    assert merged == {"a": two["a"], "b": two["b"], "c": three["c"]}
    assert merged == _wisdom.merge(three, one, two) == _wisdom.merge(merged, one, merged)
    assert _wisdom.taken(one, two) == (("b",), ("a",), ())


def test_a_diff_says_what_changed():
    same = {"same": make()}
    old = {**same, "a": make(), "gone": make("m.gone")}
    new = {**same, "a": make(plan="0=eager", rounds=10, spent_s=4.0), "new": make("m.new")}
    added, changed, removed = sorted(_wisdom.diff(old, new), key=lambda change: change.kind)
    assert added == ("added", "new", "m.new", "f32[8]", ("plan 0=inline, 2.00x",))
    assert removed == ("removed", "gone", "m.gone", "f32[8]", ("plan 0=inline, 2.00x",))
    assert changed[:2] == ("changed", "a")
    assert changed.details == ("plan 0=inline -> 0=eager", "samples 18 -> 20", "spent 3.0 s -> 4.0 s")
    assert _wisdom.diff(old, old) == []


def test_a_diff_of_trials_alone_says_so():
    old = make()
    trials = (old.trials[0].replace(compile_s=1.0), old.trials[1])
    (change,) = _wisdom.diff({"k": old}, {"k": old.replace(trials=trials)})
    assert change.details == ("trials",)


@pytest.mark.parametrize(
    ("text", "keys"), [(None, "ab"), ("m.f", "a"), ("f32[8]", "ab"), ("a", "a"), ("cpu", "ab"), ("x", "")]
)
def test_records_are_chosen_by_what_they_show(text, keys):
    records = {"a": make(), "b": make("m.g")}
    assert list(_wisdom.matching(records, text)) == list(keys)
