"""The same folder is the same world under both backends: its files, its environment, its user."""

import asyncio

import pytest

from tests.environments.sandbox.conftest import FROM, SMALL

DOCKERFILE = (
    FROM
    + """\
ARG EDITION=2 UNSET
ENV APP=/srv/app NAME="two words" QUOTED='$APP' EDITION_NAME=${EDITION:-none}/$UNSET
ENV LEGACY a  b "c"
WORKDIR $APP
COPY . .
COPY data /merged/data/
COPY data/one.txt data/*.csv /collected/
COPY ["with space.txt", "/spaced/"]
COPY data/one.txt renamed.txt
COPY tool /usr/local/bin/
RUN echo "$EDITION $NAME" > made.txt && mkdir -m 700 closed && ln -s made.txt link && touch /data.new
RUN ["sh", "-c", "echo \\"$APP\\" > exec.txt"]
SHELL ["/bin/bash", "-c"]
RUN [[ $EDITION = 2 ]] && echo ${BASH_VERSION:+bash} > shell.txt
WORKDIR sub/folder
ENV APP=changed PATH=/extra:$PATH
RUN pwd > here.txt
"""
)
LIST = r"""
for folder in /srv /merged /collected /spaced /usr/local/bin/tool /data.new; do
  find $folder -printf '%p %y %m %u %g %l\n'
done | sort
find /srv /merged /collected /spaced -type f | sort | xargs -d '\n' sha256sum
"""
PROGRAM = 'import sys; print(sys.version_info[0], sys.stdout.encoding, "ä")'
SEE = {
    "files": LIST,
    "place": "pwd; umask; echo $0 $#; ulimit -c",
    "user": "id; echo ~; test -w /root && echo writable",
    "environment": "env | grep -v '^HOSTNAME=' | sort; echo ${EDITION-none} ${UNSET-none}",  # Docker adds it
    "programs": f"tool; python3 -c '{PROGRAM}'; which python3",
    "characters": "x=äöü; echo ${#x} $(locale charmap); printf '%s\\n' b ä A a | sort",
    "errors": "nosuchprogram; cd /nowhere; exit 5",
    "standard input": "cat; [ -t 0 ] || echo no terminal",
    "first processes": "echo $(( $(ls /proc | grep -c '^[0-9]*$') < 12 ))",
    "network": "tail -n +3 /proc/net/dev | cut -d: -f1; cat /etc/hostname",
}  # fmt: skip


@pytest.fixture(scope="module")
def seen(bubblewrap, docker, tmp_path_factory):
    """What each backend shows of the folder, by question."""
    folder = tmp_path_factory.mktemp("context")
    (folder / "Dockerfile").write_text(DOCKERFILE)
    (folder / "data/below").mkdir(parents=True)
    (folder / "data/one.txt").write_text("1\n")
    (folder / "data/a.csv").write_text("a,b\n")
    (folder / "data/b.csv").write_text("c,d\n")
    (folder / "data/below/deep").write_bytes(bytes(range(256)))
    (folder / "data/link").symlink_to("below/deep")
    (folder / "with space.txt").write_text("spaced\n")
    (folder / "tool").write_text("#!/bin/sh\necho tool\n")
    (folder / "tool").chmod(0o755)
    (folder / "data/one.txt").chmod(0o640)

    async def look(backend):
        image = await backend.build(folder)
        async with await backend.start(image, SMALL) as sandbox:
            answers = {name: await sandbox.run(command) for name, command in SEE.items()}
        said = {name: (answer.returncode, answer.output) for name, answer in answers.items()}
        environment = {"HOME": "/root", **image.environment}  # Docker adds it when a command begins
        return said | {"image": (image.workdir, image.user, environment)}

    return [asyncio.run(look(backend)) for backend in (bubblewrap, docker)]


@pytest.mark.parametrize("question", [*SEE, "image"])
def test_both_backends_show_the_same(seen, question):
    bubblewrap, docker = seen
    assert bubblewrap[question] == docker[question]
