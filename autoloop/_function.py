"""A user's function as they wrote it, with the options that `jax.jit` takes: called, traced, and emitted as planned."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax

from autoloop import _apply, _config, _host, _jaxpr, _kept, _legal, _mesh, _outline, _signals
from autoloop._loops import find_loops
from autoloop._plan import Plan
from autoloop._plans import ALL_FORMS
from autoloop._records import PlanError
from autoloop._signature import Statics

_log = logging.getLogger("autoloop")

_DONATIONS = ("donate_argnums", "donate_argnames")

Args = tuple[Any, ...]
Kwargs = Mapping[str, Any]


@dataclass(frozen=True)
class Function:
    """The function as the user wrote it, with the options that `jax.jit` takes."""

    fun: Callable[..., Any]
    jit_options: Mapping[str, Any] = field(default_factory=dict)

    @functools.cached_property
    def statics(self) -> Statics:
        """Which arguments are static."""
        options = self.jit_options
        return Statics(self.fun, options.get("static_argnums"), options.get("static_argnames"))

    @functools.cached_property
    def name(self) -> str:
        """`module.qualname`, as records name it."""
        module = getattr(self.fun, "__module__", None) or "?"
        return f"{module}.{getattr(self.fun, '__qualname__', type(self.fun).__name__)}"

    @functools.cached_property
    def plain(self) -> Any:
        """The function under `jax.jit`, as written; decorated functions inside it are as written too."""
        return self.jit(self.as_written)

    @functools.cached_property
    def donates(self) -> bool:
        """Whether the user's options name arguments to donate."""
        return any(self.jit_options.get(name) not in (None, (), []) for name in _DONATIONS)

    def jit(self, fun: Callable[..., Any], options: Sequence[tuple[str, str]] = (), donate: bool = True) -> Any:
        """`fun` under `jax.jit` with the user's options, the user's function's name, and XLA options."""
        given = {name: value for name, value in self.jit_options.items() if donate or name not in _DONATIONS}

        @functools.wraps(self.fun)
        def named(*args: Any, **kwargs: Any) -> Any:
            return fun(*args, **kwargs)

        return jax.jit(named, **given, compiler_options=_host.compiler_options(options))

    def as_written(self, /, *args: Any, **kwargs: Any) -> Any:
        """Calls the function so that every loop in it, also of decorated functions, is as written."""
        with _config.override(mode="off"):
            return _kept.call(self.fun, self.statics, args, kwargs)

    def flatten(self, args: Args, kwargs: Kwargs) -> tuple[list[Any], Any, tuple[Any, ...]]:
        """(dynamic leaves, their tree, static values)."""
        static, dynamic = self.statics.split(args, kwargs)
        leaves, tree = jax.tree.flatten(dynamic)
        return leaves, tree, static

    def unflatten(self, leaves: Sequence[Any], tree: Any, static: tuple[Any, ...]) -> tuple[Args, Kwargs]:
        """The arguments that `flatten` took apart."""
        return self.statics.join(static, jax.tree.unflatten(tree, leaves))

    def emit(self, plan: Plan, args: Args, kwargs: Kwargs, strict: bool = False) -> Any:
        """The function's result in a trace, its loops as planned.

        A plan that does not fit (a closure changed which loops there are) runs as written, or
        raises `PlanError` where `strict`.
        """
        if not plan.choices:
            return self.as_written(*args, **kwargs)
        leaves, tree, static = self.flatten(args, kwargs)
        out_trees: list[Any] = []

        def flat(*values: Any) -> list[Any]:
            inner_args, inner_kwargs = self.unflatten(values, tree, static)
            outs, out_tree = jax.tree.flatten(self.as_written(*inner_args, **inner_kwargs))
            out_trees.append(out_tree)
            return outs

        jaxpr = _jaxpr.close(flat, [jax.typeof(leaf) for leaf in leaves])
        block = _outline.outline(jaxpr)
        if reason := _legal.why_not(plan, find_loops(block), ALL_FORMS):
            if strict:
                raise PlanError(reason)
            return self.as_written(*args, **kwargs)
        try:
            outs = _apply.Applied(plan, ALL_FORMS).run_block(block, *leaves)
        except Exception as error:
            # Inside shard_map a carry must vary over the same mesh axes from the first iteration on. A plan
            # found outside may begin with a constant, which varies over none.
            if strict or _signals.from_handler(error) or not any(_mesh.manual(jax.typeof(leaf)) for leaf in leaves):
                raise
            _log.info("%s: %s does not run inside shard_map (%s); runs as written", self.name, plan, error)
            return self.as_written(*args, **kwargs)
        outs = _jaxpr.conform_all(outs, _jaxpr.out_avals(jaxpr))
        return jax.tree.unflatten(out_trees[0], outs)
