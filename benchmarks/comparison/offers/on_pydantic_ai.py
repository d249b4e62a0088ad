"""How many model providers are there?"""

import pkgutil

from pydantic_ai import providers

from benchmarks.comparison import _offers

if __name__ == "__main__":
    names = [module.name for module in pkgutil.iter_modules(providers.__path__)]
    count = sum(not name.startswith("_") for name in names)
    _offers.show("pydantic-ai-slim", providers=count, scorers="in pydantic-evals")
