"""What a plan is: a form for some of the loops, and XLA options; its text, and back."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autoloop._loops import path_text
from autoloop._records import AS_WRITTEN

Parameter = int | str | None

_CHOICE = re.compile(r"(\d+(?:/\d+)*)=([a-z]+)(?:\((\w+|-\d+)\))?\Z")
_OPTION = re.compile(r"(xla_[a-z_]+)=([\w,]+)\Z")

#: XLA options that a plan may carry, by platform, with the values worth a trial. A closed list: an
#: option can also write files or change arithmetic, and plans come from files that others wrote.
#: CPU: LOOPS.md, finding 2. GPU: loops in command buffers (graphs), XLA's own loop unrolling.
COMPILER_OPTIONS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "cpu": (
        ("xla_backend_optimization_level", "1"),
        ("xla_cpu_opt_preset", "CPU_OPT_PRESET_FAST_COMPILE"),
    ),
    "gpu": (
        (
            "xla_gpu_enable_command_buffer",
            "FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,CUDNN,DYNAMIC_SLICE_FUSION,WHILE",
        ),
        ("xla_gpu_enable_while_loop_unrolling", "WHILE_LOOP_UNROLLING_DOUBLE_BUFFER"),
        ("xla_gpu_graph_min_graph_size", "1"),
    ),
}


@dataclass(frozen=True)
class Choice:
    """A loop's path, a form's name, and the form's parameter if it takes one: `0/0=unroll(8)`."""

    path: tuple[int, ...]
    form: str
    parameter: Parameter = None

    def __str__(self) -> str:
        parameter = "" if self.parameter is None else f"({self.parameter})"
        return f"{path_text(self.path)}={self.form}{parameter}"


@dataclass(frozen=True)
class Plan:
    """A choice for some of the loops, the others running as written, and XLA options if any.

    `str(plan)` is its text, `Plan.parse` reads it back; the empty plan prints as `as-written`.

    Example:
        >>> from autoloop import Plan
        >>> plan = Plan.parse("0/0=unroll(8) 0=python(1)")
        >>> print(plan, "and", Plan())
        0=python(1) 0/0=unroll(8) and as-written
        >>> plan.choices[1].form, plan.choices[1].parameter
        ('unroll', 8)
    """

    choices: tuple[Choice, ...] = ()
    options: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        ordered = tuple(sorted(self.choices, key=lambda c: c.path))
        options = tuple(sorted(self.options))
        if len({c.path for c in ordered}) != len(ordered) or len(dict(options)) != len(options):
            raise ValueError(f"a plan may name each loop and each option once; got {self._words()!r}")
        object.__setattr__(self, "choices", ordered)
        object.__setattr__(self, "options", options)

    def __str__(self) -> str:
        return self._words() or AS_WRITTEN

    def _words(self) -> str:
        return " ".join([*map(str, self.choices), *(f"{name}={value}" for name, value in self.options)])

    def __repr__(self) -> str:
        return f"Plan.parse({str(self)!r})"

    @classmethod
    def parse(cls, text: str | Plan) -> Plan:
        """The plan that `text` describes; a `Plan` is returned as it is.

        Raises:
            TypeError: neither a text nor a plan.
            ValueError: not the text of a plan.
        """
        if isinstance(text, Plan):
            return text
        if not isinstance(text, str):
            raise TypeError(f"a plan is a Plan or its text, like '0/0=unroll(8)'; got {text!r}")
        if text.strip() in ("", AS_WRITTEN):
            return cls()
        options = [m.groups() for word in text.split() if (m := _OPTION.match(word))]
        words = [word for word in text.split() if not _OPTION.match(word)]
        return cls(tuple(_parse_choice(word, text) for word in words), tuple((n, v) for n, v in options))

    @property
    def as_written(self) -> bool:
        """Whether this is the empty plan."""
        return not self.choices and not self.options

    def choice(self, path: tuple[int, ...]) -> Choice | None:
        """The choice for the loop at `path`, or None."""
        return next((c for c in self.choices if c.path == path), None)

    def with_choice(self, choice: Choice) -> Plan:
        """This plan with `choice` instead of what it had for that loop."""
        return Plan((*(c for c in self.choices if c.path != choice.path), choice), self.options)

    def with_options(self, options: Sequence[tuple[str, str]]) -> Plan:
        """This plan with these XLA options instead of what it had."""
        return Plan(self.choices, tuple(options))

    def without(self, path: tuple[int, ...]) -> Plan:
        """This plan with the loop at `path` as written."""
        return Plan(tuple(c for c in self.choices if c.path != path), self.options)


def _parse_choice(word: str, text: str) -> Choice:
    match = _CHOICE.match(word)
    if match is None:
        raise ValueError(
            f"plan {text!r}: {word!r} is not of the form PATH=FORM or PATH=FORM(PARAMETER), "
            f"like '0=inline' or '0/0=unroll(8)'; the empty plan is {AS_WRITTEN!r}"
        )
    path, form, given = match.groups()
    parameter: Parameter = int(given) if given and given.removeprefix("-").isdecimal() else given
    return Choice(tuple(map(int, path.split("/"))), form, parameter)
