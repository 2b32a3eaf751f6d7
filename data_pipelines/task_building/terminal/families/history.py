"""A git repository as a stream for ``git fast-import``: its hashes are the same every time."""

import random
from dataclasses import dataclass, field

from data_pipelines.task_building.terminal.families.text import USERS

START = 1_735_900_000  # 3 January 2025, UTC


@dataclass
class History:
    """Commits on named branches, written one after the other."""

    rng: random.Random
    _parts: list[bytes] = field(default_factory=list)
    commits: int = 0

    def commit(
        self, message: str, files: dict[str, str | None], branch: str = "main", parent: str = ""
    ) -> str:
        """Add a commit that writes ``files`` (None deletes); ``parent`` starts a branch. Its author."""
        self.commits += 1
        author = self.rng.choice(USERS)
        when = START + 5000 * self.commits + self.rng.randrange(4000)
        person = f"{author.title()} <{author}@example.com> {when} +0000"
        lines = [
            f"commit refs/heads/{branch}",
            f"mark :{self.commits}",
            f"author {person}",
            f"committer {person}",
            f"data {len(message.encode())}",
            message,
        ]
        if parent:
            lines.append(f"from {parent}")
        self._parts.append(("\n".join(lines) + "\n").encode())
        for name, text in files.items():
            if text is None:
                self._parts.append(f"D {name}\n".encode())
            else:
                data = text.encode()
                self._parts.append(f"M 100644 inline {name}\ndata {len(data)}\n".encode() + data + b"\n")
        return author

    def stream(self) -> bytes:
        return b"".join(self._parts)


def setup(repository: str) -> str:
    """Shell commands that make the repository out of ``/app/history.stream``."""
    return "\n".join(
        [
            f"git init --quiet --initial-branch=main {repository}",
            f"git -C {repository} fast-import --quiet < /app/history.stream",
            f"git -C {repository} reset --quiet --hard main",
            f"git -C {repository} config user.name Agent",
            f"git -C {repository} config user.email agent@example.com",
            "rm /app/history.stream",
        ]
    )
