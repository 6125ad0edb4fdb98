"""Commands on the user's functions and the machine: warm, explain, doctor."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any, TextIO

from autoloop import _config, _doctor, _explain, _miss, _progress, _wanted, _warm
from autoloop._call import Call
from autoloop._cli import Commands, ProblemError, answer, counted, own_store
from autoloop._specfile import SpecError

_SPECS = {"metavar": "SPECS", "help": 'argument specs: a JSON file, module:name, or a JSON text as ["f32[64,128]"]'}


def add(commands: Commands) -> None:
    """Declares the commands of this module."""
    many = {"metavar": "module:function", "nargs": "*", "help": "decorated functions"}
    options: dict[str, dict[str, Any]] = {
        "targets": many,
        "--specs": _SPECS,
        "--wanted": {"action": "store_true", "help": "tune the calls that mode 'cached' met without a record"},
        "--budget": {"type": float, "metavar": "SECONDS", "help": "seconds that each tuning may take"},
    }
    commands.add("warm", _run_warm, "tune functions ahead of time (status 1 if some failed)", options)
    one = {"metavar": "module:function", "nargs": "?", "help": "a decorated function; without it, what is wanted"}
    text = "say why a call is not remembered, and what differs"
    commands.add("explain", _run_explain, text, {"target": one, "--specs": _SPECS})
    commands.add("doctor", _run_doctor, "examine device, versions, store, timer, noise (1 if broken)")


def _usage(work: Callable[[], Any]) -> Any:
    """What `work` returns; a target or specs that are none is wrong usage."""
    if "" not in sys.path:
        sys.path.insert(0, "")  # as `python -m` does, so that a user's module is found
    try:
        return work()
    except (_warm.TargetError, SpecError, OSError) as error:
        raise ProblemError(str(error), 2) from error


def _run_warm(given: argparse.Namespace) -> int:
    if given.budget is not None:
        _config.check_seconds("--budget", given.budget)
    if given.specs is None and not given.wanted:
        raise ProblemError("warm needs --specs, or --wanted for the calls that mode 'cached' met", 2)
    store = own_store()
    work, done = _warm.wanted_jobs(store, given.targets) if given.wanted else ([], [])
    if given.specs is not None:
        work += _usage(lambda: _warm.jobs(given.targets, _warm.specs(given.specs)))
        for target in dict.fromkeys(job.target for job in work if job.wanted is None):
            _usage(lambda name=target: _warm.function(name))  # type: ignore[misc]
    else:
        _usage(list)
    with _Bar(len(work), sys.stderr if given.json else sys.stdout) as bar:
        done += _warm.warm(work, given.budget, store, bar.told)
    failed = sum(bool(one.problem) for one in done)
    said = f"{len(done) - failed} of {len(done)} are tuned" if done else "nothing is wanted"
    lines = [str(one) for one in done if one not in bar.shown]  # nobody wants to read them twice
    answer(given, [one.to_dict() for one in done], "\n".join([*lines, said]))
    return 1 if failed else 0


class _Bar:
    """Shows which job is done: a tqdm bar where somebody watches and it is installed, else one line a job."""

    def __init__(self, total: int, lines_to: TextIO) -> None:
        kind = _progress.bar_class()
        self._bar = kind(total=total, desc="warming", unit="call") if kind is not None and total else None
        self._total, self._lines_to = total, lines_to
        #: The outcomes that were written as lines.
        self.shown: list[_warm.Done] = []

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def told(self, done: _warm.Done) -> None:
        if self._bar is not None:
            self._bar.update()
            self._bar.set_postfix_str(done.target)
        else:
            self.shown.append(done)
            print(f"[{len(self.shown)}/{self._total}] {done}", file=self._lines_to, flush=True)


def _run_explain(given: argparse.Namespace) -> int:
    found = _of_wanted() if given.target is None else _usage(lambda: _of_target(given.target, given.specs))
    texts = [text for text, _ in found]
    answer(given, [_miss_data(text, miss) for text, miss in found], "\n\n".join(texts) or _NOTHING)
    return 0


_NOTHING = "no call is noted as wanted; name a module:function and its --specs"

_Found = list[tuple[str, _explain.Miss | None]]


def _of_wanted() -> _Found:
    """The misses that mode `cached` noted."""
    store = own_store()
    found: _Found = []
    for wanted in _wanted.noted(store):
        miss = _explain.miss(wanted.function, wanted.parts, store)
        called = f"{wanted.function}({wanted.parts.get('arguments', '')})"
        text = f"{called}: a record is stored now" if miss is None else str(miss)
        command = _wanted.command(wanted)
        lines = [text, f"met {counted(wanted.count, 'time')}, last {wanted.last}"]
        found.append(("\n".join([*lines, f"to warm it: {command}"] if command else lines), miss))
    return found


def _of_target(target: str, specs: str | None) -> _Found:
    if specs is None:
        raise SpecError(f"explain {target} needs --specs: the arguments of the call")
    found: _Found = []
    for job in _warm.jobs([target], _warm.specs(specs)):
        reply = _explained(job)
        found.append((reply.text, reply.miss))
    return found


def _explained(job: _warm.Job) -> _miss.Answer:
    fun, (args, kwargs) = _warm.function(job.target), job.signature
    try:
        call = Call.keeping(fun._function, args, kwargs)
        return fun._decider.explain(call, _config.current(fun._options.mode))
    except Exception as error:  # the user's function may raise anything on arguments of the wrong kind
        first = (str(error).strip().splitlines() or [""])[0]
        problem = f"{job.target} can't be traced with these specs: {type(error).__name__}: {first}"
        hint = 'in JSON [...] is a list; write {"tuple": [...]} where the function takes a tuple'
        raise SpecError(f"{problem}; {hint}") from error


def _miss_data(text: str, miss: _explain.Miss | None) -> dict[str, Any]:
    near = None if miss is None or miss.nearest is None else miss.nearest.key
    differences = [] if miss is None else list(miss.differences)
    return {"text": text, "miss": miss is not None, "nearest": near, "differences": differences}


def _run_doctor(given: argparse.Namespace) -> int:
    found = _doctor.examine(own_store(), _config.current())
    answer(given, [finding._asdict() for finding in found], _doctor.text(found))
    return 1 if any(finding.state == _doctor.BROKEN for finding in found) else 0
