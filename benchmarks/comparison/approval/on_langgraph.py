"""A refund waits for a person, over the end of the process. What is called when?

A node that is interrupted runs again from its beginning, so the model has a node of its own.
"""

from typing import Any, TypedDict

from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

from benchmarks.comparison import _approval, _processes


class State(TypedDict, total=False):
    wanted: dict[str, Any]
    paid: str
    said: str


def ask(state: State) -> State:
    _processes.note("model")
    return {"wanted": _approval.ARGUMENTS}


def refund(state: State) -> State:
    if not interrupt(state["wanted"]):
        return {"paid": "refused"}
    _processes.note("tool")
    return {"paid": "paid"}


def tell(state: State) -> State:
    _processes.note("model")
    return {"said": _approval.DONE}


builder = StateGraph(State)
for name, node in (("ask", ask), ("refund", refund), ("tell", tell)):
    builder.add_node(name, node)
builder.add_edge(START, "ask")
builder.add_edge("ask", "refund")
builder.add_edge("refund", "tell")


def main() -> None:
    with SqliteSaver.from_conn_string(str(_processes.folder() / "checkpoints.sqlite")) as saver:
        graph = builder.compile(checkpointer=saver)
        given: Any = {} if _processes.first_time() else Command(resume=True)
        graph.invoke(given, {"configurable": {"thread_id": "refund"}})


if __name__ == "__main__":
    if _processes.is_child():
        main()
    else:
        _approval.show(
            "benchmarks.comparison.approval.on_langgraph", kept="a checkpointer's database"
        )
