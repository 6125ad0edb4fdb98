"""Why a call is not served from a record, and which command would change that."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from autoloop import _explain, _signature, _wanted
from autoloop._call import Call, leaf_names
from autoloop._decision import unusable, why_untuned
from autoloop._function import Function
from autoloop._program import Program
from autoloop._records import Record
from autoloop._store import Store

#: What is said of a record that a call does not take as it is.
_GOES_ON = "; a call goes on with its tuning first, of which {:.3g} s of a budget of {:g} s were spent"


@dataclass(frozen=True)
class Answer:
    """The answer to the question why a call misses: for a person, and the miss itself if there is one."""

    text: str
    miss: _explain.Miss | None = None


def answer(
    function: Function,
    program: Program | None,
    call: Call,
    parts: Mapping[str, str],
    store: Store,
    allowed: bool,
    goes_on: Callable[[Record], bool],
) -> Answer:
    """Why a call misses, or that it does not.

    Args:
        function: the decorated one.
        program: its trace; None where it closes over an outer one.
        call: the call.
        parts: its signature's named parts.
        store: where its record may be.
        allowed: whether trials may have side effects.
        goes_on: whether the call would go on with the tuning that made a record.
    """
    if program is None:
        return Answer(f"{function.name}: nothing is looked up, for it closes over values of an outer trace")
    if reason := why_untuned(program, allowed):
        return Answer(f"{function.name}: nothing is looked up: {reason}")
    found = miss(function, program, call, parts, store)
    if found is None:
        key = _signature.digest(parts)
        record = store.get(key)
        plan = "gone meanwhile" if record is None else record.winner
        more = "" if record is None or not goes_on(record) else _GOES_ON.format(record.spent_s, record.budget_s)
        said = f"no miss, the record {key[:12]} is remembered: {plan}{more}"
        return Answer(f"{function.name}({parts['arguments']}): {said}")
    return Answer(f"{found}\n{_to_warm(function, call, parts)}", found)


def miss(
    function: Function, program: Program, call: Call, parts: Mapping[str, str], store: Store
) -> _explain.Miss | None:
    """The miss of a call, None if a usable record is stored."""
    record = store.get(_signature.digest(parts))
    unfit = "" if record is None else unusable(program, record)
    return _explain.miss(function.name, parts, store, leaf_names(function, call), unfit)


def _to_warm(function: Function, call: Call, parts: Mapping[str, str]) -> str:
    wanted = _wanted.of_call(function, call, parts)
    command = _wanted.command(wanted)
    by_hand = f"call .warmup(...) with these shapes in mode 'tune' ({wanted.problem})"
    return f"to warm it: {command}" if command else f"to warm it: {by_hand}"


def strict_text(function: Function, program: Program, call: Call, parts: Mapping[str, str], store: Store) -> str:
    """What mode `strict` says of a miss."""
    found = miss(function, program, call, parts, store)
    why = "" if found is None else f": {found.why}"
    return (
        f"{function.name}({parts['arguments']}): no record is remembered{why}\n"
        f"mode 'strict' forbids tuning; {_to_warm(function, call, parts)}\n"
        f"or call .warmup(...) in mode 'tune' first, or set AUTOLOOP_MODE=cached to run misses as written"
    )
