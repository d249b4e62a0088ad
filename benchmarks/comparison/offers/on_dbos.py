"""What does it say of itself? It has no models: it is not about them."""

from benchmarks.comparison import _offers

if __name__ == "__main__":
    _offers.show("dbos", providers="–")
