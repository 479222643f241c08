"""Things that are brought up one after the other, and taken down in the opposite order, half-way up too."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Self


class Staged:
    """A context manager that subclasses fill by saying how they come up."""

    def up(self, undo: ExitStack) -> None:
        """Bring everything up; what takes a part down is put into ``undo`` as soon as that part needs it."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        with ExitStack() as undo:
            self.up(undo)
            self._undo = undo.pop_all()
        return self

    def __exit__(self, *failure: object) -> None:
        self._undo.close()
