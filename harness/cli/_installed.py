"""Say which extras are installed, by what the installed package itself states that they need."""

from __future__ import annotations

import re
from importlib import import_module
from importlib.metadata import Distribution, PackageNotFoundError, distribution

import attrs

from harness._words import error_in_words

PACKAGE = "trio-harness"

_FOR_DEVELOPERS = {"bench", "dev", "docs", "test"}

_NEED = re.compile(r"([\w.-]+)(?:\[[^\]]*\])?\s*\(?([^;)]*)\)?\s*(?:;(.*))?", re.DOTALL)
_EXTRA = re.compile(r"""extra == ['"]([\w-]+)['"]""")
_FLOOR = re.compile(r">=\s*([\d.]+)")


@attrs.frozen
class Need:
    """A package that harness, or an extra of it, needs."""

    package: str
    floor: str
    """The oldest version that will do; empty for any."""
    installed: str | None
    """The version that is installed; None if none is."""

    @property
    def fault(self) -> str | None:
        """What is wrong with it, in words; None if nothing is."""
        if self.installed is None:
            return f"{self.package} is not installed"
        if _numbers(self.installed) < _numbers(self.floor):
            return f"{self.package} is {self.installed}, and {self.floor} or newer is needed"
        return None


@attrs.frozen
class Extra:
    """An extra, or the core, and the packages it needs."""

    name: str
    """Empty for the core."""
    needs: tuple[Need, ...]

    @property
    def faults(self) -> list[str]:
        """What is wrong, in words."""
        return [need.fault for need in self.needs if need.fault is not None]

    @property
    def advice(self) -> str:
        """What to run, if something is."""
        package = f"{PACKAGE}[{self.name}]" if self.name else PACKAGE
        return f"run: pip install --upgrade '{package}'"

    def import_fault(self) -> str | None:
        """Import the packages; say what goes wrong, None if nothing does."""
        for need in self.needs:
            for module in _modules_of(distribution(need.package)):
                try:
                    import_module(module)
                except Exception as error:  # Anything may be wrong with what others wrote.
                    return f"{need.package} can't be imported: {error_in_words(error)}"
        return None


def installed_extras() -> list[Extra]:
    """Return the core and then each extra that users install; empty if harness isn't installed."""
    try:
        own = distribution(PACKAGE)
    except PackageNotFoundError:
        return []
    names = ["", *(own.metadata.get_all("Provides-Extra") or ())]
    needs: dict[str, list[Need]] = {name: [] for name in names if name not in _FOR_DEVELOPERS}
    for line in own.requires or ():
        found = _NEED.fullmatch(line)
        assert found is not None, line
        extra = _EXTRA.search(found[3] or "")
        those = needs.get(extra[1] if extra else "")
        if those is not None:
            floor = _FLOOR.search(found[2])
            those.append(Need(found[1], floor[1] if floor else "", _version_of(found[1])))
    return [Extra(name, tuple(those)) for name, those in needs.items()]


def _version_of(package: str) -> str | None:
    try:
        return distribution(package).version
    except PackageNotFoundError:
        return None


def _numbers(version: str) -> list[int]:
    """Return the numbers of a release; what comes before it counts as it."""
    numbers = [int(part) for part in re.findall(r"\d+", re.match(r"[\d.]*", version)[0])]  # type: ignore[index]
    while numbers and not numbers[-1]:
        numbers.pop()  # 2.0 is 2.
    return numbers


def _modules_of(package: Distribution) -> list[str]:
    parts = (file.parts for file in package.files or ())
    return sorted({one[0] for one in parts if len(one) == 2 and one[1] == "__init__.py"})
