"""Build the zip for ``spark-submit --py-files``: the package with its table schemas and configuration.

    python deploy/build_zip.py --out dist/stemroot_spark.zip

Which files belong to the package is read from ``setup.cfg``, so the zip and the wheel carry the same. The same files
give the same bytes: entries are sorted and carry a fixed time and mode.
"""

import argparse
import configparser
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "stemroot_spark"
# The earliest time a zip can hold.
TIME = (1980, 1, 1, 0, 0, 0)
MODE = 0o644


def package_files(root: Path = ROOT) -> list[str]:
    """Sorted paths of the files of the package, relative to ``root``; symlinked folders are followed."""
    settings = configparser.ConfigParser()
    settings.read(root / "setup.cfg", encoding="utf-8")
    patterns = settings["options.package_data"][PACKAGE].split()
    package = root / PACKAGE
    found = set(package.rglob("*.py"))
    for pattern in patterns:
        matches = set(package.glob(pattern))
        if not matches:
            raise FileNotFoundError(f"setup.cfg, package_data: no file matches {PACKAGE}/{pattern}")
        found |= matches
    return sorted(path.relative_to(root).as_posix() for path in found)


def build(out: Path, root: Path = ROOT) -> list[str]:
    """Write the zip and return its entries; a zip that is there is replaced only once the new one is whole."""
    names = package_files(root)
    out.parent.mkdir(parents=True, exist_ok=True)
    unfinished = out.with_name(out.name + ".tmp")
    with zipfile.ZipFile(unfinished, "w") as archive:
        for name in names:
            entry = zipfile.ZipInfo(name, TIME)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.create_system = 3
            entry.external_attr = MODE << 16
            archive.writestr(entry, (root / name).read_bytes())
    unfinished.replace(out)
    return names


def differences(names: Sequence[str], wheel: Path) -> list[str]:
    """Files that only one of the zip and the wheel carries."""
    with zipfile.ZipFile(wheel) as archive:
        in_wheel = {name for name in archive.namelist() if name.startswith(f"{PACKAGE}/")}
    return sorted(in_wheel.symmetric_difference(names))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=ROOT / "dist" / f"{PACKAGE}.zip", help="the zip to write")
    parser.add_argument("--wheel", type=Path, help="fail unless this wheel carries the same files")
    args = parser.parse_args(argv)
    names = build(args.out)
    differing = differences(names, args.wheel) if args.wheel else []
    if differing:
        print(f"{args.out} and {args.wheel} differ in: {', '.join(differing)}", file=sys.stderr)
        return 1
    print(f"{args.out}: {len(names)} files")
    return 0


if __name__ == "__main__":
    sys.exit(main())
