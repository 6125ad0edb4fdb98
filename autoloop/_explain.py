"""Why nothing is remembered for a call: the nearest record, and what differs from it, in a person's words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autoloop import _signature
from autoloop._entries import WISDOM, Entry, entries
from autoloop._store import Store

#: What a record of the same program may differ in without being of another program.
_SENTENCES = {
    "statics": ("static arguments were {}, are {}", "none"),
    "sharding": ("arguments were placed {}, are placed {}", "where jax puts them"),
    "device": ("device {} -> {}", "none"),
    "host": ("processor {} -> {}", "unknown"),
    "context": ("options of the decorator: {} -> {}", "none"),
    "schema": ("written in the form {} of another autoloop, this one reads {}", "unknown"),
}
_SAME_WORDS = 20
_LONGEST = 80


@dataclass(frozen=True)
class Miss:
    """Why a call misses.

    Attributes:
        function: of the call.
        arguments: of the call, as its signature writes them.
        nearest: the stored record that is nearest, None if there is none of this function or program.
        differences: what differs from it, one text each; or the one reason why an equal one can't be used.
        places: where it was looked for.
    """

    function: str
    arguments: str
    nearest: Entry | None
    differences: tuple[str, ...]
    places: str

    def __str__(self) -> str:
        head = f"{self.function}({self.arguments}): no record is remembered"
        return f"{head}; {self.why}"

    @property
    def why(self) -> str:
        """The part that missed, in one sentence."""
        if self.nearest is None:
            return f"nothing of this function or program is in {self.places}"
        near = self.nearest
        of = "" if near.function == self.function else f" of {near.function}"
        made = f", {near.record.created}" if near.record is not None and near.record.created else ""
        where = " of a wisdom file" if near.where == WISDOM else ""
        return f"the nearest{where} is {near.key[:12]}{of}{made}: {', '.join(self.differences)}"


def miss(
    function: str, parts: Mapping[str, str], store: Store, names: Sequence[str] = (), unfit: str = ""
) -> Miss | None:
    """Why a call with these parts of a signature misses, None where a usable record is stored.

    Args:
        function: its name, as records write it.
        parts: the named parts of its signature.
        store: where to look.
        names: what to call its arguments, one name a leaf.
        unfit: why the record under this very key can't be used, where one is stored and readable.
    """
    every = entries(store, wisdom=True)
    arguments, places = parts.get("arguments", ""), store.places
    own = [entry for entry in every if entry.key == _signature.digest(parts)]
    if any(entry.record is not None for entry in own) and not unfit:
        return None
    if own:
        reason = unfit or f"it is of this very call, but can't be read: {own[-1].problem}"
        return Miss(function, arguments, own[-1], (reason,), places)
    near = nearest(function, parts, every)
    differing = () if near is None else tuple(differences(near.parts, parts, names))
    return Miss(function, arguments, near, differing, places)


def nearest(function: str, parts: Mapping[str, str], every: Sequence[Entry]) -> Entry | None:
    """Of the entries of the same function or program, that with the fewest parts that differ, the newest of those."""
    alike = [e for e in every if e.function == function or _same(e.parts, parts, "skeleton")]
    return max(alike, key=lambda entry: _nearness(entry, parts), default=None)


def _same(old: Mapping[str, str], new: Mapping[str, str], name: str) -> bool:
    return old.get(name) is not None and old.get(name) == new.get(name)


def _nearness(entry: Entry, parts: Mapping[str, str]) -> tuple[bool, int, int, str]:
    shapes = (entry.parts.get("arguments", ""), parts.get("arguments", ""))
    equal = sum(a == b for a, b in zip(*(text.split() for text in shapes), strict=False))
    created = entry.record.created if entry.record is not None else ""
    differing = sum(entry.parts.get(name) != parts[name] for name in parts)
    return (_same(entry.parts, parts, "skeleton"), -differing, equal, created)


# ---------------------------------------------------------------- in a person's words


def differences(old: Mapping[str, str], new: Mapping[str, str], names: Sequence[str] = ()) -> list[str]:
    """What differs between two signatures, the program first, one text each.

    Args:
        old: named parts of the record.
        new: named parts of the call.
        names: what to call the arguments, one name a leaf; without, they are counted as arrays.
    """
    found = [_program(old, new), *_arguments(old.get("arguments", ""), new.get("arguments", ""), names)]
    for name in dict.fromkeys([*new, *old]):
        before, after = old.get(name), new.get(name)
        if before == after or name in ("program", "skeleton", "arguments"):
            continue
        if name in ("versions", "flags"):
            found += _words(before or "", after or "", ", " if name == "versions" else " ")
            continue
        sentence, nothing = _SENTENCES.get(name, (f"{name} {{}} -> {{}}", "nothing"))
        found.append(sentence.format(*_around_difference(before or nothing, after or nothing)))
    return [text for text in found if text]


def _program(old: Mapping[str, str], new: Mapping[str, str]) -> str:
    if old.get("program") == new.get("program"):
        return "same program"
    if old.get("program") is None:
        return ""
    if old.get("skeleton") != new.get("skeleton"):
        return "the program has other equations"
    if old.get("arguments") != new.get("arguments"):
        return "same program"  # its sizes follow from the arguments'
    return "same equations, but a number, a loop's length or a size in the program differs"


def _arguments(old: str, new: str, names: Sequence[str]) -> list[str]:
    before, after = old.split(), new.split()
    if len(before) != len(after):
        return [f"it had {len(before)} arrays as arguments, has {len(after)}"]
    called = list(names) if len(names) == len(after) else [f"array {i}" for i in range(len(after))]
    pairs = zip(called, before, after, strict=True)
    return [f"{name} was {was}, is {now}" for name, was, now in pairs if was != now]


def _words(old: str, new: str, separator: str) -> list[str]:
    """What differs in a list of words, those of one name (`jax 0.10.2`, `jax_enable_x64=True`) side by side."""
    before, after = ([word for word in text.split(separator) if word] for text in (old, new))
    was, now = (
        {_name(word): word for word in set(words) - set(same)} for words, same in ((before, after), (after, before))
    )
    return [_one_word(was.get(name), now.get(name)) for name in sorted({*was, *now})]


def _name(word: str) -> str:
    return word.replace("=", " ").split(" ")[0]


def _one_word(was: str | None, now: str | None) -> str:
    if was is None or now is None:
        return f"with {now} now" if was is None else f"without {was} now"
    return f"{was} -> {now.removeprefix(_name(now)).lstrip(' =')}"


def _around_difference(old: str, new: str) -> tuple[str, str]:
    """Two texts, cut where they are long and the same."""
    pairs = enumerate(zip(old, new, strict=False))
    same = next((i for i, (a, b) in pairs if a != b), min(len(old), len(new)))
    start = max(0, same - _SAME_WORDS) if max(len(old), len(new)) > _LONGEST else 0
    lead = "..." if start else ""
    return lead + old[start : start + _LONGEST], lead + new[start : start + _LONGEST]
