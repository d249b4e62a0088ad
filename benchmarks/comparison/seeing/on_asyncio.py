"""What does asyncio record of tasks? Their stacks, while they live."""

import asyncio
import io


async def look_up() -> None:
    await asyncio.sleep(0.1)


async def main() -> None:
    task = asyncio.create_task(look_up())
    await asyncio.sleep(0)
    stack = io.StringIO()
    task.print_stack(file=stack)
    assert "look_up" in stack.getvalue()
    await task


if __name__ == "__main__":
    asyncio.run(main())
    print("recorded of a tool turn: nothing; the stack of a live task")
    print("where the time went: –")
    print("to look at: –")
