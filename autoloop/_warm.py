"""Tuning ahead of time: which functions with which arguments, and what became of each.

A target is `module:function`; specs are a JSON text, a file of it, or `module:name` of a Python object.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoloop import _config, _json, _specfile, _tune, _wanted
from autoloop._call import Call
from autoloop._dispatch import Autoloop
from autoloop._explain import differences
from autoloop._records import AS_WRITTEN, Record
from autoloop._signature import arguments_part
from autoloop._specfile import Signature, SpecError, several
from autoloop._store import Store


class TargetError(ValueError):
    """A `module:name` that can't be imported, or is not what it should be."""


#: A file of specs is far smaller.
_MOST_BYTES = 10_000_000


@dataclass(frozen=True)
class Job:
    """One function to tune for one signature, and the note that asked for it, if one did."""

    target: str
    signature: Signature
    wanted: _wanted.Wanted | None = None


@dataclass(frozen=True)
class Done:
    """What became of a job: the record, or the problem that prevented it.

    Attributes:
        target: `module:function`.
        arguments: as a signature writes them, "" where that was not reached.
        record: None where there is none.
        fresh: whether it was made now, and not remembered.
        problem: "" where all went well.
    """

    target: str
    arguments: str = ""
    record: Record | None = None
    fresh: bool = False
    problem: str = ""

    def __str__(self) -> str:
        head = f"{self.target}({self.arguments})"
        if self.record is None or self.problem:
            return f"{head}: failed: {self.problem}"
        faster = None if self.record.winner == AS_WRITTEN else self.record.gain
        how = f"tuned in {self.record.spent_s:.1f} s" if self.fresh else "was remembered"
        if not self.record.complete:
            how += f", partial: its budget of {self.record.budget_s:g} s ended the search"
        return f"{head}: {self.record.winner}{f', {faster:.2f}x as fast as written' if faster else ''}, {how}"

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON types."""
        record = self.record
        return {
            "function": self.target,
            "arguments": self.arguments,
            "plan": None if record is None else record.winner,
            "gain": None if record is None else record.gain,
            "fresh": self.fresh,
            "problem": self.problem,
        }


# ---------------------------------------------------------------- what to tune


def imported(text: str) -> Any:
    """The object of `module:name`.

    Raises:
        TargetError: there is no such module or name; the message names one that is near.
    """
    module_name, colon, name = text.partition(":")
    if not colon or not module_name or not name:
        raise TargetError(f"write module:name, as package.train:step; got {text!r}")
    try:
        found: Any = importlib.import_module(module_name)
    except ImportError as error:
        raise TargetError(f"{module_name} can't be imported: {error}") from error
    for part in name.split("."):
        if not hasattr(found, part):
            near = difflib.get_close_matches(part, dir(found), n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise TargetError(f"{module_name} has no {name!r}{hint}")
        found = getattr(found, part)
    return found


def function(target: str) -> Autoloop[..., Any]:
    """The decorated function of `module:function`; raises `TargetError` for anything else."""
    found = imported(target)
    if not isinstance(found, Autoloop):
        raise TargetError(f"{target} is not decorated with @autoloop; it is a {type(found).__name__}")
    return found


def specs(text: str) -> list[Signature] | dict[str, list[Signature]]:
    """The signatures of a JSON text, a file of it, or `module:name`; by target where they name targets.

    Raises:
        SpecError: the text is none of these, or what it names holds no signatures.
        TargetError: there is no such `module:name`.
    """
    if text.lstrip().startswith(("[", "{")):
        return _of_json(text, "--specs")
    if Path(text).is_file():
        try:
            return _of_json(_json.read_file(text, _MOST_BYTES), text)
        except ValueError as error:
            raise error if isinstance(error, SpecError) else SpecError(f"{text}: {error}") from None
    if ":" not in text:
        raise SpecError(f"there is no file {text!r}; specs are a file, module:name, or a JSON text")
    found = imported(text)
    if not callable(found):
        return _of_python(found)
    try:
        return _of_python(found())
    except TypeError as error:
        raise SpecError(f"{text} must give specs when it is called without arguments: {error}") from None


def _of_json(text: str, where: str) -> list[Signature] | dict[str, list[Signature]]:
    try:
        data = _json.loads(text)
    except ValueError as error:
        raise SpecError(f"{where} is not JSON: {error}") from None
    try:
        return _by_target(data)
    except SpecError as error:
        raise SpecError(f"{where}: {error}") from None


def _by_target(data: Any) -> list[Signature] | dict[str, list[Signature]]:
    if isinstance(data, dict) and data and all(":" in name for name in data):
        return {target: several(signatures) for target, signatures in data.items()}
    return several(data)


def _of_python(found: Any) -> list[Signature] | dict[str, list[Signature]]:
    """Signatures as a program writes them: a tuple of arguments, `{"args":, "kwargs":}`, or a list of these."""
    if isinstance(found, Mapping) and found and all(":" in str(name) for name in found):
        return {str(target): _several_python(signatures) for target, signatures in found.items()}
    return _several_python(found)


def _several_python(found: Any) -> list[Signature]:
    return [_one_python(item) for item in (found if isinstance(found, list) else [found])]


def _one_python(found: Any) -> Signature:
    if isinstance(found, tuple):
        return found, {}
    if isinstance(found, Mapping) and found and set(found) <= {"args", "kwargs"}:
        return tuple(found.get("args", ())), dict(found.get("kwargs", {}))
    raise SpecError(
        f'specs in Python are a tuple of arguments, {{"args": (...), "kwargs": {{...}}}}, or a list of these; '
        f"got {type(found).__name__}"
    )


def jobs(targets: Sequence[str], signatures: list[Signature] | dict[str, list[Signature]]) -> list[Job]:
    """Each target with each of its signatures.

    Raises:
        TargetError: signatures that name their targets lack one, or there is no target at all.
    """
    if isinstance(signatures, list):
        if not targets:
            raise TargetError("name a module:function, or specs that name it")
        return [Job(target, signature) for target in targets for signature in signatures]
    if missing := [target for target in targets if target not in signatures]:
        raise TargetError(f"the specs do not name {', '.join(missing)}; they name {', '.join(signatures)}")
    return [Job(target, signature) for target in targets or signatures for signature in signatures[target]]


def wanted_jobs(store: Store, targets: Sequence[str]) -> tuple[list[Job], list[Done]]:
    """Jobs for what is noted as wanted (of these targets, or of all), and what of it can't be made a job."""
    found, hopeless = [], []
    for wanted in _wanted.noted(store):
        name = wanted.target or wanted.function
        if targets and name not in targets:
            continue
        try:
            if wanted.specs is None or wanted.target is None:
                raise SpecError(wanted.problem)
            found.append(Job(name, _specfile.from_data(wanted.specs), wanted))
        except SpecError as error:
            hopeless.append(Done(name, wanted.parts.get("arguments", ""), problem=str(error)))
    return found, hopeless


# ---------------------------------------------------------------- tuning


def warm(work: Iterable[Job], budget_s: float | None, store: Store, told: Callable[[Done], None]) -> list[Done]:
    """Tunes job after job, whatever the environment's mode; one that fails does not stop the others.

    Args:
        work: what to tune.
        budget_s: seconds that each tuning may take, None for what the decorator says.
        store: where what was wanted is noted.
        told: called with each outcome.
    """
    changes: dict[str, Any] = {"mode": "tune", **({} if budget_s is None else {"budget_s": budget_s})}
    found = []
    for job in work:
        with _config.settings(**changes):
            done = _one(job)
        if job.wanted is not None and not done.problem:
            _wanted.drop(store, job.wanted)
        found.append(done)
        told(done)
    return found


def _one(job: Job) -> Done:
    started = _tune.now()
    arguments = ""
    try:
        fun = function(job.target)
        args, kwargs = job.signature
        arguments = arguments_part(Call.keeping(fun._function, args, kwargs).key)
        record = fun.warmup(*args, **kwargs)
    except Exception as error:  # the user's code may raise anything; the other jobs go on
        lines = str(error).strip().splitlines() or [""]
        return Done(job.target, arguments, problem=f"{type(error).__name__}: {lines[0]}")
    return Done(job.target, arguments, record, record.created >= started, _problem(job, record))


def _problem(job: Job, record: Record) -> str:
    if record.verdict.startswith("not tuned"):
        return record.verdict
    if job.wanted is not None and dict(job.wanted.parts) != dict(record.key):
        odd = ", ".join(differences(job.wanted.parts, record.key))
        return f"tuned, but the call that was wanted is another: {odd}"
    return ""
