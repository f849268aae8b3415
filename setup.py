"""The one compiled part: left out where there is no compiler, and NumPy does its work."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "converter.numerics._sums",
            ["converter/numerics/_sums.c"],
            extra_compile_args=["-O3", "-fno-math-errno", "-fno-trapping-math"],
            optional=True,
        )
    ]
)
