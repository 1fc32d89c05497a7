"""Builds the optional C kernel; everything else about the package is in pyproject.toml.

The kernel is a plain library that ctypes opens, without a word of Python's own interface. So one
wheel for each platform serves every version of Python: `py3-none-PLATFORM`.
"""

import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

LEARNERS = Path("src/pfedseq/learners")
KERNEL = LEARNERS / "mamba_kernel"


class BuildLibrary(build_ext):
    """Names the library for no version of Python, and leaves no older build beside it."""

    def run(self) -> None:
        """Build it; one of an earlier name would be found first."""
        for old in LEARNERS.glob("_mamba_kernel.*"):
            old.unlink()
        super().run()

    def get_ext_filename(self, fullname: str) -> str:
        """Such as pfedseq/learners/_mamba_kernel.so."""
        suffix = ".pyd" if sys.platform == "win32" else ".so"
        return str(Path(*fullname.split("."))) + suffix


class WheelForEveryPython(bdist_wheel):
    """Tags the wheel for the platform alone."""

    def get_tag(self) -> tuple[str, str, str]:
        """py3-none-PLATFORM."""
        return "py3", "none", super().get_tag()[2]


setup(
    cmdclass={"build_ext": BuildLibrary, "bdist_wheel": WheelForEveryPython},
    ext_modules=[
        Extension(
            "pfedseq.learners._mamba_kernel",
            sources=[str(KERNEL / "kernel.c")],
            depends=[str(header) for header in sorted(KERNEL.glob("*.h"))],
            extra_compile_args=[
                *("-O3", "-std=gnu11", "-ffp-contract=fast", "-fno-math-errno"),
                "-Wno-psabi",  # vectors are passed only between functions of the same variant
            ],
            optional=True,  # without a compiler the package installs and runs in plain PyTorch
        )
    ],
)
