"""Builds the optional C kernel; everything else about the package is in pyproject.toml."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "pfedseq.learners._mamba_kernel",
            sources=["src/pfedseq/learners/mamba_kernel.c"],
            depends=["src/pfedseq/learners/mamba_kernel_lanes.h"],
            extra_compile_args=[
                *("-O3", "-std=gnu11", "-ffp-contract=fast", "-fno-math-errno"),
                "-Wno-psabi",  # vectors are only ever passed to functions of the same variant
            ],
            optional=True,  # without a compiler the package installs and runs in plain PyTorch
        )
    ]
)
