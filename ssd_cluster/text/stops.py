"""Stop strings in streamed text."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from ssd_cluster.errors import InvalidRequest


@dataclass(slots=True)
class _Node:
    """A prefix of some stop string. ``match``: the longest stop string that ends here."""

    depth: int
    next: dict[str, int] = field(default_factory=dict)
    suffix: int = 0
    match: str | None = None


class StopMatcher:
    """Finds the first stop string in text that arrives in parts of any size (Aho-Corasick).

    The match with the earliest end wins, of several with that end the longest. Held back is only the longest suffix
    of the text that may still begin a stop string. Linear in the length of the text.
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        """
        Raises:
            InvalidRequest: a stop string is empty.
        """
        if any(not stop for stop in stops):
            raise InvalidRequest("a stop string must not be empty", param="stop")
        self._nodes = [_Node(0)]
        for stop in stops:
            self._insert(stop)
        self._link()
        self._state = 0
        self._held = ""
        self._matched: str | None = None

    def push(self, text: str) -> tuple[str, str | None]:
        """Text that may be shown now, and the stop string if one is complete; after a match nothing more is shown.

        The stop string itself and everything after it is never shown.
        """
        if self._matched is not None or len(self._nodes) == 1:
            return ("" if self._matched is not None else text), self._matched
        pending = self._held + text
        for end, character in enumerate(text, start=len(self._held) + 1):
            self._state = self._step(self._state, character)
            match = self._nodes[self._state].match
            if match is not None:
                self._matched, self._held = match, ""
                return pending[: end - len(match)], match
        shown = len(pending) - self._nodes[self._state].depth
        self._held = pending[shown:]
        return pending[:shown], None

    def flush(self) -> str:
        """What was held back, once it is known that the output ends here."""
        held, self._held, self._state = self._held, "", 0
        return held

    def _insert(self, stop: str) -> None:
        state = 0
        for character in stop:
            following = self._nodes[state].next
            if character not in following:
                following[character] = len(self._nodes)
                self._nodes.append(_Node(self._nodes[state].depth + 1))
            state = following[character]
        self._nodes[state].match = stop

    def _link(self) -> None:
        """Breadth first: each node's longest proper suffix that is a node, and the matches seen through it."""
        queue = deque(self._nodes[0].next.values())
        while queue:
            node = self._nodes[queue.popleft()]
            for character, child_index in node.next.items():
                child = self._nodes[child_index]
                child.suffix = self._step(node.suffix, character)
                if child.match is None:
                    child.match = self._nodes[child.suffix].match
                queue.append(child_index)

    def _step(self, state: int, character: str) -> int:
        while state and character not in self._nodes[state].next:
            state = self._nodes[state].suffix
        return self._nodes[state].next.get(character, 0)
