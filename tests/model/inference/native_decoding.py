"""What tests of the engine's native decoding need."""

import pytest

from model.inference.native.build import compiler

needs_compiler = pytest.mark.skipif(compiler() is None, reason="needs g++ 12 or newer, or clang with OpenMP")
