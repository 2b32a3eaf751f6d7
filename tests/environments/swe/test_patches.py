"""Unified diffs: what is added and changed, whatever the lines look like."""

from environments.swe.patches import added_lines, changed_lines


def test_lines_that_look_like_headers_are_content():
    patch = "--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n--- a/y\n+++ b/z\n same\n"
    assert added_lines(patch) == {"x": ["++ b/z"]}
    assert changed_lines(patch) == 2


def test_lines_are_told_by_file():
    patch = (
        "diff --git a/a.txt b/a.txt\n--- a/a.txt\n+++ b/a.txt\n@@ -1,3 +1,4 @@\n"
        " one\n-two\n+2\n+zwei\n three\n"
        "diff --git a/c.txt b/c.txt\nnew file mode 100644\n--- /dev/null\n+++ b/c.txt\n@@ -0,0 +1 @@\n+c\n"
        "diff --git a/b.txt b/b.txt\n--- a/b.txt\n+++ /dev/null\n@@ -1 +0,0 @@\n-b\n"
    )
    assert added_lines(patch) == {"a.txt": ["2", "zwei"], "c.txt": ["c"]}
    assert changed_lines(patch) == 5
