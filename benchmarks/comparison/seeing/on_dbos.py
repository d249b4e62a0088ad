"""What is recorded of one workflow with a step for a model and one for a tool?"""

import tempfile

from dbos import DBOS


@DBOS.step()
def model(question: str) -> str:
    return "look_up"


@DBOS.step()
def tool(card: str) -> str:
    return "posted on Monday"


@DBOS.workflow()
def agent(question: str) -> str:
    model(question)
    return model(tool("17"))


if __name__ == "__main__":
    url = f"sqlite:///{tempfile.mkdtemp()}/dbos.sqlite"
    DBOS(config={"name": "comparison", "system_database_url": url, "log_level": "ERROR"})
    DBOS.launch()
    handle = DBOS.start_workflow(agent, "My card has not arrived")
    handle.get_result()
    steps = DBOS.list_workflow_steps(handle.workflow_id)
    DBOS.destroy()
    print(f"recorded of a tool turn: {', '.join(step['function_name'] for step in steps)}")
    print("where the time went: when each step began and ended; no analysis of its own")
    print("to look at: SQL, dbos workflow list; Conductor's console")
