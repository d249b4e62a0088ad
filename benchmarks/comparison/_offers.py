"""Say what a library offers, by counting in what is installed."""

import importlib.metadata


def show(distribution: str, *, providers: object, scorers: object = "–") -> None:
    """Print its counts, and how mature its own metadata say it is."""
    metadata = importlib.metadata.metadata(distribution)
    status = [
        classifier.removeprefix("Development Status :: ")
        for classifier in metadata.get_all("Classifier") or []
        if classifier.startswith("Development Status")
    ]
    print(f"model providers: {providers}")
    print(f"scorers: {scorers}")
    print(f"status it gives itself: {status[0] if status else '–'}")
