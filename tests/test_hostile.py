"""Files and rows as an attacker would write them: refused whole, with the reason, quickly, and nothing runs."""

import json
import re
import sqlite3
import sys

import pytest

from autoloop import Record, RecordError, Trial, _config, _disk, _json, _records, _signature, _warm, _wisdom
from autoloop.__main__ import main
from autoloop._specfile import SpecError
from autoloop._store import Store

KEY = {"arguments": "f32[8]"}
DIGEST = _signature.digest(KEY)
RECORD = Record("m.f", KEY, "as-written", (Trial("as-written"),))
HALF = "\\ud800"


def file_of(*pairs, **changes):
    """A wisdom file with one sound record and one with these changes; texts in it replaced by others, unquoted."""
    other = {"arguments": "f32[9]"}
    bad = {**RECORD.to_dict(), "key": other, **changes}
    records = {DIGEST: RECORD.to_dict(), _signature.digest(other): bad}
    text = json.dumps({"format": "autoloop wisdom", "version": 1, "records": records})
    for old, new in pairs:
        text = text.replace(old, new)
    return text


def trial(**changes):
    return [{**RECORD.to_dict()["trials"][0], **changes}]


HOSTILE = {
    "deep lists": ("[" * 10**6, "nested too deep"),
    "deep objects": ('{"a":' * 10**6, "nested too deep"),
    "deep in a record": (file_of(('"HERE"', "[" * 10**5 + "]" * 10**5), notes=["HERE"]), "nested too deep"),
    "a million digits": (file_of(("12.5", "9" * 10**6), spent_s=12.5), "a number of 1000000 digits"),
    "a thousand digits": (file_of(("12.5", "-" + "9" * 1000), spent_s=12.5), "a number of 1001 digits"),
    "a number of 30 digits": (file_of(("12.5", "9" * 30), spent_s=12.5), "'spent_s' must be a number up to"),
    "rounds of 30 digits": (file_of(("12.5", "9" * 30), trials=trial(rounds=12.5)), "'rounds' must be a number"),
    "a huge exponent": (file_of(("12.5", "1e999999"), spent_s=12.5), "must be finite, is inf"),
    "NaN": (file_of(("12.5", "NaN"), spent_s=12.5), "must be finite, is nan"),
    "infinity": (file_of(("12.5", "-Infinity"), spent_s=12.5), "must be finite, is -inf"),
    "records twice": (file_of(('"version"', '"records": {}, "version"')), "'records' is named twice"),
    "a field twice": (file_of(('"winner"', '"winner": "x", "winner"')), "'winner' is named twice"),
    "half a character": (file_of(("HERE", HALF), function="HERE"), "half a character"),
    "half a character as key": (file_of(("HERE", HALF), key={"HERE": "a"}), "half a character"),
    "a version that is true": (file_of(('"version": 1', '"version": true')), "has version True"),
    "a wrong type": (file_of(trials={"a": 1}), "'trials' must be"),
    "a status that is a list": (file_of(trials=trial(status=["ok"])), "'status' must be"),
    "very many trials": (file_of(trials=trial() * 10_001), "10001 trials; over 10000 are refused"),
    "a winner that was not tried": (file_of(winner="__import__('os')"), "has no trial"),
    "a pickle": ("\x80\x04cos\nsystem\n.", "not JSON"),
    "python": ("__import__('os').system('true')", "not JSON"),
}
hostile = pytest.mark.parametrize(("text", "why"), [pytest.param(*h, id=name) for name, h in HOSTILE.items()])


@pytest.fixture
def store():
    """The store that the command line uses, with a record of its own."""
    found = Store(_config.cache_dir(_config.current()))
    found.put("mine", RECORD)
    yield found
    found.close()


@hostile
def test_a_hostile_wisdom_file_is_refused_whole_with_its_name_and_the_reason(text, why, store, tmp_path, capsys):
    path, before, modules = tmp_path / "bad.json", dict(store.texts()), set(sys.modules)
    path.write_text(text)
    with pytest.raises(SystemExit, match="2"):
        main(["import", str(path)])
    said = capsys.readouterr().err
    assert str(path) in said
    assert why in said
    assert len(said) < 1000
    assert dict(store.texts()) == before
    assert set(sys.modules) <= modules | {"numpy", "jax"}


@hostile
def test_a_hostile_row_is_a_miss(text, why, store):
    row = text if not text.startswith('{"format"') else json.dumps(text)
    store._open().set(DIGEST, row)
    assert store.get(DIGEST) is None
    assert dict(store.items()) == {"mine": RECORD}
    assert main(["list"]) == 0


def test_a_record_under_a_key_that_is_not_its_own_is_refused(store, tmp_path, capsys):
    path = tmp_path / "bad.json"
    path.write_text(file_of((DIGEST, "../../etc/passwd")))
    with pytest.raises(SystemExit, match="2"):
        main(["import", str(path)])
    assert "its record ../../etc/pa stands under a key that is not its own" in capsys.readouterr().err
    assert dict(store.items()) == {"mine": RECORD}


def test_a_file_that_is_too_large_is_not_read_whole(tmp_path, monkeypatch):
    path = tmp_path / "large.json"
    with path.open("wb") as file:
        file.truncate(_wisdom.MAX_BYTES + 1)
    with pytest.raises(RecordError, match="it has 50000001 bytes; a file of over 50000000 bytes is refused"):
        _wisdom.read(path)


@pytest.mark.skipif(sys.platform == "win32", reason="no such files there")
def test_a_file_without_an_end_is_not_read(tmp_path):
    for path in ("/dev/zero", str(tmp_path)):
        with pytest.raises(RecordError, match="not a regular file"):
            _wisdom.read(path)


def test_very_many_records_are_merged_in_time():
    """Comparing lists of keys would take minutes here."""
    many = {str(number): RECORD for number in range(20_000)}
    assert _wisdom.merge(many, many) == many


def test_what_a_json_text_may_hold():
    assert _json.loads('{"a": [1, -2.5, 1e3, "\\ud83d\\ude00 é"], "b": null}') == {
        "a": [1, -2.5, 1e3, "😀 é"],
        "b": None,
    }


@pytest.mark.parametrize("name", ["../../precious", "/precious", "ab/cd/../../../precious", "cache.db", ""])
def test_a_row_that_names_a_file_outside_neither_reads_nor_removes_it(name, store, tmp_path):
    folder = store.folder
    precious = tmp_path / "precious"
    precious.write_text(RECORD.to_json())
    named = name.replace("/precious", str(precious)) if name.startswith("/") else name
    target = folder / named
    (folder / "ab" / "cd").mkdir(parents=True, exist_ok=True)
    if "precious" in named:
        target.write_text(RECORD.to_json())
    store.put("row", RECORD)
    store.close()
    with sqlite3.connect(folder / "cache.db") as database:
        database.execute("UPDATE Cache SET value = NULL, mode = 3, filename = ? WHERE key = 'row'", (named,))
    database.close()
    assert store.get("row") is None
    store.put("row", RECORD)  # replacing a row removes the file that it names
    store.delete("row")
    assert target.exists()
    assert store.get("mine") == RECORD


def test_a_row_in_a_file_that_is_too_large_is_a_miss(store, monkeypatch):
    large = RECORD.replace(verdict="x" * 100_000)
    store.put("large", large)
    assert store.get("large") == large
    monkeypatch.setattr(_disk, "_MOST_BYTES", 50_000)
    assert store.get("large") is None
    assert store.get("mine") == RECORD


# ---------------------------------------------------------------- specs


SPECS = {
    "deep lists": "[" * 10**6,
    "deep lists that end": "[" * 900 + "]" * 900,
    "deep objects that end": '{"a":' * 900 + "1" + "}" * 900,
    "a number of a million digits": "[" + "9" * 10**6 + "]",
    "an axis of a million digits": '["f32[' + "9" * 10**6 + ']"]',
    "an axis of twenty digits": '["f32[99999999999999999999]"]',
    "a name twice": '{"args": [], "args": [1]}',
    "no UTF-8": b"\xff\xfe[",
    "a dtype that is an object": '["O[3]"]',
    "a dtype of python": '["object[3]"]',
    "args that are a number": '{"args": 3}',
}


@pytest.mark.parametrize("text", [pytest.param(text, id=name) for name, text in SPECS.items()])
def test_hostile_specs_are_refused_with_the_name_of_the_file(text, tmp_path):
    path = tmp_path / "specs.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(SpecError, match=re.escape(str(path))) as caught:
        _warm.specs(str(path))
    assert len(str(caught.value)) < 500


def test_specs_that_are_too_large_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(_warm, "_MOST_BYTES", 10)
    (tmp_path / "specs.json").write_text('["f32[3,2]"]')
    with pytest.raises(SpecError, match="a file of over 10 bytes is refused"):
        _warm.specs(str(tmp_path / "specs.json"))


def test_the_bounds_leave_room():
    assert _records._MOST_TRIALS >= 10_000
    assert _disk._MOST_BYTES >= 10**7
