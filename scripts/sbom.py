"""What a release consists of: the package, what it installs and its models, with licences, as a bill of materials."""

from __future__ import annotations

import json
import re
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from inference_core import __version__
from scripts.build_models import MODELS, VERSION

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


def models() -> dict[str, str]:
    """The wheels of `build_models`, which are released together with the package, with licences."""
    return {canonicalize_name(model.package): model.licence for model in MODELS.values()}


def bill_of(found: dict[str, Any], packages: dict[str, str]) -> dict[str, Any]:
    """The bill of a release: what ``found``, that of an environment, lists of ``packages``, and the models' wheels.

    What the tool does not find is added: the version, which is not in pyproject.toml, and licences that the metadata
    does not call by their SPDX names.
    """
    root = found["metadata"]["component"] | {"version": __version__}
    components: list[dict[str, Any]] = [
        {
            "bom-ref": f"{name}=={VERSION}",
            "licenses": _declared(id=licence),
            "name": name,
            "purl": f"pkg:pypi/{name}@{VERSION}",
            "type": "library",
            "version": VERSION,
        }
        for name, licence in models().items()
    ]
    needed: dict[str, list[str]] = {one["bom-ref"]: [] for one in components}
    own = list(needed)
    components += [
        one if one.get("licenses") else one | {"licenses": _declared(name=packages[name])}
        for one in found["components"]
        if (name := canonicalize_name(one["name"])) in packages
    ]
    kept = {root["bom-ref"], *(one["bom-ref"] for one in components)}
    needed |= {one["ref"]: one.get("dependsOn", []) for one in found["dependencies"] if one["ref"] in kept}
    needed[root["bom-ref"]] = [*needed[root["bom-ref"]], *own]
    return found | {
        "metadata": found["metadata"] | {"component": root},
        "components": sorted(components, key=lambda one: one["name"]),
        "dependencies": [{"dependsOn": sorted(kept.intersection(needed[ref])), "ref": ref} for ref in sorted(needed)],
    }


def _declared(**licence: str) -> list[dict[str, Any]]:
    """A licence as its author declares it: by its SPDX ``id``, or by ``name``."""
    return [{"license": {"acknowledgement": "declared", **licence}}]


def main() -> int:
    """Prints the licences, and writes the bill of the release from the given one of this environment."""
    packages = installed()
    listed = packages | models()
    for name, licence in listed.items():
        print(f"{name:40} {licence}")
    if len(sys.argv) > 1:
        source, target = map(Path, sys.argv[1:])
        bill = bill_of(json.loads(source.read_text(encoding="utf-8")), packages)
        target.write_text(json.dumps(bill, indent=1) + "\n", encoding="utf-8")
        print(f"{target}: {len(bill['components'])} components")
    refused = [f"{name} ({licence})" for name, licence in listed.items() if not ALLOWED.search(licence)]
    if refused:
        print(f"Licences that are not allowed: {', '.join(refused)}", file=sys.stderr)
    return int(bool(refused))


if __name__ == "__main__":
    sys.exit(main())
