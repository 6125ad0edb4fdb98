"""The command line on stores and wisdom files: what it prints, where, and with which status."""

import datetime
import importlib
import json
import re
import tomllib
from pathlib import Path

import pytest

import autoloop
from autoloop import Record, Trial, _cli_store, _config, _entries, _signature, _wisdom
from autoloop.__main__ import main
from autoloop._store import Store

NOW = datetime.datetime.now(datetime.UTC)


def make(function="m.f", rounds=9, days=0.0, shapes="f32[8]", **changes):
    trials = (Trial("as-written", run_s=1e-3, ratio=1.0, rounds=rounds), Trial("0=inline", ratio=0.5, rounds=rounds))
    created = (NOW - datetime.timedelta(days=days)).isoformat(timespec="seconds")
    key = {"arguments": shapes, "device": "cpu cpu x1", "program": function}
    return Record(function, **{"key": key, "winner": "0=inline", "trials": trials, "created": created, **changes})


def keyed(*records):
    return {_signature.digest(record.key): record for record in records}


@pytest.fixture
def store(own_store):
    found = Store(own_store)
    yield found
    found.close()


@pytest.fixture
def file(tmp_path):
    """Writes a wisdom file of these records and returns its path."""

    def written(name, *records):
        _wisdom.write(tmp_path / name, keyed(*records))
        return str(tmp_path / name)

    return written


def fails(words, capsys, status):
    """What a command that is answered with this status prints on standard error."""
    if status == 2:
        with pytest.raises(SystemExit) as stop:
            main(words)
        assert stop.value.code == 2
    else:
        assert main(words) == status
    out, err = capsys.readouterr()
    assert out == ""
    return err


def prints(words, capsys, status=0):
    """What a command prints on standard output; nothing on standard error."""
    assert main(words) == status
    out, err = capsys.readouterr()
    assert err == ""
    return out


# ------------------------------------------------ usage


@pytest.mark.parametrize(
    ("words", "near"),
    [
        (["lst"], "did you mean 'list'?"),
        (["exprot", "x"], "did you mean 'export'?"),
        (["list", "--jsn"], "did you mean '--json'?"),
        (["prune", "--older", "3d"], "did you mean '--older-than'?"),
        (["prune", "--older-than", "3"], "an age is a number and one of s, m, h, d, w, as 30d; got '3'"),
        (["prune"], "say what to drop"),
        (["merge", "a"], "-o"),
        (["xyzzy"], "invalid choice: 'xyzzy'"),
    ],
)
def test_a_mistake_is_answered_with_what_is_near(words, near, capsys):
    err = fails(words, capsys, 2)
    assert near in err
    assert "usage" in err


def test_a_word_that_is_near_nothing_gets_no_guess(capsys):
    assert "did you mean" not in fails(["xyzzy"], capsys, 2)
    assert _config.did_you_mean("xyzzy", ["list"]) == ""


def test_every_command_has_one_line_of_help(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("    ")]
    names = {line.split()[0] for line in lines}
    assert {"list", "show", "prune", "clear", "path", "export", "import", "merge", "diff", "demo"} <= names
    assert all(len(line.split()) > 2 for line in lines if line.split()[0] in names)


def test_the_console_script_is_the_same_program():
    project = tomllib.loads((Path(autoloop.__file__).parents[1] / "pyproject.toml").read_text())
    module, name = project["project"]["scripts"]["autoloop"].split(":")
    assert getattr(importlib.import_module(module), name) is main


# ------------------------------------------------ list, show


def test_list_in_json(store, capsys):
    for key, record in keyed(make(days=1), make("m.g", complete=False)).items():
        store.put(key, record)
    first, second = json.loads(prints(["list", "--json"], capsys))
    assert (first["function"], first["state"], second["state"]) == ("m.f", "complete", "partial")
    assert (first["gain"], first["plan"], first["shapes"]) == (2.0, "0=inline", "f32[8]")
    assert 86_300 < first["age_s"] < 170_000  # the tests may take long
    assert [row["key"] for row in json.loads(prints(["list", "--json", "--match", "m.g"], capsys))] == [second["key"]]
    text = prints(["list"], capsys)
    assert "2.00x" in text
    assert re.search(r"\b(2[4-9]|[34]\d)\.\d h", text)


def test_list_shows_wisdom_too(store, file, capsys, monkeypatch):
    (key, record), (other, _) = keyed(make("m.f"), make("m.g")).items()
    monkeypatch.setenv("AUTOLOOP_WISDOM", file("wisdom.json", make("m.g")))
    store.put(key, record)
    found = {row["key"]: row["state"] for row in json.loads(prints(["list", "--json"], capsys))}
    assert found == {key: "complete", other: "complete, of a wisdom file"}
    assert "dropped 1 record" in prints(["prune", "--older-than", "0s"], capsys)  # what a file holds is not ours


def test_list_names_what_it_can_not_read(store, capsys):
    stale = {**make().to_dict(), "schema": 0}
    store._attempt(lambda cache: cache.set("old", json.dumps(stale)))
    store._attempt(lambda cache: cache.set("odd", "{"))
    found = {row["key"]: row for row in json.loads(prints(["list", "--json"], capsys))}
    assert found["old"]["function"] == "m.f"
    assert found["old"]["state"] == "unreadable: record schema is 0, this version reads 1"
    assert found["odd"]["function"] == "?"
    assert "unreadable" in prints(["list"], capsys)
    assert "can't be read: record schema is 0" in fails(["show", "old"], capsys, 1)


@pytest.mark.parametrize("text", ["3", "[]", '{"key": 3}', '{"key": {"a": 1}, "function": 3}', "[" * 100_000, "x"])
def test_an_entry_that_says_nothing_is_still_an_entry(text):
    entry = _entries._entry("k", text)
    assert (entry.function, entry.parts, entry.record) == ("?", {}, None)
    assert entry.problem


def test_show_takes_a_key_its_beginning_or_a_function(store, capsys):
    (key, record), (other, _) = keyed(make(), make("m.g")).items()
    store.put(key, record)
    store.put(other, make("m.g"))
    for word in (key, key[:10], "m.f"):
        shown = json.loads(prints(["show", word, "--json"], capsys))
        assert shown["key"] == key
        assert Record.from_dict(shown["record"]) == record
    assert "plan in force: 0=inline" in prints(["show", "m.g"], capsys)
    assert "did you mean 'm.g'?" in fails(["show", "m.gg"], capsys, 1)
    err = fails(["show", ""], capsys, 1)
    assert "2 records have a key" in err
    assert other[:12] in err


def test_show_finds_records_of_wisdom_files(file, monkeypatch, capsys):
    monkeypatch.setenv("AUTOLOOP_WISDOM", file("w.json", make("m.wise")))
    assert "m.wise" in prints(["show", "m.wise"], capsys)


# ------------------------------------------------ prune


@pytest.fixture
def aged(store):
    for key, record in keyed(make("m.old", days=40), make("m.new", days=2), make("m.odd", created="?")).items():
        store.put(key, record)
    store._attempt(lambda cache: cache.set("stale", json.dumps({**make("m.stale").to_dict(), "schema": 0})))
    return lambda: [entry.function for entry in _entries.entries(store)]


@pytest.mark.parametrize(
    ("words", "dropped"),
    [
        (["--older-than", "30d"], {"m.old"}),
        (["--older-than", "24h"], {"m.old", "m.new"}),
        (["--older-than", "24h", "--match", "m.n"], {"m.new"}),
        (["--older-than", "9w"], set()),
        (["--unreadable"], {"m.stale"}),
        (["--older-than", "30d", "--unreadable"], {"m.old", "m.stale"}),
    ],
)
def test_prune_drops_what_it_is_told_to(words, dropped, aged, capsys):
    before = set(aged())
    assert f"would drop {len(dropped)} record{'s' * (len(dropped) != 1)}" in prints(
        ["prune", *words, "--dry-run"], capsys
    )
    assert set(aged()) == before
    assert {row["function"] for row in json.loads(prints(["prune", *words, "--json"], capsys))} == dropped
    assert set(aged()) == before - dropped


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("1.5h", 5400), ("30d", 2_592_000), ("2w", 1_209_600)])
def test_ages(text, seconds):
    assert _cli_store.seconds_of(text) == seconds


def test_an_age_that_nobody_knows():
    assert _entries.age_s("2026-01-01") is None  # in no time zone
    assert _entries.age_s("yesterday") is None
    assert _entries.age_s("2026-01-01T00:00:00+00:00", lambda zone: datetime.datetime(2026, 1, 2, tzinfo=zone)) == 86400


# ------------------------------------------------ export, import


def test_what_is_exported_can_be_imported(store, tmp_path, monkeypatch, capsys):
    for key, record in keyed(make(), make("m.g")).items():
        store.put(key, record)
    before, path = dict(store.texts()), str(tmp_path / "w.json")
    assert prints(["export", path], capsys) == f"wrote 2 records to {path}\n"
    monkeypatch.setenv("AUTOLOOP_CACHE_DIR", str(tmp_path / "other"))
    out = prints(["import", path], capsys)
    assert "+ m.f  [f32[8]]  0=inline" in out
    assert "took 2 new records and 0 more rigorous ones, kept 0 as they were" in out
    other = Store(tmp_path / "other")
    assert dict(other.texts()) == before
    other.close()
    assert json.loads(prints(["import", path, "--json"], capsys)) == {"new": [], "replaced": [], "kept": sorted(before)}
    assert prints(["export", "-"], capsys) == (tmp_path / "w.json").read_text()


def test_export_of_a_part(store, tmp_path, capsys):
    for key, record in keyed(make(), make("m.g")).items():
        store.put(key, record)
    path = str(tmp_path / "w.json")
    assert len(json.loads(prints(["export", path, "--match", "m.g", "--json"], capsys))["records"]) == 1
    assert [record.function for record in _wisdom.read(path).values()] == ["m.g"]
    assert "holds 2 records, of which none matches 'm.h'" in fails(["export", path, "--match", "m.h"], capsys, 1)
    assert "can't be written" in fails(["export", str(tmp_path / "no" / "w.json")], capsys, 1)


def test_a_failed_tuning_stays_where_it_failed(store, tmp_path, capsys):
    failed = make(expires="2026-01-01T01:00:00+00:00")
    for key, record in keyed(failed, make("m.g")).items():
        store.put(key, record)
    prints(["export", str(tmp_path / "w.json")], capsys)
    assert [record.function for record in _wisdom.read(tmp_path / "w.json").values()] == ["m.g"]
    states = {row["function"]: row["state"] for row in json.loads(prints(["list", "--json"], capsys))}
    assert states == {"m.f": "failed, tried again after 2026-01-01T01:00:00+00:00", "m.g": "complete"}


def test_import_takes_only_what_is_more_rigorous(store, file, capsys):
    ours, path = keyed(make(rounds=50), make("m.g")), file("w.json", make(rounds=20), make("m.g", rounds=20))
    for key, record in ours.items():
        store.put(key, record)
    out = prints(["import", path], capsys)
    assert "~ m.g" in out
    assert "took 0 new records and 1 more rigorous ones, kept 1 as they were" in out
    assert sorted(record.trials[0].rounds for _, record in store.items()) == [20, 50]


def _edited(text):
    return text.replace('"arguments": "f32[8]"', '"arguments": "f32[9]"')


def _older(text):
    return text.replace('"schema": 1', '"schema": 0')


def _cut(text):
    return text[: len(text) // 2]


def _newer(text):
    return text.replace('"0=inline"', '"0=fold"')


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (_edited, "under a key that is not its own"),
        (_older, "schema is 0"),
        (_cut, "not JSON"),
        (_newer, "no form 'fold'"),
    ],
)
def test_import_of_several_files_is_all_or_nothing(spoil, why, store, file, capsys):
    good, bad = file("good.json", make()), file("bad.json", make("m.g"))
    Path(bad).write_text(spoil(Path(bad).read_text()))
    err = fails(["import", good, bad], capsys, 2)
    assert why in err
    assert bad in err
    assert list(store.items()) == []


def test_import_into_a_store_that_can_not_be_written_says_so(file, own_store, capsys):
    own_store.write_text("")
    path = file("w.json", make())
    with pytest.warns(UserWarning, match="can't be used"):
        assert main(["import", path]) == 1
    assert "nothing was imported" in capsys.readouterr().err


# ------------------------------------------------ merge, diff


def test_merge_and_diff(file, tmp_path, capsys):
    one = file("one.json", make(), make("m.g"))
    two = file("two.json", make(rounds=20), make("m.h"))
    out = str(tmp_path / "out.json")
    assert prints(["merge", one, two, "-o", out], capsys) == f"wrote 3 records of 2 files to {out}\n"
    assert _wisdom.read(out) == keyed(make(rounds=20), make("m.g"), make("m.h"))
    printed = prints(["diff", one, out], capsys, status=1)
    assert "samples 18 -> 40" in printed
    assert [line[0] for line in printed.splitlines()] == ["~", "+"]
    assert [c["kind"] for c in json.loads(prints(["diff", out, one, "--json"], capsys, status=1))] == [
        "changed",
        "removed",
    ]
    assert prints(["diff", out, out], capsys) == "no difference\n"
    assert prints(["merge", two, one, "-o", "-"], capsys) == (tmp_path / "out.json").read_text()


@pytest.mark.parametrize(
    "words", [["diff", "{}", "no-such"], ["merge", "no-such", "{}", "-o", "x"], ["import", "no-such"]]
)
def test_a_file_that_is_not_there_is_named(words, file, capsys):
    words = [word.format(file("w.json", make())) for word in words]
    assert "the wisdom file no-such can't be used" in fails(words, capsys, 2)
