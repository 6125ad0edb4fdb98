"""`until`: a masked scan as a true while, which stops once no iteration changes anything any more.

Many libraries write a bounded while as a scan of its maximal length whose body is
`cond(done, identity, step)`, so that it can be differentiated; under `vmap` the cond becomes selects,
and all rounds are computed for all lanes although they are done after a few. Pays for solvers with a
tolerance, line searches and projections. A while can't be differentiated in reverse.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final

import jax.numpy as jnp
import numpy as np
from jax import lax

from autoloop import _jaxpr, _parts
from autoloop._form import Form, Site
from autoloop._forms.until._slices import Slice
from autoloop._forms.until._stop import Stop, find_stop
from autoloop._loops import Loop
from autoloop._plan import Parameter

_MAX_LENGTH = np.iinfo(np.int32).max  # iterations are counted in 32 bits


@final
class Until(Form):
    """The loop that ends when it is done."""

    name = "until"
    comes_first: ClassVar[bool] = True
    reverse_differentiable: ClassVar[bool] = False
    stops_early: ClassVar[bool] = True

    def why_not(self, loop: Loop, parameter: Parameter) -> str | None:
        if loop.effects:
            return f"its body has side effects ({', '.join(loop.effects)}), of which none may be left out"
        if not loop.num_carry:
            return "without a carry no iteration can tell that it is the last"
        if loop.length > _MAX_LENGTH:
            return f"it has more iterations than {_MAX_LENGTH}; got {loop.length}"
        stop = find_stop(loop.scan)
        return stop if isinstance(stop, str) else None

    def ladders(self, loop: Loop) -> tuple[tuple[Parameter, ...], ...]:
        return ((None,),) if loop.length > 1 and self.why_not(loop, None) is None else ()

    def emit(self, site: Site, parameter: Parameter, values: Sequence[Any]) -> list[Any]:
        scan = site.scan
        consts, init, xs = scan.split_inputs(values)
        _, y_avals = scan.split_outputs(_jaxpr.out_avals(scan.body))
        ys = [_parts.empty(aval, scan.length) for aval in y_avals]
        if not scan.length:
            return [*init, *ys]
        stop = find_stop(scan)
        assert isinstance(stop, Stop)  # `why_not` said so
        rounds = _Rounds(site, stop, Slice.of(scan.body, stop.place), consts, xs)
        return rounds.run(init, ys)


@dataclass(frozen=True)
class _State:
    """What the while carries: the rounds run, whether the last one found all done, and the loop's own."""

    count: Any
    done: Any
    carry: list[Any]
    ys: list[Any]

    def flat(self) -> tuple[Any, ...]:
        return self.count, self.done, self.carry, self.ys


@dataclass(frozen=True)
class _Rounds:
    """The loop as a while, for given consts and xs."""

    site: Site
    stop: Stop
    condition: Slice
    consts: list[Any]
    xs: list[Any]

    def run(self, init: list[Any], ys: list[Any]) -> list[Any]:
        """(init, empty ys) -> (carry, ys), flat."""
        _, avals, _ = self.site.scan.split_inputs(_jaxpr.in_avals(self.site.scan.body))
        start = _State(jnp.int32(0), jnp.asarray(False), _jaxpr.conform_all(init, avals), ys)
        end = _State(*lax.while_loop(self._go_on, self._round, start.flat()))
        carry = [self._counted(k, init[k], value) for k, value in enumerate(end.carry)]
        return [*carry, *(self._filled(stack, end.count) for stack in end.ys)]

    @property
    def _looks_ahead(self) -> bool:
        # A condition that rounds may come out otherwise where XLA fuses it otherwise: it is then read
        # beside the body that it stands in (where equal operations become one), at the price of one
        # more round. Ys need that round too: it computes what all later rounds would give.
        return self.condition.exact and not self.site.scan.out_avals[self.site.scan.num_carry :]

    def _all_done(self, carry: list[Any]) -> Any:
        # What the condition does not read may be anything.
        _, _, x = self.site.scan.split_inputs(_jaxpr.in_avals(self.site.scan.body))
        spare = [_parts.empty(aval) for aval in x]
        return jnp.all(self.condition([*self.consts, *carry, *spare]) == self.stop.value)

    def _go_on(self, flat: tuple[Any, ...]) -> Any:
        state = _State(*flat)
        done = self._all_done(state.carry) if self._looks_ahead else state.done
        return (state.count < self.site.scan.length) & ~done

    def _round(self, flat: tuple[Any, ...]) -> tuple[Any, ...]:
        state, scan = _State(*flat), self.site.scan
        index = scan.length - 1 - state.count if scan.reverse else state.count
        x = [lax.dynamic_index_in_dim(v, index, 0, keepdims=False) for v in self.xs]
        done = state.done if self._looks_ahead else self._all_done(state.carry)
        carry, y = scan.split_outputs(self.site.body(*self.consts, *state.carry, *x))
        ys = [lax.dynamic_update_index_in_dim(a, b, index, 0) for a, b in zip(state.ys, y, strict=True)]
        return _State(state.count + 1, done, carry, ys).flat()

    def _counted(self, k: int, init: Any, value: Any) -> Any:
        """Carry k after all iterations, as it came out of the last one that ran."""
        if k not in self.stop.counters:
            return value
        info = jnp.iinfo(value.dtype)
        total = self.site.scan.length * self.stop.counters[k]
        wrapped = (total - int(info.min)) % 2**info.bits + int(info.min)
        return lax.add(init, jnp.full(init.shape, wrapped, init.dtype))

    def _filled(self, stack: Any, count: Any) -> Any:
        """A stacked output whose rows that no round wrote repeat the one of the last round."""
        length, reverse = self.site.scan.length, self.site.scan.reverse
        last = lax.dynamic_index_in_dim(stack, length - count if reverse else count - 1, 0)
        rows = lax.broadcasted_iota(jnp.int32, (length, *stack.shape[1:]), 0)
        unwritten = rows < length - count if reverse else rows >= count
        return jnp.where(unwritten, last, stack)
