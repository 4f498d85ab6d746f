"""Builds the program cairn into the wheel. It needs Go and the repository around this folder.

GOOS and GOARCH name the system that the wheel is for, as for "go build". "make wheels" builds all of them.
"""

import os
import pathlib
import shutil
import subprocess

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

HERE = pathlib.Path(__file__).resolve().parent
GO = os.environ.get("GO", "go")

# The program is linked statically, so it runs with every C library of a system. Go 1.26 needs macOS 12.
PLATFORMS = {
    ("linux", "amd64"): "manylinux_2_17_x86_64.manylinux2014_x86_64.musllinux_1_1_x86_64",
    ("linux", "arm64"): "manylinux_2_17_aarch64.manylinux2014_aarch64.musllinux_1_1_aarch64",
    ("darwin", "amd64"): "macosx_12_0_x86_64",
    ("darwin", "arm64"): "macosx_12_0_arm64",
}


class Build(build_py):
    def run(self):
        super().run()
        program = pathlib.Path(self.build_lib, "cairn", "bin", "cairn")
        program.parent.mkdir(parents=True, exist_ok=True)
        if named := os.environ.get("CAIRN_BINARY"):
            shutil.copy2(named, program)
            return
        root = HERE.parent
        if not (root / "cmd" / "cairn").is_dir():
            raise SystemExit("the sources of the program cairn are not here: build in a clone of the repository, or "
                             "set CAIRN_BINARY to the program")
        if not shutil.which(GO):
            raise SystemExit("Go is needed to build the program cairn: install it, or set CAIRN_BINARY to the program")
        subprocess.run([GO, "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", str(program.resolve()),
                        "./cmd/cairn"],
                       cwd=root, check=True, env={**os.environ, "CGO_ENABLED": "0"})


class Platform(Distribution):
    def has_ext_modules(self):
        return True  # the program is for one platform, as an extension would be


class Wheel(bdist_wheel):
    def get_tag(self):
        platform = super().get_tag()[2]
        if not os.environ.get("CAIRN_BINARY"):
            asked = subprocess.run([GO, "env", "GOOS", "GOARCH"], check=True, capture_output=True,
                                   text=True).stdout.split()
            platform = PLATFORMS.get(tuple(asked), platform)
        return "py3", "none", platform


setup(distclass=Platform, cmdclass={"build_py": Build, "bdist_wheel": Wheel})
