"""Admission of requests: some run on the engine's slots, some wait, the others are refused at once.

The engine itself queues without a limit, oldest first; this queue in front of it has a limit.
"""

import math
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from qwen_megakernel.errors import Draining, EngineBusy

MAX_RETRY_AFTER_S = 60  # some clients ignore a longer time

_NEWEST = 0.2  # weight of the newest request in the mean time that requests hold a slot


@dataclass(eq=False, slots=True)
class Ticket:
    """The place of an admitted request, in a slot or in the queue."""

    admission: "Admission"
    expected_s: float = 0.0  # how long it may hold a slot, by the length of its text
    started: float | None = None  # perf_counter() when it got a slot; None: it waits

    def release(self) -> None:
        """Give the place to the next request; a second call has no effect."""
        admission = self.admission
        if self not in admission.running:
            return
        admission.running.remove(self)
        if self.started is not None:
            held_s = time.perf_counter() - self.started
            before = held_s if admission._mean_s is None else admission._mean_s
            admission._mean_s = before + _NEWEST * (held_s - before)
        admission._start_next()


@dataclass(slots=True)
class Admission:
    """Counts requests from their admission until the engine has made their last frame.

    It also counts the bytes that clients are sending. Only the event loop uses it; no method waits.
    """

    num_slots: int
    max_queue: int
    draining: bool = False
    running: list[Ticket] = field(default_factory=list)  # the first `num_slots` have a slot
    open_responses: int = 0  # responses being sent, also after the engine has finished
    buffered_bytes: int = 0  # in the bodies of all requests, and in messages of WebSockets
    _mean_s: float | None = None  # mean time that a request holds a slot; None: none has ended yet

    @property
    def num_waiting(self) -> int:
        """Requests without a slot."""
        return max(0, len(self.running) - self.num_slots)

    @property
    def idle(self) -> bool:
        """Whether no speech is being made or sent."""
        return not self.num_unfinished

    @property
    def num_unfinished(self) -> int:
        """Speeches that wait, are being made, or are being sent."""
        return max(len(self.running), self.open_responses)

    def admit(self, expected_s: float = 0.0) -> Ticket:
        """Admit a request.

        Args:
            expected_s: estimated seconds for which the request will hold a slot; 0: unknown.
        Raises:
            EngineBusy: the queue is full.
            Draining: the server is about to stop.
        """
        if self.draining:
            raise Draining("The server is shutting down and takes no new requests.")
        if len(self.running) >= self.num_slots + self.max_queue:
            seconds = self._retry_after_s()
            what = f"{self.num_waiting} of {self.max_queue} places in the queue are taken."
            if not self.max_queue:
                what = f"All {self.num_slots} slots are taken, and max_queue is 0."
            error = EngineBusy(what, hint=f"Try again in {seconds} s.")
            error.retry_after_s = seconds
            raise error
        ticket = Ticket(self, expected_s)
        self.running.append(ticket)
        self._start_next()
        return ticket

    def _start_next(self) -> None:
        for ticket in self.running[: self.num_slots]:
            if ticket.started is None:
                ticket.started = time.perf_counter()

    def _retry_after_s(self) -> int:
        """Estimate when all waiting requests, and one more, will have a slot."""
        mean_s = self._mean_s
        if mean_s is None:  # a request takes at least as long as the oldest has run
            oldest = self.running[0].started
            assert oldest is not None  # a slot is free for the oldest
            expected_s = sum(ticket.expected_s for ticket in self.running) / len(self.running)
            mean_s = max(time.perf_counter() - oldest, expected_s)
        seconds = math.ceil(mean_s * (self.num_waiting + 1) / self.num_slots)
        return min(max(1, seconds), MAX_RETRY_AFTER_S)


class Newest(OrderedDict[str, dict[str, Any]]):
    """The newest reports; beyond the capacity, the one that was set first is forgotten."""

    def __init__(self, capacity: int):
        super().__init__()
        self.capacity = capacity

    def __setitem__(self, key: str, value: dict[str, Any]) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        if len(self) > self.capacity:
            self.popitem(last=False)
