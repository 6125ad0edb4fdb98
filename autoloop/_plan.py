"""What a plan is, what a form must offer, and how a plan is applied to a traced program.

Two ways of applying: inside a trace (`run_block`: every loop becomes part of one program) and on
the host (`build_host`: the outer loops run in Python, what lies between them is compiled).
"""

from __future__ import annotations

import abc
import functools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from autoloop import _host, _jaxpr
from autoloop._loops import Loop, path_text
from autoloop._records import AS_WRITTEN

Parameter = int | str | None

_CHOICE = re.compile(r"(\d+(?:/\d+)*)=([a-z]+)(?:\((\w+)\))?\Z")
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
    parameter: Parameter = int(given) if given and given.isdecimal() else given
    return Choice(tuple(map(int, path.split("/"))), form, parameter)


@dataclass(frozen=True)
class Site:
    """A loop where a form stands: its equation, and its body with the choices inside applied.

    Attributes:
        scan: what the equation means.
        node: the equation.
        body: (consts, carry, x) -> (carry, y), flat, to be called in a trace.
        body_changed: whether `body` differs from the body as written.
    """

    scan: _jaxpr.Scan
    node: _jaxpr.Node
    body: _jaxpr.Flat
    body_changed: bool

    def rescan(self, values: Sequence[Any], **params: Any) -> list[Any]:
        """The scan equation itself, with its body as chosen and some parameters changed."""
        body = self.scan.body
        if self.body_changed:
            body = _jaxpr.close(self.body, _jaxpr.in_avals(body))
        return list(_jaxpr.rebuild(self.node.eqn, [body], **params)(*values))


@dataclass(frozen=True)
class HostSite:
    """A loop that a host form runs.

    Attributes:
        site: the loop, where all choices inside it can be part of one program; else None.
        scan: what the equation means.
        compiled: the body in compiled pieces.
        eager: the body operation by operation.
        options: XLA options to compile pieces with.
    """

    site: Site | None
    scan: _jaxpr.Scan
    compiled: _host.Runnable
    eager: _host.Runnable
    options: tuple[tuple[str, str], ...] = ()


class Form(abc.ABC):
    """A way to run one loop. Subclasses are final, hold no state, and do not know each other."""

    #: The name in a plan's text: lower-case letters.
    name: ClassVar[str]
    #: What may stand in the brackets of a choice, for messages: "" for nothing, else like "NUMBER".
    takes: ClassVar[str] = ""
    #: Whether it runs in Python: only for loops on the spine, at top level, with concrete arguments.
    on_host: ClassVar[bool] = False

    #: Whether a body with side effects has them as often, and in the same order, in this form.
    keeps_effects: ClassVar[bool] = False
    #: Whether JAX can differentiate this form in reverse.
    reverse_differentiable: ClassVar[bool] = True

    @abc.abstractmethod
    def why_not(self, loop: Loop, parameter: Parameter) -> str | None:
        """Why this form may not run `loop`, as one sentence; None if it may."""

    @abc.abstractmethod
    def ladders(self, loop: Loop) -> tuple[tuple[Parameter, ...], ...]:
        """Parameters worth a trial: ladders whose rungs cost ever more; () if none is.

        A rung that loses by far ends its ladder. Every rung must be legal for `why_not`.
        """

    def copies(self, loop: Loop, parameter: Parameter) -> int:
        """How many copies of the body the compiled program holds."""
        return 1

    def dispatches(self, loop: Loop, parameter: Parameter) -> float:
        """How many calls into the device runtime one run of the loop makes, at least."""
        return 1

    def reassociates(self, loop: Loop, parameter: Parameter) -> bool:
        """Whether it sums or multiplies in another order than the loop does; not for `bitwise=True`."""
        return False

    def holds_host_loops(self, parameter: Parameter) -> bool:
        """Whether a host form may run a loop inside this one."""
        return False

    def emit(self, site: Site, parameter: Parameter, values: Sequence[Any]) -> list[Any]:
        """The loop in this form, in a trace: flat inputs of the equation to its flat outputs."""
        raise NotImplementedError(f"{self.name} runs on the host only")

    def build(self, site: HostSite, parameter: Parameter) -> _host.Runnable:
        """The loop in this form, on the host: flat inputs of the equation to its flat outputs."""
        raise NotImplementedError(f"{self.name} runs in a trace only")


Forms = Mapping[str, Form]


# ---------------------------------------------------------------- checking


def form_why_not(choice: Choice, forms: Forms) -> str | None:
    """What is wrong with a choice whatever the program: its form, or whether it takes a parameter."""
    if choice.form not in forms:
        return f"{choice}: there is no form {choice.form!r}; the forms are: {', '.join(forms)}"
    form = forms[choice.form]
    if bool(form.takes) != (choice.parameter is not None):
        usage = f"{form.name}({form.takes})" if form.takes else form.name
        return f"{choice}: write {path_text(choice.path)}={usage}"
    return None


def option_why_not(plan: Plan) -> str | None:
    """Which XLA option a plan may not carry; None if it may carry all of its own."""
    allowed = [option for options in COMPILER_OPTIONS.values() for option in options]
    for name, value in plan.options:
        if (name, value) not in allowed:
            listed = ", ".join(f"{n}={v}" for n, v in allowed)
            return f"{name}={value}: the XLA options that a plan may carry are: {listed}"
    return None


def why_not(plan: Plan, loops: Sequence[Loop], forms: Forms) -> str | None:
    """Why `plan` can't be applied to a program with these loops, as one sentence; None if it can."""
    if reason := option_why_not(plan):
        return reason
    by_path = {loop.path: loop for loop in loops}
    for choice in plan.choices:
        if reason := form_why_not(choice, forms):
            return reason
        if choice.path not in by_path:
            have = ", ".join(loop.name for loop in loops) or "none"
            return f"{choice}: there is no loop {path_text(choice.path)}; the loops are: {have}"
        form, loop = forms[choice.form], by_path[choice.path]
        if loop.effects and not form.keeps_effects:
            return f"{choice}: the body has side effects ({', '.join(loop.effects)}), which must stay as they are"
        reason = form.why_not(loop, choice.parameter) or _host_why_not(form, loop, plan, forms)
        if reason:
            return f"{choice}: {reason}"
    return None


def _host_why_not(form: Form, loop: Loop, plan: Plan, forms: Forms) -> str | None:
    if not form.on_host:
        return None
    if not loop.on_spine:
        return "a Python loop can't stand inside a cond or while"
    for depth in range(1, len(loop.path)):
        outer = plan.choice(loop.path[:depth])
        if outer is None or not forms[outer.form].holds_host_loops(outer.parameter):
            return (
                f"a Python loop needs a Python loop around it; loop {path_text(loop.path[:depth])} "
                f"runs {'as written' if outer is None else f'as {outer}'}"
            )
    return None


def on_host(plan: Plan, forms: Forms) -> bool:
    """Whether the plan needs a Python loop, and so can't be part of an outer trace."""
    return any(forms[c.form].on_host for c in plan.choices)


def size(plan: Plan, loops: Sequence[Loop], forms: Forms) -> float:
    """Equations in the programs that the plan compiles: what its compile time grows with."""
    total = 0.0
    for loop in loops:
        inner = [
            o for o in loops if o.path[: len(loop.path)] == loop.path and len(o.path) == len(loop.path) + 1
        ]
        own = loop.equations - sum(o.equations for o in inner)
        copies = 1.0
        for depth in range(1, len(loop.path) + 1):
            choice = plan.choice(loop.path[:depth])
            around = next(o for o in loops if o.path == loop.path[:depth])
            copies *= forms[choice.form].copies(around, choice.parameter) if choice else max(around.unroll, 1)
        total += own * copies
    return total


def dispatches(plan: Plan, loops: Sequence[Loop], forms: Forms) -> float:
    """Calls into the device runtime that one run of the plan makes, at least."""
    total = 1.0
    for loop in loops:
        choice = plan.choice(loop.path)
        if choice is None or not forms[choice.form].on_host:
            continue
        around = [o.length for o in loops if o.path == loop.path[: len(o.path)] and o.path != loop.path]
        total += math.prod(around) * forms[choice.form].dispatches(loop, choice.parameter)
    return total


# ---------------------------------------------------------------- applying in a trace


@dataclass(frozen=True)
class Applied:
    """A plan with the forms it names: what runs blocks and nodes."""

    plan: Plan
    forms: Forms

    def _chosen(self, node: _jaxpr.Node, host_only: bool = False) -> bool:
        return any(
            c.path in node.paths and (self.forms[c.form].on_host or not host_only) for c in self.plan.choices
        )

    def run_block(self, block: _jaxpr.Block, *values: Any) -> list[Any]:
        """Evaluates a block in a trace, chosen loops in their forms."""
        nodes = [n for n in block.nodes if self._chosen(n)]
        if not nodes:
            return list(_jaxpr.as_fun(block.jaxpr)(*values))
        env = _jaxpr.Env(block.jaxpr, values)
        for part in _jaxpr.cut(block, nodes):
            inputs = env.read(part.inputs)
            if isinstance(part.what, _jaxpr.Node):
                outputs = self.run_node(part.what, *inputs)
            else:
                outputs = list(_jaxpr.as_fun(part.what.jaxpr)(*inputs))
            env.write(part, outputs)
        return env.outputs()

    def run_node(self, node: _jaxpr.Node, *values: Any) -> list[Any]:
        """Evaluates one equation in a trace: in its form, or as it is with chosen loops inside."""
        choice = None if node.path is None else self.plan.choice(node.path)
        if choice is None:
            bodies = [self._rewritten(block) for block in node.blocks]
            return list(_jaxpr.rebuild(node.eqn, bodies)(*values))
        outs = self.forms[choice.form].emit(self._site(node), choice.parameter, values)
        return _jaxpr.conform_all(outs, node.scan.out_avals)

    def _rewritten(self, block: _jaxpr.Block) -> _jaxpr.Jaxpr:
        if not any(self._chosen(n) for n in block.nodes):
            return block.jaxpr
        return _jaxpr.close(functools.partial(self.run_block, block), _jaxpr.in_avals(block.jaxpr))

    def _site(self, node: _jaxpr.Node) -> Site:
        block, scan = node.blocks[0], node.scan
        carry_and_x = _jaxpr.in_avals(scan.body)
        carry_and_y = _jaxpr.out_avals(scan.body)

        def body(*values: Any) -> list[Any]:
            outs = self.run_block(block, *_jaxpr.conform_all(values, carry_and_x))
            return _jaxpr.conform_all(outs, carry_and_y)

        return Site(scan, node, body, any(self._chosen(n) for n in block.nodes))

    # ------------------------------------------------------------ applying on the host

    def build_block(self, block: _jaxpr.Block, eager: bool = False) -> _host.Runnable:
        """A block as a host program; `eager` leaves what no form chose without a jit around it."""
        nodes = [n for n in block.nodes if self._chosen(n, host_only=not eager)]
        parts = _jaxpr.cut(block, nodes)
        return _host.Chain(block.jaxpr, [(part, self._build_part(part.what, eager)) for part in parts])

    def _build_part(self, what: _jaxpr.Block | _jaxpr.Node, eager: bool) -> _host.Runnable:
        if isinstance(what, _jaxpr.Block):
            if eager:
                return _host.Eager(what.jaxpr)
            return _host.Piece(functools.partial(self.run_block, what), "piece", options=self.plan.options)
        if not self._chosen(what, host_only=True):
            return _host.Piece(functools.partial(self.run_node, what), "loop", options=self.plan.options)
        choice = None if what.path is None else self.plan.choice(what.path)
        if choice is None:  # a call on the way to a host loop: its body takes its place
            return self.build_block(what.blocks[0], eager)
        body = what.blocks[0]
        plain = not any(self._chosen(n, host_only=True) for n in body.nodes)
        site = HostSite(
            site=self._site(what) if plain else None,
            scan=what.scan,
            compiled=self.build_block(body),
            eager=self.build_block(body, eager=True),
            options=self.plan.options,
        )
        return self.forms[choice.form].build(site, choice.parameter)
