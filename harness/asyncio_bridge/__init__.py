"""Run code that only knows asyncio, from a run.

Many frameworks need an asyncio event loop. Here such a loop lives in a worker thread of its own,
and a coroutine is run there for a trio task that waits for it::

    async with open_asyncio() as loop:       # one thread and loop, for any number of runs
        results = await harness.fan_out(partial(loop.run, framework_agent.run), questions)

    answer = await run_asyncio(framework_agent.run, question)      # a loop for this call alone

To the run, it is a call like any other. The asyncio code sees the caller's context variables, so
`harness.current_run` is the caller's run. A cancel or deadline of the caller cancels the asyncio
task, and the caller continues once that has ended. Asyncio code can call back with `call_trio`: the
function runs in the caller's run, under the caller's scopes.

Who owns what: the loop belongs to the block of `open_asyncio` and to no run. A call belongs to its
caller. Tasks that asyncio code leaves behind belong to the loop: they are cancelled when the block
is left.
"""

from harness.asyncio_bridge._loop import AsyncioLoop, call_trio, open_asyncio, run_asyncio

__all__ = ["AsyncioLoop", "call_trio", "open_asyncio", "run_asyncio"]
