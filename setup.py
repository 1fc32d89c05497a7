"""Builds the optional C kernel; everything else about the package is in pyproject.toml."""

from pathlib import Path

from setuptools import Extension, setup

KERNEL = Path("src/pfedseq/learners/mamba_kernel")

setup(
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
    ]
)
