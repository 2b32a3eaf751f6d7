"""Fixes of real projects as tasks, from source distributions of the package index and Debian's patches.

    release   the tests of the next release on the code of this one; what its changelog says is the request
    reversal  one hunk of the changes between two releases taken back in the newer one
    debian    one patch of a Debian source package that brings its tests; what its header says is the request

Tests are run three times in a sandbox on both states. What fails before and passes after must be repaired,
what passes on both must be kept, and what does not repeat is left out.
"""

from data_pipelines.task_building.swe.candidates import candidates

__all__ = ["candidates"]
