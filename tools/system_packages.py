"""Bring what tests need of the system, without root: Debian's packages, unpacked below a virtual environment.

    python tools/system_packages.py FOLDER [WHAT ...]

Looks for each library and program first; what the system has is left alone. The rest is downloaded by apt-get with
lists and cache of its own, and linked in FOLDER/bin and FOLDER/lib, which the Makefile puts on PATH and
LD_LIBRARY_PATH. Where that cannot be done (no apt-get, no network), it says so and succeeds: tests that lack
something are skipped, and the end of the run says which.
"""

from __future__ import annotations

import argparse
import ctypes
import shutil
import subprocess
from pathlib import Path

PACKAGES = {
    "redis-server": "redis-server",
    "chromium-headless-shell": "chromium-headless-shell",
    "libatomic.so.1": "libatomic1",  # of the browser's driver
    "prometheus": "prometheus",
    "cc": "tcc",  # compiles what issues copies to a GPU
    "libnuma.so.1": "libnuma1",
    "libibverbs.so.1": "libibverbs1",
    "librdmacm.so.1": "librdmacm1",
    "libnl-3.so.200": "libnl-3-200",
    "libnl-route-3.so.200": "libnl-route-3-200",
    "libcurl.so.4": "libcurl4",
}
"""The package of each program and library."""
TIMEOUT_S = 300


def is_here(name: str) -> bool:
    """Whether a program is on PATH, or a library is found by the loader."""
    if ".so" not in name:
        return shutil.which(name) is not None
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def run(command: list[str]) -> None:
    """Run a program of Debian's; what it prints is in the exception if it fails."""
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=TIMEOUT_S)  # noqa: S603 (our own)


def download(packages: list[str], folder: Path) -> list[Path]:
    """Download packages with all that they need and the system has not; return the files."""
    lists, cache = folder / "apt" / "lists", folder / "apt" / "cache"
    for part in (lists, cache / "archives"):
        (part / "partial").mkdir(parents=True, exist_ok=True)
    # The state of installed packages is only read; nothing is locked, which is what needs root.
    settings = (f"Dir::State::lists={lists}", f"Dir::Cache={cache}", "Debug::NoLocking=1")
    apt = ["apt-get", "-qq", *(f"--option={setting}" for setting in settings)]
    run([*apt, "update"])
    run([*apt, "--yes", "--no-install-recommends", "--download-only", "install", *packages])
    return sorted((cache / "archives").glob("*.deb"))


def unpack(files: list[Path], folder: Path) -> None:
    """Unpack packages, and link their programs and libraries in two flat folders."""
    root = folder / "root"
    for file in files:
        run(["dpkg-deb", "--extract", str(file), str(root)])
    found = {
        # The browser's program in usr/bin is a script that looks for the real one in /usr/lib.
        "bin": [*root.glob("usr/bin/*"), *root.glob("usr/lib/chromium/chromium-headless-shell")],
        "lib": [*root.glob("**/lib/**/*.so.*"), *root.glob("**/*-linux-gnu/**/lib*.so")],
    }
    for name, paths in found.items():
        (folder / name).mkdir(exist_ok=True)
        for path in paths:
            link = folder / name / path.name
            link.unlink(missing_ok=True)
            link.symlink_to(path.resolve())


def bring(names: list[str], folder: Path) -> None:
    """Bring what is missing, or say in one line why not."""
    missing = [name for name in names if not is_here(name)]
    if not missing:
        return
    packages = [PACKAGES[name] for name in missing]
    print(f"==> bringing {' '.join(packages)} into {folder}: Debian's packages, unpacked, not installed")
    try:
        unpack(download(packages, folder), folder)
    except (OSError, subprocess.SubprocessError) as error:
        print(f"==> could not: {(getattr(error, 'stderr', '') or str(error)).strip().splitlines()[-1]}")
        print(f"    What needs {', '.join(missing)} is not tested. `apt-get install {' '.join(packages)}` brings it.")
    finally:
        shutil.rmtree(folder / "apt", ignore_errors=True)  # 20 MB


def main() -> None:
    """Bring what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("what", nargs="*", metavar="WHAT", help=f"of {', '.join(PACKAGES)} (default: all)")
    args = parser.parse_args()
    if unknown := set(args.what) - set(PACKAGES):
        parser.error(f"not known: {', '.join(sorted(unknown))}")
    bring(args.what or list(PACKAGES), args.folder.absolute())


if __name__ == "__main__":
    main()
