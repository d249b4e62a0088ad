"""A desk that answers tickets in a pool of worker threads."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, SimpleQueue

Model = Callable[[list[str]], str]


class TicketDesk:
    """Answers tickets. One desk serves them all."""

    messages: list[str] = []  # noqa: RUF012  # That the class holds it is the fault.

    def __init__(self, model: Model) -> None:
        self.model = model
        self.ticket = ""
        self.replies: SimpleQueue[str] = SimpleQueue()
        self.cancelled = False
        self.current_stream: str | None = None

    def answer(self, ticket: str) -> str:
        """Return the model's replies to a ticket: two, or fewer if it says stop."""
        self.messages.clear()
        self.ticket = ticket
        self.cancelled = False
        self.current_stream = f"[{ticket}]"
        for turn in ("look up", "reply to"):
            if self.cancelled:
                break
            self.messages.append(f"{turn} {self.ticket}")
            said = self.model(list(self.messages))
            if said.endswith("stop"):
                self.cancel()
            self.replies.put(f"{self.current_stream} {said}")
        return "; ".join(self.take_replies())

    def cancel(self) -> None:
        """Ask for no further turn."""
        self.cancelled = True

    def take_replies(self) -> list[str]:
        """Return the replies that nobody has taken."""
        taken = []
        while True:
            try:
                taken.append(self.replies.get_nowait())
            except Empty:
                return taken


def answer_all(desk: TicketDesk, tickets: Iterable[str], workers: int) -> list[str]:
    """Return an answer for each ticket, in order."""
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(desk.answer, tickets))
