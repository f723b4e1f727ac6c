"""What an installation consists of: its packages with their licences, and a bill of materials of these alone."""

from __future__ import annotations

import json
import re
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

NAME: Final = "inference-core-memory"
NOT_FOR_USERS: Final = {"dev", "browser"}
ALLOWED: Final = re.compile(
    r"MIT|BSD|Apache|ISC|PSF|Python Software Foundation|MPL|Mozilla|LGPL|Zlib|0BSD|CC0|CNRI|HPND|Unlicense",
    re.IGNORECASE,
)
"""Permissive licences, and those that bind only changes to the package itself (MPL, and LGPL for psycopg)."""


def installed() -> dict[str, str]:
    """The packages that the package needs with all of its extras for users, as far as they are here, with licences."""
    found: dict[str, str] = {}
    extras = sorted(set(distribution(NAME).metadata.get_all("Provides-Extra") or ()) - NOT_FOR_USERS)
    waiting = [(NAME, frozenset(extras))]
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        name, wanted = one = waiting.pop()
        if one in seen:
            continue
        seen.add(one)
        try:
            package = distribution(name)
        except PackageNotFoundError:
            continue  # for another platform or Python, or an extra that is not in the lock
        found[canonicalize_name(name)] = licence_of(package.metadata)
        for text in package.requires or ():
            needed = Requirement(text)
            if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in wanted or {""}):
                waiting.append((needed.name, frozenset(needed.extras)))
    return dict(sorted(found.items()))


def licence_of(metadata: Any) -> str:
    """The licence by the metadata of a package: its expression, classifiers, or the first line of the text."""
    classifiers = [one.rpartition(" :: ")[2] for one in metadata.get_all("Classifier") or () if one.startswith("Lic")]
    text = metadata.get("License-Expression") or "; ".join(classifiers) or metadata.get("License") or "unknown"
    return text.strip().splitlines()[0][:60]


def main() -> int:
    """Prints the licences, and writes the bill of the given one's components that are installed for users."""
    packages = installed()
    for name, licence in packages.items():
        print(f"{name:40} {licence}")
    if len(sys.argv) > 1:
        source, target = map(Path, sys.argv[1:])
        bill: dict[str, Any] = json.loads(source.read_text(encoding="utf-8"))
        bill["components"] = [one for one in bill["components"] if canonicalize_name(one["name"]) in packages]
        kept = {one["bom-ref"] for one in [*bill["components"], bill["metadata"]["component"]]}
        bill["dependencies"] = [
            one | {"dependsOn": [ref for ref in one.get("dependsOn", ()) if ref in kept]}
            for one in bill["dependencies"]
            if one["ref"] in kept
        ]
        target.write_text(json.dumps(bill, indent=1) + "\n", encoding="utf-8")
        print(f"{target}: {len(bill['components'])} components")
    refused = [f"{name} ({licence})" for name, licence in packages.items() if not ALLOWED.search(licence)]
    if refused:
        print(f"Licences that are not allowed: {', '.join(refused)}", file=sys.stderr)
    return int(bool(refused))


if __name__ == "__main__":
    sys.exit(main())
