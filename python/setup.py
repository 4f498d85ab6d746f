"""Builds the program cairn into the wheel. It needs Go and the repository around this folder."""

import os
import pathlib
import shutil
import subprocess

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

HERE = pathlib.Path(__file__).resolve().parent


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
            raise SystemExit("the sources of the program cairn are not here: build in a clone of the repository, or set CAIRN_BINARY to the program")
        if not (go := shutil.which(os.environ.get("GO", "go"))):
            raise SystemExit("Go is needed to build the program cairn: install it, or set CAIRN_BINARY to the program")
        subprocess.run([go, "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", str(program.resolve()), "./cmd/cairn"], cwd=root, check=True,
                       env={**os.environ, "CGO_ENABLED": "0"})


class Wheel(bdist_wheel):
    def finalize_options(self):
        super().finalize_options()
        self.root_is_pure = False  # the program is for one platform

    def get_tag(self):
        _, _, platform = super().get_tag()
        return "py3", "none", platform


setup(cmdclass={"build_py": Build, "bdist_wheel": Wheel})
