"""This file holds the reader of pickles that runs nothing: protocols 0 to 5, bounded in bytes, opcodes and memory.

CPython's own Unpickler is no choice even with a stubbed `find_class`: a nested tuple as dict key ends the process, and a
12-byte pickle asks for gigabytes of memo.
"""

from __future__ import annotations

from collections.abc import Callable

from .pickle_machine import (
    CALLED,
    COST_CONTAINER,
    COST_MADE,
    COST_MEMO,
    COST_SMALL,
    COST_STR,
    MAX_MEMO_INDEX,
    Budget,
    PersistentId,
    PickleMachine,
)
from .pickle_opcodes import HANDLERS

DEFAULT_BUDGET = Budget()


class PickleReader(PickleMachine):
    """One run over one pickle that begins at data[0]. See `PickleMachine` for what is known after the run."""

    def __init__(
        self,
        file: str,
        data: bytes,
        file_offset: int | None = None,
        persistent: Callable[[object], object] = PersistentId,
        budget: Budget = DEFAULT_BUDGET,
    ) -> None:
        """`file_offset` is where data[0] lies in `file`, None if it was compressed; it only places errors."""
        super().__init__(file, data, file_offset, persistent, budget)

    def load(self) -> object:
        """The root object; `pos` is then one past the STOP opcode. FormatError for everything that is wrong."""
        if len(self.data) > self.budget.nbytes:
            raise self.over_budget(f"{len(self.data):,} bytes, more than the {self.budget.nbytes:,} that are read")
        try:
            return self._run()
        except IndexError:
            if self.pos >= len(self.data) - 1:  # a one-byte argument may be missing
                raise self.truncated("it") from None
            raise self.error("takes more from the stack than it put there") from None
        except KeyError as error:
            raise self.error(f"fetches memo {error.args[0]}, which was never stored") from None
        except (UnicodeDecodeError, ValueError) as error:
            raise self.error(f"a text or number cannot be read ({str(error)[:80]})") from None

    def _run(self) -> object:  # noqa: PLR0915  the opcodes that torch files consist of stay in one loop
        data, stack, marks, memo, limit = self.data, self.stack, self.marks, self.memo, self.budget.memory
        pos = self.pos
        spent = 0
        for _ in range(self.budget.opcodes):
            self.pos = pos  # errors name the opcode that they come from
            op = data[pos]
            pos += 1
            if op == 0x71:  # BINPUT
                memo[data[pos]] = stack[-1]
                pos += 1
            elif op == 0x72:  # LONG_BINPUT
                index = int.from_bytes(data[pos : pos + 4], "little")
                if index > MAX_MEMO_INDEX:
                    raise self.beyond_memo(index)
                memo[index] = stack[-1]
                spent += COST_MEMO
                pos += 4
            elif op == 0x4B:  # BININT1
                stack.append(data[pos])
                spent += 8
                pos += 1
            elif op == 0x68:  # BINGET
                stack.append(memo[data[pos]])
                spent += 8
                pos += 1
            elif op == 0x28:  # MARK
                marks.append(len(stack))
                spent += COST_SMALL
            elif op == 0x58:  # BINUNICODE
                end = pos + 4
                end += int.from_bytes(data[pos:end], "little")
                if end > len(data):
                    raise self.truncated("a text")
                stack.append(data[pos + 4 : end].decode("utf-8", "surrogatepass"))
                spent += COST_STR + 4 * (end - pos)
                pos = end
            elif 0x85 <= op <= 0x87:  # TUPLE1, TUPLE2, TUPLE3
                cut = len(stack) - (op - 0x84)
                if cut < 0:
                    raise IndexError
                stack[cut:] = [tuple(stack[cut:])]
                spent += COST_CONTAINER
            elif op == 0x74:  # TUPLE
                cut = marks.pop()
                items = tuple(stack[cut:])
                del stack[cut:]
                stack.append(items)
                spent += COST_CONTAINER + 8 * len(items)
            elif op == 0x29:  # EMPTY_TUPLE
                stack.append(())
                spent += 8
            elif op == 0x52:  # REDUCE
                args = stack.pop()
                self.make(stack.pop(), args, None, CALLED)
                spent += COST_MADE
            elif op == 0x2E:  # STOP
                self.pos = pos
                return stack.pop()
            else:
                handler = HANDLERS[op]
                if handler is None:
                    raise self.error(f"{op:#04x} is no opcode")
                self.pos = pos
                handler(self)
                pos = self.pos
                spent += self.spent
                self.spent = 0
            if spent > limit:
                raise self.over_budget(f"its objects would take more than {limit >> 20} MiB")
        raise self.over_budget(f"more than {self.budget.opcodes:,} opcodes")
