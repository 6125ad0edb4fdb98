"""The store: it keeps what it is given, runs nothing it finds, and never fails a call."""

import contextlib
import errno
import json
import os
import pickle
import sqlite3
import stat
import types
import warnings

import diskcache
import pytest
from diskcache.core import MODE_PICKLE, MODE_RAW, MODE_TEXT

import autoloop
from autoloop import AutoloopWarning, Record, Status, Trial, _config, _store, _stores, _wisdom
from autoloop._records import SCHEMA
from autoloop._store import Store


def make_record(function="module.f", **changes):
    trials = (
        Trial("as-written", trace_s=0.1, compile_s=0.25, run_s=1 / 3, ratio=1.0, peak_bytes=12),
        Trial("0=inline", Status.WRONG, "Größe: off by 1e-3", max_error=1e-3),
    )
    fields = {"key": {"program": "p"}, "winner": "as-written", "trials": trials, "created": "2026-01-01"}
    return Record(function, **{**fields, **changes})


def as_wisdom(path, **records):
    path.write_text(_wisdom.to_text(records))
    return str(path)


def plant(folder, key, value, mode=MODE_RAW, raw=1, filename=None):
    """Writes a row as another program could, past diskcache."""
    with sqlite3.connect(folder / "cache.db") as connection:
        connection.execute("DELETE FROM Cache WHERE key = ?", (key,))
        connection.execute(
            "INSERT INTO Cache (key, raw, store_time, access_time, size, mode, filename, value) "
            "VALUES (?, ?, 0, 0, 0, ?, ?, ?)",
            (key, raw, mode, filename, value),
        )
    connection.close()


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "store"


@pytest.fixture
def store(folder):
    made = Store(folder)
    yield made
    made.close()


@pytest.fixture
def full(store):
    """The store with one good record under `good`."""
    store.put("good", make_record())
    return store


@pytest.fixture
def told():
    """Warnings of the store so far, which this test may cause."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = types.SimpleNamespace(texts=lambda: [str(w.message) for w in caught])
        yield found
    assert all(w.category is AutoloopWarning for w in caught), found.texts()


# ------------------------------------------------ keeping


def test_a_record_comes_back_as_it_was(store, folder):
    record = make_record()
    assert store.get("key") is None
    store.put("key", record)
    assert store.get("key") == record
    other = Store(folder)
    assert other.get("key") == record
    other.close()


def test_a_record_of_many_trials_comes_back(store, folder):
    trials = (make_record().trials[0], *(Trial(f"0=unroll({n})", reason="x" * 50) for n in range(1, 400)))
    record = make_record(trials=trials)
    assert len(record.to_json()) > 2**15  # diskcache keeps such a text in a file
    store.put("key", record)
    assert store.get("key") == record
    assert list(folder.rglob("*.val"))


def test_the_last_record_under_a_key_counts(store):
    store.put("key", make_record("module.old"))
    store.put("key", make_record("module.new"))
    assert store.get("key").function == "module.new"
    assert len(list(store.items())) == 1


def test_delete_drops_one_and_clear_drops_all(store):
    for key in "abc":
        store.put(key, make_record(key))
    store.delete("b")
    store.delete("never there")
    assert [key for key, _ in store.items()] == ["a", "c"]
    assert store.clear() == 2
    assert list(store.items()) == []
    assert store.get("a") is None


def test_items_come_oldest_first(store):
    for key, day in (("a", 3), ("b", 1), ("c", 2)):
        store.put(key, make_record(created=f"2026-01-0{day}"))
    assert [key for key, _ in store.items()] == ["b", "c", "a"]


def test_a_closed_store_opens_again(full):
    full.close()
    assert full.get("good") == make_record()


def test_the_folder_is_for_this_user_only(store, folder):
    store.get("key")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_folder_that_others_may_read_is_closed_to_them(store, folder):
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    store.get("key")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_store_that_nobody_asks_makes_nothing(store, folder):
    store.close()
    assert not folder.exists()


# ------------------------------------------------ what others wrote


class _Payload:
    """Makes a file when it is unpickled."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return (os.mkdir, (str(self.marker),))


def _pickled_value(folder, data):
    plant(folder, "bad", data, mode=MODE_PICKLE)


def _pickled_value_in_a_file(folder, data):
    (folder / "planted.val").write_bytes(data)
    plant(folder, "bad", None, mode=MODE_PICKLE, filename="planted.val")


def _pickled_key(folder, data):
    plant(folder, data, make_record().to_json(), raw=0)


def _a_number_as_key(folder, data):
    plant(folder, 7, make_record().to_json())


PICKLES = [_pickled_value, _pickled_value_in_a_file, _pickled_key]


@pytest.mark.parametrize("row", PICKLES)
def test_a_planted_pickle_never_runs_and_is_a_miss(row, full, folder, tmp_path, told):
    marker = tmp_path / "executed"
    payload = pickle.dumps(_Payload(marker))
    row(folder, payload)
    full.close()
    assert full.get("bad") is None
    assert "bad" not in dict(full.items())
    full.clear()
    assert not marker.exists()
    assert len(told.texts()) <= 1
    pickle.loads(payload)  # the payload is a live one: unpickled, it does run
    assert marker.exists()


@pytest.mark.parametrize("row", [*PICKLES, _a_number_as_key])
def test_a_planted_row_costs_only_itself(row, full, folder, tmp_path):
    row(folder, pickle.dumps(_Payload(tmp_path / "executed")))
    assert full.get("bad") is None
    assert dict(full.items()) == {"good": make_record()}
    assert full.get("good") == make_record()


def _without(name):
    data = make_record().to_dict()
    del data[name]
    return json.dumps(data)


def _with(**changes):
    return json.dumps({**make_record().to_dict(), **changes})


UNREADABLE = {
    "no JSON": "{'a': 1}",
    "empty text": "",
    "a list": "[]",
    "an empty object": "{}",
    "a number": "7",
    "a deep nest": "[" * 100_000,
    "another schema": _with(schema=SCHEMA + 1),
    "schema of another type": _with(schema="1"),
    "an unknown field": _with(extra=1),
    "a missing field": _without("verdict"),
    "a wrong type": _with(complete="yes"),
    "NaN": _with(spent_s=float("nan")),
    "a winner without a trial": _with(winner="0=inline(3)"),
    "a trial of an unknown status": _with(trials=[{**make_record().to_dict()["trials"][0], "status": "great"}]),
    "a trial with an unknown field": _with(trials=[{**make_record().to_dict()["trials"][0], "extra": 1}]),
    "no trials": _with(trials=[]),
    "a key that maps to numbers": _with(key={"program": 1}),
}


@pytest.mark.parametrize("text", [pytest.param(text, id=name) for name, text in UNREADABLE.items()])
def test_an_unreadable_record_is_a_miss(text, full, folder):
    plant(folder, "bad", text)
    assert full.get("bad") is None
    assert dict(full.items()) == {"good": make_record()}
    full.put("bad", make_record("module.again"))
    assert full.get("bad").function == "module.again"


@pytest.mark.parametrize(("value", "mode"), [(7, MODE_RAW), (0.5, MODE_RAW), (b"\xff\x00", MODE_RAW)])
def test_a_value_that_is_no_text_is_a_miss(value, mode, full, folder):
    plant(folder, "bad", value, mode)
    assert full.get("bad") is None
    assert full.get("good") == make_record()


def test_a_value_whose_file_is_gone_is_a_miss(full, folder):
    plant(folder, "bad", None, MODE_TEXT, filename="gone.val")
    assert full.get("bad") is None
    assert full.get("good") == make_record()


def test_a_value_whose_file_is_no_text_is_a_miss(full, folder):
    (folder / "bad.val").write_bytes(b"\xff\xfe\xff")
    plant(folder, "bad", None, MODE_TEXT, filename="bad.val")
    assert full.get("bad") is None
    assert full.get("good") == make_record()


def test_only_texts_are_stored(full):
    for verb in (
        lambda cache: cache.set("key", {"a": 1}),
        lambda cache: cache.set(("a", 1), "text"),
        lambda cache: cache.get(("a", 1)),
    ):
        with pytest.raises(TypeError, match="are texts; got"):
            verb(full._open())


# ------------------------------------------------ damage


def test_a_damaged_store_is_moved_aside_and_a_new_one_begun(folder, store, told):
    folder.mkdir()
    garbage = b"no database" * 1000
    (folder / "cache.db").write_bytes(garbage)
    assert store.get("key") is None
    (aside,) = folder.glob("cache.db.damaged-*")
    assert aside.read_bytes() == garbage
    store.put("key", make_record())
    assert store.get("key") == make_record()
    (text,) = told.texts()
    assert str(folder) in text
    assert "moved aside" in text


@pytest.mark.parametrize("size", [0, 1, 15, 100, 1000, 4096, 5000, 8192, 20_000])
def test_a_truncated_store_costs_at_most_one_warning(size, full, folder, told):
    full.close()
    with (folder / "cache.db").open("r+b") as file:
        file.truncate(size)
    store = Store(folder)
    assert store.get("good") in (None, make_record())
    store.put("new", make_record())
    store.delete("good")
    assert dict(store.items()) == {"new": make_record()}
    store.close()
    assert len(told.texts()) <= 1


def test_damage_behind_a_sound_first_page_is_moved_aside_too(full, folder, told):
    for number in range(20):
        full.put(f"more {number}", make_record())
    full.close()
    with (folder / "cache.db").open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(4 * 4096)
        file.write(b"\xa5" * (size - 4 * 4096))
    Store(folder).put("new", make_record())
    assert len(told.texts()) == 1
    later = Store(folder)  # as the next process would
    later.put("new", make_record())
    assert later.get("new") == make_record()
    later.close()
    assert len(told.texts()) == 1


def test_a_database_of_another_program_is_not_touched_twice(folder, store, told):
    folder.mkdir()
    with sqlite3.connect(folder / "cache.db") as connection:
        connection.execute("CREATE TABLE Cache (something INTEGER)")
    connection.close()
    assert store.get("key") is None
    store.put("key", make_record())
    assert len(told.texts()) == 1


# ------------------------------------------------ a folder that can't be used


def _below_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    return tmp_path / "file" / "store"


def _a_file(tmp_path):
    (tmp_path / "file").write_text("")
    return tmp_path / "file"


def _a_link(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    return tmp_path / "link"


def _a_dangling_link(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    return tmp_path / "link"


@pytest.mark.parametrize("place", [_below_a_file, _a_file, _a_link, _a_dangling_link])
def test_a_folder_that_cannot_be_used_costs_one_warning(place, tmp_path, told):
    store = Store(place(tmp_path))
    before = sorted(tmp_path.rglob("*"))
    store.put("key", make_record())
    assert store.get("key") is None
    store.delete("key")
    assert list(store.items()) == []
    assert store.clear() == 0
    (text,) = told.texts()
    assert str(store.folder) in text
    assert "kept in memory only" in text
    assert sorted(tmp_path.rglob("*")) == before


def test_a_folder_of_another_user_is_refused(folder, store, told, monkeypatch):
    folder.mkdir()
    owner = folder.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    store.put("key", make_record())
    assert store.get("key") is None
    assert list(folder.iterdir()) == []
    (text,) = told.texts()
    assert f"belongs to user {owner}, not to {owner + 1}" in text


FULL_DISK = [
    OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
    sqlite3.OperationalError("database or disk is full"),
    sqlite3.OperationalError("attempt to write a readonly database"),
    diskcache.Timeout("database timeout"),
]


@pytest.mark.parametrize("error", FULL_DISK, ids=str)
def test_a_write_that_fails_costs_one_warning(error, full, told, monkeypatch):
    def fail(*args, **kwargs):
        raise error

    monkeypatch.setattr(diskcache.Cache, "set", fail)
    full.put("key", make_record())
    full.put("other", make_record())
    assert full.get("key") is None
    (text,) = told.texts()
    assert repr(error) in text


@pytest.mark.parametrize("error", FULL_DISK, ids=str)
def test_a_store_that_does_not_open_costs_one_warning(error, store, told, monkeypatch):
    def fail(*args, **kwargs):
        raise error

    monkeypatch.setattr(diskcache, "Cache", fail)
    store.put("key", make_record())
    assert store.get("key") is None
    assert len(told.texts()) == 1


@pytest.fixture
def waited(monkeypatch):
    """Seconds that diskcache waited, by a clock that only waiting moves."""
    found = []
    clock = types.SimpleNamespace(sleep=lambda s: found.append(1.0), time=lambda: float(len(found)))
    monkeypatch.setattr(diskcache.core, "time", clock)
    monkeypatch.setattr(_store, "_TIMEOUT_S", 0.05)
    return found


@pytest.fixture
def locked(full, folder):
    """The folder of a store that another connection holds."""
    full.close()
    connection = sqlite3.connect(folder / "cache.db", isolation_level=None)
    connection.execute("BEGIN EXCLUSIVE")
    yield folder
    connection.close()


def test_a_locked_store_costs_one_warning(locked, waited, told):
    store = Store(locked)
    store.put("key", make_record())
    assert store.get("key") is None
    (text,) = told.texts()
    assert "locked" in text
    assert not list(locked.glob("*.damaged-*"))


def test_a_locked_store_is_not_waited_for_long(locked, waited, told):
    Store(locked).get("key")
    assert len(waited) < 10


# ------------------------------------------------ locks


def test_a_lock_is_held_by_one(store, folder):
    other = Store(folder)
    with store.lock("device", expire_s=60, wait_s=0) as had:
        assert had
        with other.lock("device", expire_s=60, wait_s=0) as had_too:
            assert not had_too
        with other.lock("another device", expire_s=60, wait_s=0) as had_too:
            assert had_too
    with other.lock("device", expire_s=60, wait_s=0) as had:
        assert had
    other.close()


def test_a_lock_is_given_back_after_an_error(store):
    with pytest.raises(ZeroDivisionError), store.lock("device", expire_s=60, wait_s=0):
        raise ZeroDivisionError
    with store.lock("device", expire_s=60, wait_s=0) as had:
        assert had


def test_a_lock_is_waited_for(store, folder, monkeypatch):
    other, waits = Store(folder), []

    def sleep(seconds):
        waits.append(seconds)
        if len(waits) == 3:
            holder.close()

    with contextlib.ExitStack() as holder:
        holder.enter_context(other.lock("device", expire_s=60, wait_s=0))
        monkeypatch.setattr(_store.time, "sleep", sleep)
        with store.lock("device", expire_s=60, wait_s=1e6) as had:
            assert had
    assert len(waits) == 3
    other.close()


def test_the_lock_of_a_dead_process_expires_and_is_not_taken_from_its_next_holder(store, folder):
    other = Store(folder)
    with store.lock("device", expire_s=0, wait_s=0), other.lock("device", expire_s=60, wait_s=0) as had:
        assert had
        with store.lock("device", expire_s=60, wait_s=0) as had_again:
            assert not had_again
    other.close()


def test_a_lock_is_no_record(full):
    with full.lock("device", expire_s=60, wait_s=0):
        assert dict(full.items()) == {"good": make_record()}
        assert full.clear() == 1
        assert list(full.items()) == []


def test_a_store_that_cannot_be_used_locks_nobody_out(tmp_path, told):
    store = Store(_below_a_file(tmp_path))
    with store.lock("device", expire_s=60, wait_s=1e6) as had:
        assert had
    assert len(told.texts()) == 1


# ------------------------------------------------ many at once


def test_all_of_several_records_are_kept_or_none(full, monkeypatch, told):
    assert full.put_all({"a": make_record("a"), "b": make_record("b")})
    before = dict(full.texts())
    assert set(before) == {"good", "a", "b"}
    real = diskcache.Cache.set

    def fail_at_the_second(cache, key, value):
        if key == "d":
            raise sqlite3.OperationalError("database or disk is full")
        return real(cache, key, value)

    monkeypatch.setattr(diskcache.Cache, "set", fail_at_the_second)
    assert not full.put_all({"c": make_record("c"), "d": make_record("d")})
    assert len(told.texts()) == 1
    other = Store(full.folder)
    assert dict(other.texts()) == before
    other.close()


def test_texts_hold_what_is_unreadable_too(full, folder):
    plant(folder, "old", '{"schema": 0}')
    assert set(dict(full.texts())) == {"good", "old"}
    assert [key for key, _ in full.items()] == ["good"]


# ------------------------------------------------ processes


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_opens_a_connection_of_its_own(python, folder):
    script = f"""
import os, sys
from pathlib import Path
from autoloop import Record, Trial
from autoloop._store import Store

store = Store(Path({str(folder)!r}))
record = Record("module.f", {{}}, "as-written", (Trial("as-written"),))
store.put("parent", record)
inherited = store._cache
child = os.fork()
if not child:
    seen = store.get("parent") == record
    store.put("child", record)
    os._exit(0 if seen and store._cache is not inherited else 1)
_, status = os.waitpid(child, 0)
assert status == 0, status
assert store._cache is inherited
print(sorted(key for key, _ in store.items()))
"""
    assert python(script) == "['child', 'parent']\n"


WRITER = """
import sys, time
from pathlib import Path
from autoloop import Record, Trial
from autoloop._store import Store

folder, go, name = Path({folder!r}), Path({go!r}), {name!r}
print("ready", flush=True)
while not go.exists():
    time.sleep(0.005)
store = Store(folder)
for number in range(20):
    store.put(f"{{name}}-{{number}}", Record(name, {{}}, "as-written", (Trial("as-written"),)))
    store.put("shared", Record(name, {{}}, "as-written", (Trial("as-written"),)))
"""


@pytest.mark.parametrize("names", ["abcd", pytest.param("abcdefgh", marks=pytest.mark.slow)])
def test_processes_that_write_at_once_lose_nothing(names, start_python, store, folder, tmp_path):
    go = tmp_path / "go"
    writers = [start_python(WRITER.format(folder=str(folder), go=str(go), name=name)) for name in names]
    for writer in writers:
        assert writer.stdout.readline() == "ready\n"
    go.touch()
    for writer in writers:
        _, err = writer.communicate(timeout=120)
        assert writer.returncode == 0, err
    found = dict(store.items())
    assert set(found) == {f"{name}-{number}" for name in names for number in range(20)} | {"shared"}
    assert all(record.function == key.split("-")[0] for key, record in found.items() if key != "shared")


# ------------------------------------------------ wisdom


def test_wisdom_stands_behind_the_store_in_order(folder, tmp_path):
    first = as_wisdom(tmp_path / "first.json", a=make_record("first.a"), b=make_record("first.b"))
    second = as_wisdom(tmp_path / "second.json", b=make_record("second.b"), c=make_record("second.c"))
    store = Store(folder, [first, second])
    store.put("a", make_record("store.a"))
    assert [store.get(key).function for key in "abc"] == ["store.a", "first.b", "second.c"]
    assert store.get("d") is None
    store.delete("b")
    store.clear()
    assert [store.get(key).function for key in "abc"] == ["first.a", "first.b", "second.c"]
    assert list(store.items()) == []
    store.close()


def test_wisdom_answers_where_the_folder_cannot(tmp_path, told):
    wisdom = as_wisdom(tmp_path / "wisdom.json", key=make_record())
    store = Store(_below_a_file(tmp_path), [wisdom])
    assert store.get("key") == make_record()
    assert len(told.texts()) == 1


def test_wisdom_is_never_written(folder, tmp_path):
    wisdom = tmp_path / "wisdom.json"
    as_wisdom(wisdom, key=make_record())
    before = wisdom.read_bytes()
    store = Store(folder, [str(wisdom)])
    store.put("key", make_record("module.new"))
    store.delete("key")
    assert wisdom.read_bytes() == before
    store.close()


BAD_WISDOM = {
    "no JSON": b"{",
    "no text": b"\xff\xfe\xff",
    "a list": b"[]",
    "no records": b"{}",
    "records in a list": b'{"format": "autoloop wisdom", "version": 1, "records": []}',
    "a bad record": b'{"format": "autoloop wisdom", "version": 1, "records": {"key": {"winner": 1}}}',
    "another version": b'{"format": "autoloop wisdom", "version": 2, "records": {}}',
    "a deep nest": b"[" * 100_000,
    "missing": None,
}


@pytest.mark.parametrize("content", [pytest.param(c, id=name) for name, c in BAD_WISDOM.items()])
def test_a_bad_wisdom_file_costs_one_warning_that_names_it(content, folder, tmp_path, told):
    bad = tmp_path / "bad.json"
    if content is not None:
        bad.write_bytes(content)
    good = as_wisdom(tmp_path / "good.json", key=make_record())
    store = Store(folder, [str(bad), good])
    assert store.get("key") == make_record()
    assert store.get("key") == make_record()
    assert store.get("other") is None
    store.close()
    (text,) = told.texts()
    assert str(bad) in text


def test_a_huge_wisdom_file_is_refused(folder, tmp_path, told, monkeypatch):
    monkeypatch.setattr(_wisdom, "MAX_BYTES", 100)
    store = Store(folder, [as_wisdom(tmp_path / "wisdom.json", key=make_record())])
    assert store.get("key") is None
    store.close()
    (text,) = told.texts()
    assert "over 100 bytes" in text


# ------------------------------------------------ where


PLACES = {
    "the variable": {"AUTOLOOP_CACHE_DIR": "{home}/own"},
    "the variable, with ~": {"AUTOLOOP_CACHE_DIR": "~/own"},
    "XDG": {"XDG_CACHE_HOME": "{home}/xdg"},
    "home": {},
    "an empty variable": {"AUTOLOOP_CACHE_DIR": ""},
    "a relative XDG": {"XDG_CACHE_HOME": "relative"},
}


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """A home and a current directory of this test's own; returns both."""
    home, current = tmp_path / "home", tmp_path / "current"
    home.mkdir()
    current.mkdir()
    monkeypatch.chdir(current)
    monkeypatch.setenv("HOME", str(home))
    for name in ("AUTOLOOP_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    return home, current


@pytest.mark.parametrize("variables", [pytest.param(v, id=name) for name, v in PLACES.items()])
def test_nothing_is_made_in_the_current_directory(variables, elsewhere, monkeypatch):
    home, current = elsewhere
    for name, value in variables.items():
        monkeypatch.setenv(name, value.format(home=home))
    store = _stores.store_of(_config.current())
    store.put("key", make_record())
    assert store.get("key") == make_record()
    assert store.folder.is_relative_to(home)
    assert list(current.iterdir()) == []


def test_an_empty_cache_dir_is_not_the_current_directory(elsewhere):
    home, current = elsewhere
    with autoloop.settings(cache_dir=""):
        store = _stores.store_of(_config.current())
    store.put("key", make_record())
    assert list(current.iterdir()) == []
    assert store.folder.is_relative_to(home)
