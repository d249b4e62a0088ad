"""Ten items, of which 2 and 5 fail. An item takes half a second for each before it."""

ITEMS = range(10)
STEP_SECONDS = 0.5


class ModelDownError(Exception):
    """The model did not answer."""


def answer(number: int) -> str:
    """Answer, or fail."""
    if number in (2, 5):
        raise ModelDownError(number)
    return f"answer {number}"


def show(*, first_error: str, collect: str, quorum: str, threshold: str) -> None:
    """Print what was left under each policy, for the same columns everywhere."""
    print(f"values left after the first error: {first_error}")
    print(f"collecting all: {collect}")
    print(f"the first 3 values, cancelling the rest: {quorum}")
    print(f"giving up at the second failure: {threshold}")


NOTHING = "–"
