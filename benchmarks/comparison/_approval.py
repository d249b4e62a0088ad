"""A refund that a person has to allow, in two processes, and what each of them called.

The first process ends while the question is open. The second has the answer: yes.
"""

from benchmarks.comparison._processes import notes_of

QUESTION = "I want 20 dollars back for order 1."
TOOL = "refund"
ARGUMENTS = {"order": 1, "usd": 20}
DONE = "On their way."


def show(module: str, *, kept: str) -> None:
    """Run the module in two processes, and print what each called.

    Args:
      module: Its full name.
      kept: Where the open question is kept between them.
    """
    for time, notes in zip(("before", "after"), notes_of(module), strict=True):
        print(f"calls {time} the answer: model {notes.count('model')}, tool {notes.count('tool')}")
    print(f"the question is kept in: {kept}")
