"""The distributions of this environment that requirements bring along."""

from collections.abc import Iterable
from importlib import metadata

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def distributions(
    lines: Iterable[str], own: dict[str, list[str]] | None = None, **environment: str
) -> dict[str, metadata.Distribution]:
    """Return all that lines of requirements need, by canonical name.

    Packages that are not installed, as those of another system, are left out.

    Args:
        own: requirements of the package itself by extra, which may be installed with older ones.
        environment: what markers are compared with instead of this Python.
    """
    found: dict[str, metadata.Distribution] = {}
    seen: set[tuple[str, str]] = set()
    left = [Requirement(line) for line in lines]
    while left:
        requirement = left.pop()
        name = canonicalize_name(requirement.name)
        for extra in {"", *requirement.extras}:
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            try:
                found[name] = metadata.distribution(name)
            except metadata.PackageNotFoundError:
                continue
            is_own = own is not None and name == "qwen-megakernel"
            needed = own[extra] if is_own else found[name].requires or ()
            for each in map(Requirement, needed):
                if not each.marker or each.marker.evaluate(environment | {"extra": extra}):
                    left.append(each)
    return found
