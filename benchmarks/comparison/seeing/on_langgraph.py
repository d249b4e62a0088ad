"""What is recorded of one run of a graph with a tool node?"""

from typing import TypedDict

from langgraph.graph import END, START, StateGraph


class State(TypedDict):
    turns: int


def model(state: State) -> State:
    return {"turns": state["turns"] + 1}


def tools(state: State) -> State:
    return state


builder = StateGraph(State)
builder.add_node("model", model)
builder.add_node("tools", tools)
builder.add_edge(START, "model")
builder.add_conditional_edges("model", lambda state: "tools" if state["turns"] == 1 else END)
builder.add_edge("tools", "model")
graph = builder.compile()

if __name__ == "__main__":
    events = list(graph.stream({"turns": 0}, stream_mode="debug"))
    kinds = sorted({event["type"] for event in events})
    print(f"recorded of a tool turn: {', '.join(kinds)}, each with its state")
    print("where the time went: timestamps; no analysis of its own")
    assert "tools" in graph.get_graph().draw_mermaid()
    print("to look at: LangSmith and Studio; a picture of the graph by draw_mermaid()")
