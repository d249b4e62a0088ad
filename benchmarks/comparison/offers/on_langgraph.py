"""How many model providers are there? None in it: each is a package of LangChain's."""

from benchmarks.comparison import _offers

if __name__ == "__main__":
    _offers.show("langgraph", providers="those of LangChain, a package each")
