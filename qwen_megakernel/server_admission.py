"""Who may speak: so many streams on the engine's slots, so many waiting, the rest refused at once.

The engine itself queues without a limit, oldest first; this is the door in front of it.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from qwen_megakernel.errors import Draining, EngineBusy

MAX_FINISHED = 1000  # requests whose end can still be asked for


@dataclass(eq=False, slots=True)
class Ticket:
    """One place in front of the engine, given back once."""

    admission: "Admission"

    def release(self) -> None:
        """Let the next one in. Harmless when called again."""
        self.admission.running.discard(self)


@dataclass(slots=True)
class Admission:
    """Counts requests from their admission until the engine has spoken its last frame of them.

    Used on the event loop alone; nothing here waits.
    """

    num_slots: int
    max_queue: int
    draining: bool = False
    running: set[Ticket] = field(default_factory=set)
    open_responses: int = 0  # being sent, whether or not the engine still speaks

    @property
    def num_waiting(self) -> int:
        """Requests without a slot."""
        return max(0, len(self.running) - self.num_slots)

    @property
    def idle(self) -> bool:
        """Nothing is spoken and nothing is on its way to a client."""
        return not self.running and not self.open_responses

    def admit(self) -> Ticket:
        """Let a request in.

        Raises:
            EngineBusy: as many wait as may.
            Draining: the server is about to stop.
        """
        if self.draining:
            raise Draining("The server is shutting down and takes no new requests.")
        if len(self.running) >= self.num_slots + self.max_queue:
            raise EngineBusy(
                f"{self.num_waiting} requests waiting (limit {self.max_queue}).",
                cure="Try again after the time in Retry-After.",
            )
        ticket = Ticket(self)
        self.running.add(ticket)
        return ticket


class FinishedRequests:
    """How the last requests ended, by id: what a streamed answer's headers could not know yet."""

    def __init__(self, capacity: int = MAX_FINISHED):
        self._capacity = capacity
        self._facts: OrderedDict[str, dict[str, Any]] = OrderedDict()

    def add(self, request_id: str, facts: dict[str, Any]) -> None:
        """Remember one; the oldest is forgotten."""
        self._facts[request_id] = facts
        self._facts.move_to_end(request_id)
        if len(self._facts) > self._capacity:
            self._facts.popitem(last=False)

    def get(self, request_id: str) -> dict[str, Any] | None:
        """The facts of a request, or None."""
        return self._facts.get(request_id)

    def __len__(self) -> int:
        return len(self._facts)
