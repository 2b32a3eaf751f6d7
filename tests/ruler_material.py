"""Text, words and functions enough for every task of RULER, made up for the tests."""

from environments.ruler.material import Material

ENDINGS = ("are", "olt", "indo", "ushes", "ample", "ind", "order", "eft")
WORDS = [first + second for first in "bcdfghjklmnprstvwxyz" for second in ENDINGS]
LINES = [f"line {n} tells of {' and '.join(WORDS[n % 157 : n % 157 + 3])}" for n in range(300)]
SOURCE = "\n".join(
    f"def make_{n}(first_{n}, second, third={n}):\n"
    + (f"    return make_{n - 1}(first_{n}, second)\n" if n % 2 else "    return first_0\n")
    for n in range(40)
)
MATERIAL = Material.read(LINES, [SOURCE])
