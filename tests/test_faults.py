"""Real faults of disks and processes: no finished record is lost, and no call fails."""

import contextlib
import os
import shutil
import subprocess

import pytest

from autoloop import AutoloopWarning, Record, Trial
from autoloop._store import Store


def make(name, size=0):
    return Record(name, {"program": "x" * size}, "as-written", (Trial("as-written"),))


# ------------------------------------------------ killed while writing


KILLED = """
import os
from pathlib import Path
from autoloop import Record, Trial
from autoloop._store import Store
from kills import lines_of_killed

folder, kills = Path({folder!r}), {kills}

def write(name, go):
    store, number = Store(folder), 0
    while True:
        key = f"{{name}}-{{number}}"
        # Every third is so large that diskcache keeps it in a file of its own.
        parts = {{"program": "x" * (50_000 if number % 3 == 0 else 10)}}
        store.put(key, Record(key, parts, "as-written", (Trial("as-written"),)))
        os.write(go, f"{{key}}\\n".encode())
        number += 1

finished = lines_of_killed(kills, write)

store = Store(folder)
lost = [key for key in finished if store.get(key) is None or store.get(key).function != key]
store.put("after", Record("after", {{}}, "as-written", (Trial("as-written"),)))
print(len(finished), len(lost), store.get("after").function)
print(sorted(path.name for path in folder.iterdir() if "damaged" in path.name))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize("kills", [3, pytest.param(50, marks=pytest.mark.slow)])
def test_writers_that_are_killed_lose_no_finished_record(kills, python, tmp_path):
    counts, damaged = python(KILLED.format(folder=str(tmp_path / "store"), kills=kills)).splitlines()
    finished, lost, after = counts.split()
    assert int(finished) >= kills
    assert (lost, after, damaged) == ("0", "after", "[]")


# ------------------------------------------------ disks


@pytest.fixture
def disk(tmp_path):
    """A disk of its own of a megabyte, where this user may mount one; a call remounts it with an option."""
    folder = tmp_path / "disk"
    folder.mkdir()

    def mount(*options):
        return subprocess.run(["mount", *options, str(folder)], capture_output=True, check=False).returncode == 0

    if shutil.which("mount") is None or not mount("-t", "tmpfs", "-o", "size=1m", "tmpfs"):
        pytest.skip("this user may not mount a disk")
    yield folder, lambda option: mount("-o", f"remount,{option}")
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextlib.contextmanager
def one_warning(text):
    with pytest.warns(AutoloopWarning, match=text) as told:
        yield
    assert len(told) == 1


def _readable(folder, names):
    store = Store(folder)
    found = {key: record.function for key, record in store.items()}
    store.close()
    return {name: found.get(name) for name in names} == {name: name for name in names}


def test_a_full_disk_costs_one_warning_and_no_finished_record(disk):
    folder, _ = disk
    store, kept = Store(folder / "store"), []
    with one_warning("can't be used"):
        for number in range(200):
            name = f"r{number}"
            store.put(name, make(name, 20_000))
            if store._broken:
                break
            kept.append(name)
        store.put("more", make("more"))
        assert store.get("more") is None
    assert kept
    shutil.copytree(folder / "store", folder.parent / "copy")  # nothing can be read where nothing can be locked
    assert _readable(folder.parent / "copy", kept)


def test_a_disk_that_becomes_read_only_costs_one_warning(disk):
    folder, remount = disk
    store = Store(folder / "store")
    store.put("kept", make("kept"))
    store.close()
    assert remount("ro")
    other = Store(folder / "store")
    with one_warning("can't be used"):
        assert other.get("kept") is None
        other.put("more", make("more"))
    assert remount("rw")
    assert _readable(folder / "store", ["kept"])


LIMITED = """
import resource, warnings
from pathlib import Path
from autoloop import Record, Trial
from autoloop._store import Store

store, kept = Store(Path({folder!r})), []
store.put("first", Record("first", {{}}, "as-written", (Trial("as-written"),)))
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    for number in range(100):
        name = f"r{{number}}"
        store.put(name, Record(name, {{"program": "x" * 20_000}}, "as-written", (Trial("as-written"),)))
        if store._broken:
            break
        kept.append(name)
print(len(told), len(kept) < 100)
print(*kept)
"""


def test_a_file_that_may_not_grow_costs_one_warning_and_no_finished_record(python, tmp_path):
    pytest.importorskip("resource")
    told, kept = python(LIMITED.format(folder=str(tmp_path / "store"))).splitlines()
    assert told == "1 True"
    assert _readable(tmp_path / "store", ["first", *kept.split()])
