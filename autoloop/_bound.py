"""A decorated method of an instance: called and asked without naming the instance again."""

from __future__ import annotations

import functools
import inspect
import types
from typing import Any, Generic, ParamSpec, TypeVar, cast

P = ParamSpec("P")
R = TypeVar("R")

#: What is asked with the arguments of a call.
_ASKED = frozenset({"plan", "report", "plans", "warmup", "lower", "trace", "eval_shape", "explain_miss", "loops"})


class Bound(Generic[P, R]):
    """What `instance.method` gives for a decorated method: `instance.method.plan(x)` needs no instance."""

    __slots__ = ("__func__", "__self__", "__weakref__")  # jax.jit refers to it weakly

    def __init__(self, function: Any, instance: Any) -> None:
        self.__func__, self.__self__ = function, instance

    def __getattribute__(self, name: str) -> Any:
        # The class has these too, of its own; those of the method are meant.
        return getattr(self.__func__, name) if name in ("__doc__", "__module__") else super().__getattribute__(name)

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return cast(R, self.__func__(self.__self__, *args, **kwargs))

    def __getattr__(self, name: str) -> Any:
        if name in self.__slots__:  # not made yet: it is being copied
            raise AttributeError(name)
        found = getattr(self.__func__, name)
        return functools.partial(found, self.__self__) if name in _ASKED else found

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self.__self__, self.__func__.__name__)

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(types.MethodType(self.__func__, self.__self__))

    def using(self, plan: Any) -> Any:
        """The method pinned to one plan, of this instance."""
        return types.MethodType(self.__func__.using(plan), self.__self__)

    def forget(self, /, *args: Any, **kwargs: Any) -> None:
        """Drops what is remembered for these arguments; without any: for the method of all instances."""
        self.__func__.forget(*((self.__self__, *args) if args or kwargs else ()), **kwargs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Bound) and other.__self__ is self.__self__ and other.__func__ is self.__func__

    def __hash__(self) -> int:
        return hash((id(self.__self__), id(self.__func__)))

    def __repr__(self) -> str:
        return f"<bound {self.__func__!r} of {self.__self__!r}>"
