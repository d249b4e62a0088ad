"""A refund waits for a person, over the end of the process. What is called when?

The workflow waits for a message. After a restart it goes on from its last step.
"""

import os
import time

from dbos import DBOS, SetWorkflowID

from benchmarks.comparison import _approval, _processes

asked = False


@DBOS.step()
def model() -> str:
    global asked
    _processes.note("model")
    asked = True
    return _approval.DONE


@DBOS.step()
def refund() -> str:
    _processes.note("tool")
    return "paid"


@DBOS.workflow()
def answer() -> str:
    model()
    if not DBOS.recv("allowed", timeout_seconds=3_600):
        return "refused"
    refund()
    return model()


def main() -> None:
    url = f"sqlite:///{_processes.folder()}/dbos.sqlite"
    DBOS(config={"name": "comparison", "system_database_url": url, "log_level": "ERROR"})
    DBOS.launch()
    if _processes.first_time():
        with SetWorkflowID("refund"):
            DBOS.start_workflow(answer)
        while not asked:
            time.sleep(0.1)
        time.sleep(1)  # So that the step is recorded.
        os._exit(0)  # Else it would wait for the workflow.
    DBOS.send("refund", True, "allowed")
    DBOS.retrieve_workflow("refund").get_result()
    DBOS.destroy()


if __name__ == "__main__":
    if _processes.is_child():
        main()
    else:
        _approval.show("benchmarks.comparison.approval.on_dbos", kept="its database")
