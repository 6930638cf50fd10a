"""Finds a Java that Spark runs on, and installs one on Debian as root."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import nox

OLDEST_JAVA = 17


def java_home(session: nox.Session, oldest: int = OLDEST_JAVA) -> Path:
    """The home of a Java that Spark runs on, or of a newer one; installed on Debian as root, else an error with the line to run."""
    for home in _java_homes():
        if _java_version(home) >= oldest:
            return home
    debian = Path("/etc/debian_version").exists() and shutil.which("apt-get")
    if debian and os.geteuid() == 0:
        session.log(f"no Java {oldest} or newer found: installing a headless one")
        subprocess.run(["apt-get", "update", "-qq"], check=False)
        for package in (f"openjdk-{oldest}-jre-headless", "openjdk-21-jre-headless", "default-jre-headless"):
            noninteractive = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
            command = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", package]
            if subprocess.run(command, env=noninteractive, check=False).returncode == 0:
                break
        for home in _java_homes():
            if _java_version(home) >= oldest:
                return home
    if debian:
        line = f"sudo apt-get update && sudo apt-get install -y openjdk-{oldest}-jre-headless"
    elif sys.platform == "darwin":
        line = f"brew install openjdk@{oldest}"
    elif shutil.which("dnf"):
        line = f"sudo dnf install -y java-{oldest}-openjdk-headless"
    else:
        line = f"install a Java {oldest} and set JAVA_HOME to it"
    session.error(f"Java {oldest} or newer is needed and none was found. Run: {line}")


def _java_homes() -> Iterable[Path]:
    if os.environ.get("JAVA_HOME"):
        yield Path(os.environ["JAVA_HOME"])
    on_path = shutil.which("java")
    if on_path:
        yield Path(on_path).resolve().parent.parent
    for pattern in (
        "/usr/lib/jvm/*",
        "/opt/java/*",
        "/opt/*jdk*",
        "/usr/local/*jdk*",
        "/opt/homebrew/opt/openjdk*/libexec/openjdk.jdk/Contents/Home",
        "/usr/local/opt/openjdk*/libexec/openjdk.jdk/Contents/Home",
        "/Library/Java/JavaVirtualMachines/*/Contents/Home",
        str(Path.home() / ".sdkman/candidates/java/*"),
        str(Path.home() / ".jdks/*"),
    ):
        root = Path(pattern[: pattern.index("*")]).parent if "*" in pattern else Path(pattern)
        anchor = Path(root.anchor)
        yield from sorted(anchor.glob(str(Path(pattern).relative_to(anchor))))


def _java_version(home: Path) -> int:
    """The major version of the Java at ``home``; 0 where there is none that runs."""
    java = home / "bin" / ("java.exe" if os.name == "nt" else "java")
    if not java.is_file():
        return 0
    try:
        told = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=True).stderr
    except (OSError, subprocess.SubprocessError):
        return 0
    match = re.search(r'version "(?:1\.)?(\d+)', told)
    return int(match[1]) if match else 0
