"""The frozen nouns that pass between the stages, and the errors and warnings users see.

No jax here: a record is plain data, so that it can be stored, exported, diffed and reported
anywhere.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from autoloop import _json

#: Version of the stored form. A record of another schema is a miss, never an error.
SCHEMA = 1
#: No search tries so many plans, and nothing that is counted comes to so many.
_MOST_TRIALS, _LARGEST = 10_000, 2**63

#: The text of the empty plan: the function as the user wrote it.
AS_WRITTEN = "as-written"


class AutoloopWarning(UserWarning):
    """Something in tuning or storing went wrong; the call ran as written."""


class MissError(RuntimeError):
    """Mode `strict`: no record is remembered for a call, and tuning is forbidden."""


class PlanError(ValueError):
    """A plan does not fit a program: no such loop or form, or a form that is not legal there."""


class RecordError(ValueError):
    """A stored or imported record does not have the form that this version writes."""


class UnsupportedJaxError(RuntimeError):
    """The installed jax writes jaxprs that `autoloop/_jaxpr.py` does not know."""


class Status(enum.StrEnum):
    """What became of one trial."""

    OK = "ok"
    WRONG = "wrong"  # outputs disagree with the function as written
    FAILED = "failed"  # did not compile or did not run
    SKIPPED = "skipped"  # never tried: over the budget, over the memory, or hopeless


@dataclass(frozen=True)
class Budget:
    """What a search may spend: wall-clock seconds, and bytes of device memory (None: what is free)."""

    seconds: float = 30.0
    max_memory_bytes: int | None = None


@dataclass(frozen=True)
class Trial:
    """What one plan showed on the live device.

    Attributes:
        plan: the plan's text; `as-written` for the function as the user wrote it.
        status: see `Status`; only an `ok` trial has run times.
        reason: why it is not `ok`, why it lost, or what to know about it.
        trace_s: seconds to trace and lower, by the wall clock.
        compile_s: seconds to compile. For parts that only compile while they run (`eager`), the
            first call less a later one.
        run_s: median seconds of a whole call, blocked until its outputs are ready.
        run_low_s: lower end of the median's interval.
        run_high_s: upper end of the median's interval.
        ratio: median over rounds of (this plan's time / time as written in the same round).
        ratio_low: lower end of its interval; the whole interval lies below 1 for a faster plan.
        ratio_high: upper end of its interval.
        rounds: how many paired rounds the figures rest on.
        peak_bytes: device memory of its largest compiled program: arguments, outputs, temporaries.
        max_error: largest error over the outputs, relative to the largest magnitude of each.
        spent_s: seconds that the whole trial took; what a budget counts.
        breakeven_calls: calls after which its extra compile time has paid for itself, None if never.
    """

    plan: str
    status: Status = Status.OK
    reason: str = ""
    trace_s: float | None = None
    compile_s: float | None = None
    run_s: float | None = None
    run_low_s: float | None = None
    run_high_s: float | None = None
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    rounds: int = 0
    peak_bytes: int | None = None
    max_error: float | None = None
    spent_s: float = 0.0
    breakeven_calls: float | None = None

    @property
    def ok(self) -> bool:
        """Whether this plan ran and agreed with the function as written."""
        return self.status is Status.OK

    @property
    def build_s(self) -> float:
        """Seconds before a first run: tracing and compiling."""
        return (self.trace_s or 0.0) + (self.compile_s or 0.0)

    def replace(self, **changes: Any) -> Trial:
        """A copy with some fields changed."""
        return dataclasses.replace(self, **changes)


@dataclass(frozen=True)
class Record:
    """All trials of one signature and what was chosen: what is stored, reported and exported.

    Attributes:
        function: `module.qualname` of the decorated function.
        key: the named parts of the signature, each a short text.
        winner: the text of the plan in force.
        trials: one per plan, as written first.
        verdict: one sentence: why the winner won.
        complete: False when the budget or an interrupt ended the search early.
        interrupted: whether it was an interrupt, so that seconds of its budget are left.
        spent_s: seconds of tuning.
        budget_s: seconds it was allowed.
        expected_calls: over how many calls compile time was spread, None for run time only.
        created: when, as an ISO 8601 text in UTC.
        expires: when a record of a tuning that failed is to be forgotten, as `created`; "" for never.
        notes: what else to know: a busy device, made-up inputs.
        environment: versions, hardware and the loops' sizes, for the reader and the report.
        schema: see `SCHEMA`.
    """

    function: str
    key: Mapping[str, str]
    winner: str
    trials: tuple[Trial, ...]
    verdict: str = ""
    complete: bool = True
    interrupted: bool = False
    spent_s: float = 0.0
    budget_s: float = 0.0
    expected_calls: int | None = None
    created: str = ""
    expires: str = ""
    notes: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    schema: int = SCHEMA

    if TYPE_CHECKING:  # given to the class by `_dispatch`, from `_html` and `_plot`

        def _repr_html_(self) -> str:
            """The report, for notebooks."""

        def plot(self, path: str | None = None) -> Any:
            """Draws build time against run time, and run times with intervals."""

    @property
    def gain(self) -> float | None:
        """How many times as fast as written the winner runs, None where that is not known."""
        winner = self.trial(self.winner)
        return 1 / winner.ratio if winner is not None and winner.ratio else None

    def trial(self, plan: str) -> Trial | None:
        """The trial of the plan with this text, or None."""
        return next((t for t in self.trials if t.plan == plan), None)

    def replace(self, **changes: Any) -> Record:
        """A copy with some fields changed."""
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """The record as plain JSON types."""
        data = dataclasses.asdict(self)
        data["key"], data["environment"] = dict(self.key), dict(self.environment)
        return data

    def to_json(self) -> str:
        """The record as one line of JSON with sorted keys; floats keep every digit."""
        return json.dumps(self.to_dict(), sort_keys=True, allow_nan=False)

    @classmethod
    def from_dict(cls, data: Any) -> Record:
        """Reads what `to_dict` wrote.

        Raises:
            RecordError: naming the field that is missing, unknown or of the wrong type.
        """
        fields = _checked(cls, data, "record")
        if fields["schema"] != SCHEMA:
            raise RecordError(f"record schema is {fields['schema']}, this version reads {SCHEMA}")
        for name in ("key", "environment"):
            pairs = fields[name].items()
            if not all(isinstance(k, str) and isinstance(v, str) for k, v in pairs):
                raise RecordError(f"record field {name!r} must map texts to texts")
        if not all(isinstance(note, str) for note in fields["notes"]):
            raise RecordError("record field 'notes' must hold texts")
        if len(fields["trials"]) > _MOST_TRIALS:
            raise RecordError(f"record has {len(fields['trials'])} trials; over {_MOST_TRIALS} are refused")
        fields["notes"] = tuple(fields["notes"])
        fields["trials"] = tuple(_trial_from(entry) for entry in fields["trials"])
        record = cls(**fields)
        if record.trial(record.winner) is None:
            raise RecordError(f"record names the winner {record.winner!r}, which has no trial")
        return record

    @classmethod
    def from_json(cls, text: str) -> Record:
        """Reads what `to_json` wrote; raises `RecordError` for anything else."""
        try:
            data = _json.loads(text)
        except ValueError as error:
            raise RecordError(f"record is not JSON: {error}") from None
        return cls.from_dict(data)


_KINDS: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "bool": (bool,),
    "float": (int, float),
    "Status": (str,),
    "float | None": (int, float, type(None)),
    "int | None": (int, type(None)),
    "Mapping[str, str]": (dict,),
    "tuple[Trial, ...]": (list, tuple),
    "tuple[str, ...]": (list, tuple),
}


def _checked(cls: type[Any], data: Any, noun: str) -> dict[str, Any]:
    """`data` as keyword arguments of the frozen class `cls`, every field of the right type."""
    if not isinstance(data, dict):
        raise RecordError(f"{noun} must be a JSON object, is {type(data).__name__}")
    fields = {f.name: f for f in dataclasses.fields(cls)}
    if odd := sorted(set(map(str, data)) ^ set(fields)):
        raise RecordError(f"{noun} has missing or unknown fields: {', '.join(odd)}")
    for name, value in data.items():
        kinds = _KINDS[str(fields[name].type)]
        wrong_bool = isinstance(value, bool) and bool not in kinds
        if not isinstance(value, kinds) or wrong_bool:
            raise RecordError(f"{noun} field {name!r} must be {fields[name].type}, is {value!r:.60}")
        if isinstance(value, int) and abs(value) > _LARGEST:
            raise RecordError(f"{noun} field {name!r} must be a number up to {_LARGEST}, has {value.bit_length()} bits")
        if isinstance(value, float) and not math.isfinite(value):
            raise RecordError(f"{noun} field {name!r} must be finite, is {value!r}")
    return dict(data)


def _trial_from(data: Any) -> Trial:
    fields = _checked(Trial, data, "trial")
    if fields["status"] not in list(Status):
        raise RecordError(f"trial status must be one of {[*map(str, Status)]}, is {fields['status']!r:.60}")
    return Trial(**{**fields, "status": Status(fields["status"])})
