"""Attacks from inside a sandbox on its host, on its limits and on the next sandbox, on both backends.

After each the host is as before: no process, mount, control group or file more, and a fresh sandbox is clean.
"""

import asyncio
import os
import resource
import socket
import threading
import time
from pathlib import Path

import pytest

from environments.sandbox.interface import SandboxError
from tests.environments.sandbox.conftest import SMALL
from tests.environments.sandbox.host import Host

REPOSITORY = Path(__file__).resolve().parents[3]
LOOKS = 40  # in a row without more processes: there are as many as there will be


@pytest.fixture
def host(tmp_path_factory, backend, build):
    """The host before the attack; afterwards it must be unharmed, and the next sandbox clean."""
    image = build()
    folder = tmp_path_factory.mktemp("host")
    for above in (folder, *folder.parents[:2]):
        above.chmod(0o755)
    host = Host(folder / "secret")
    yield host
    host.assert_unharmed()

    async def look():
        async with await backend.start(image, SMALL) as sandbox:
            return await sandbox.run(
                "ls -A /tmp /dev/shm /app; cat /proc/[0-9]*/cmdline | grep -ac 'sl[e]ep'; id -u"
            )

    result = asyncio.run(look())
    assert "planted" not in result.output and result.output.endswith("0\n0\n"), result


def attack(inside, *commands, seconds=60.0, limits=SMALL):
    """The results of commands one after another in one sandbox."""

    async def act(sandbox):
        return [await sandbox.run(command, seconds=seconds) for command in commands]

    return inside(act, limits=limits)


READ = [
    "cat {secret}",
    "cat /proc/1/root{secret}",
    "cat /proc/*/root{secret} /proc/*/cwd{secret}",
    "cat /tmp/../../../../..{secret}",
    "ls -R {repository} /root /home /work /var/lib 2>&1 | grep -F sandbox",
    "python3 -c 'import os; os.chroot(\"/tmp\"); os.chdir(\"../..\"); print(open(\".{secret}\").read())'",
    "cat /proc/[0-9]*/environ | tr '\\0' '\\n' | grep -F {word}",
    "grep -rhaF {word} /app /etc /home /media /mnt /opt /root /run /srv /tmp /var 2>/dev/null",
]  # fmt: skip


@pytest.mark.parametrize("command", READ)
def test_nothing_of_the_host_is_read(inside, host, monkeypatch, command):
    monkeypatch.setenv("A_SECRET_OF_THE_HOST", host.word)
    command = command.format(secret=host.secret, repository=REPOSITORY, word=host.word[:16])
    result = attack(inside, command)[0]
    assert not result.timed_out
    assert host.word not in result.output and "test_red_team" not in result.output


def test_there_are_no_passwords_and_no_home_of_the_host(inside, host):
    shadow, home = attack(inside, "cat /etc/shadow | cut -d: -f2 | grep -v '^[*!]*$'", "ls -A /root /home")
    assert shadow.output in ("", "cat: /etc/shadow: No such file or directory\n")
    assert set(home.output.split()) <= {"/home:", "/root:", ".bashrc", ".profile", ".wget-hsts"}


def test_nothing_of_the_host_is_written(inside, host):
    attack(
        inside,
        f"mkdir -p {host.secret.parent}; echo planted > {host.secret}; echo planted > /usr/bin/planted",
        "chmod 000 /dev/null /dev/zero /dev/tty; rm -f /dev/null; mknod /dev/planted b 8 0",
        "echo planted > /proc/sys/kernel/core_pattern; echo 1 > /proc/sys/kernel/sysrq",
        "for f in /proc/sys/kernel/* /proc/sys/vm/*; do [ -w $f ] && echo 0 > $f; done",
        "rm -rf /etc /usr/lib/os-release /usr/bin/env /bin /lib",
    )  # fmt: skip
    assert not Path("/usr/bin/planted").exists() and Path("/usr/bin/env").exists()


GAIN = {
    "mount": "mount -t tmpfs planted /mnt && echo GAINED",
    "bind": "mount --bind /usr /mnt && echo GAINED",
    "remount": "mount -o remount,rw / && mount -o remount,rw /proc/sys && echo GAINED",
    "umount": "umount /proc && echo GAINED",
    "namespace": "unshare -Ur true && echo GAINED",
    "mount namespace": "unshare -m true && echo GAINED",
    "enter": "nsenter -t 1 -a true && echo GAINED",
    "device": "mknod /tmp/disk b 8 0 && echo GAINED",
    "raw socket": "python3 -c 'from socket import *; socket(AF_INET, SOCK_RAW, 1)' && echo GAINED",
    "packet socket": "python3 -c 'from socket import *; socket(AF_PACKET, SOCK_RAW, 3)' && echo GAINED",
    "priority": "nice -n -5 true 2>&1 | grep -q 'cannot set' || echo GAINED",
    "clock": "date -s 2001-01-01 >/dev/null && echo GAINED",
    "host name": "hostname planted && echo GAINED",
    "another user": "python3 -c 'import os; os.setuid(12345)' && echo GAINED",
    "limits": "ulimit -H -n 10000000 && echo GAINED",
    "messages of the kernel": "[ -c /dev/kmsg ] && echo x > /dev/kmsg && echo GAINED",
    "control groups": "find / -name cgroup.procs -writable 2>/dev/null | grep . && echo GAINED",
    "read memory of the kernel": "head -c 10 /proc/kcore /dev/mem 2>/dev/null | grep -qa ELF && echo GAINED",
    "capabilities": "grep CapEff /proc/self/status | grep -q '0000000000000000$' || echo GAINED",
    "regain": (
        "cp /bin/bash /tmp/b; chmod 6755 /tmp/b; "
        "/tmp/b -pc 'grep CapEff: /proc/self/status' | grep -q '0000000000000000$' || echo GAINED"
    ),
    "new privileges": "grep -q 'NoNewPrivs:.1' /proc/self/status || echo GAINED",
}  # fmt: skip


def test_no_privilege_is_gained(inside, host):
    names = list(GAIN)
    results = attack(inside, *(GAIN[name] for name in names))
    assert [name for name, result in zip(names, results, strict=True) if "GAINED" in result.output] == []


def test_the_network_cannot_be_reached(inside, host):
    """Neither a listener of the host, by any of its addresses or by name, nor an abstract socket."""
    reached = []
    with socket.create_server(("0.0.0.0", 0)) as server, socket.socket(socket.AF_UNIX) as local:
        local.bind(f"\0{host.word}")
        local.listen()
        accepting = [server, local]
        for listener in accepting:
            listener.settimeout(0.2)
        port = server.getsockname()[1]
        own = {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)}
        addresses = sorted(own | {"127.0.0.1", "172.17.0.1", "1.1.1.1", "169.254.169.254"})
        program = (
            "import socket\n"
            f"for address in {addresses!r}:\n"
            "    try: socket.create_connection((address, %d), 2); print('REACHED', address)\n"
            "    except OSError: pass\n"
            f"try: socket.socket(socket.AF_UNIX).connect('\\0{host.word}'); print('REACHED local')\n"
            "except OSError: pass\n"
            "try: print('REACHED', socket.getaddrinfo('pypi.org', 443))\n"
            "except OSError: pass\n"
            "print('tried')\n"
        ) % port

        async def act(sandbox):
            await sandbox.write("/tmp/connect.py", program.encode())
            return await sandbox.run("python3 /tmp/connect.py")

        result = inside(act)
        for listener in accepting:
            try:
                reached.append(listener.accept())
            except TimeoutError:
                pass
    assert result.output == "tried\n" and reached == []


def test_inside_the_own_loopback_works(inside, host):
    program = (
        "import socket, threading; s = socket.create_server(('127.0.0.1', 8080));"
        "threading.Thread(target=lambda: s.accept()[0].sendall(b'hello')).start();"
        "print(socket.create_connection(('localhost', 8080)).recv(9))"
    )
    assert attack(inside, f'python3 -c "{program}"')[0].output == "b'hello'\n"


def test_a_fork_bomb_stays_inside(inside, host):
    bomb = f"f() {{ sleep {host.seconds} & f | f & }}; for i in {{1..50}}; do f; done; sleep 1000"

    async def act(sandbox):
        attack = asyncio.create_task(sandbox.run(bomb, seconds=900))
        most, looks = 0, 0
        while not most or looks < LOOKS:
            await asyncio.sleep(0.05)
            alive = len(host.processes())
            most, looks = max(most, alive), 0 if alive > most else looks + 1
        await sandbox.end_processes()
        await attack
        return most, await sandbox.run("echo calm")

    most, after = inside(act)
    assert 0 < most <= SMALL.processes + 8
    assert (after.returncode, after.output) == (0, "calm\n")


HOGS = {
    "one process": "python3 -c 'x = bytearray(1_500_000_000); print(\"GAINED\")'",
    "many processes": (  # those that live once each has its memory or has ended
        "hold='import sys, time; x = bytearray(80_000_000); open(sys.argv[1], \"w\"); time.sleep(1000)'; "
        "for i in {1..8}; do python3 -c \"$hold\" /tmp/holds$i & all[i]=$!; done; "
        "for i in {1..8}; do until [ -e /tmp/holds$i ] || ! kill -0 ${all[i]}; do sleep 0.1; done; done; "
        "for i in {1..8}; do kill -0 ${all[i]} && echo held; done; kill -9 ${all[@]}"
    ),
    "memory without a name": (
        "python3 -c 'import os; f = os.memfd_create(\"x\")\n"
        "for _ in range(1500): os.write(f, bytes(1_000_000))\nprint(\"GAINED\")'"
    ),
    "shared memory": "head -c 1500M /dev/zero > /dev/shm/planted && echo GAINED",
}  # fmt: skip


@pytest.mark.parametrize("hog", HOGS)
def test_memory_beyond_the_limit_is_refused(inside, host, hog):
    async def act(sandbox):
        result = await sandbox.run(HOGS[hog], seconds=60)
        await sandbox.end_processes()
        return result, await sandbox.run("echo calm")

    result, after = inside(act)
    assert (
        "GAINED" not in result.output and result.output.splitlines().count("held") * 80 < 2 * SMALL.memory_mb
    )
    assert after.output == "calm\n"


@pytest.mark.parametrize("place", ["/tmp", "/dev/shm", "/app"])
def test_the_disk_cannot_be_filled(inside, host, place):
    """The disk is full soon, or a watch ends everything soon afterwards: nothing holds 100 MB for long."""

    async def act(sandbox):
        filling = await sandbox.run(
            f"cd {place}; for i in {{1..20}}; do head -c 5M /dev/zero > planted$i || break; done; "
            "written=$(du -sm . | cut -f1); [ $written -lt 100 ] || sleep 1000; echo $written",
            seconds=900,
        )
        await sandbox.end_processes()
        return filling, await sandbox.run(f"rm -rf {place}/*; echo calm > {place}/note; cat {place}/note")

    filling, after = inside(act)
    assert not filling.timed_out
    if filling.returncode != 137:
        assert int(filling.output.split()[-1]) <= 3 * SMALL.disk_mb, filling
    assert after.output == "calm\n"


@pytest.mark.parametrize(
    "command",
    ["yes", "cat /dev/zero", "x=$(seq 2000); while :; do echo $x >&2; done", "yes & yes & yes & wait"],
)
def test_endless_output_neither_blocks_nor_fills_memory(inside, host, command):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.monotonic()
    result = attack(inside, command, seconds=1)[0]
    assert result.timed_out and len(result.output) < SMALL.output_bytes + 200 and result.dropped_bytes > 0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kB
    assert time.monotonic() - began < 120


def test_a_flood_in_the_background_does_not_stop_the_loop(inside, host):
    async def act(sandbox):
        await sandbox.run("for i in 1 2 3; do yes & done; echo started")
        turns, began = 0, time.monotonic()
        while time.monotonic() - began < 1:
            await asyncio.sleep(0)
            turns += 1
        return turns

    assert inside(act) > 100


def test_nothing_outlives_the_sandbox(inside, host):
    detached = (
        f"setsid nohup sleep {host.seconds} >/dev/null 2>&1 & "
        f"(setsid sh -c 'trap \"\" TERM HUP INT QUIT; while :; do sleep {host.seconds}; done' &) ; "
        f"python3 -c 'import os, time\n"
        f"if os.fork() == 0:\n os.setsid()\n if os.fork() == 0:\n"
        f'  os.closerange(0, 99); os.execvp("sleep", ["sleep", "{host.seconds}"])\n\' ; true'
    )

    async def act(sandbox):
        await sandbox.run(detached)
        running = len(host.processes())
        await sandbox.end_processes()
        ended = len(host.processes())
        await sandbox.run(detached)
        return running, ended

    running, ended = inside(act)
    assert running >= 3 and ended == 0


@pytest.mark.parametrize(
    "command", ["kill -9 -1", "kill -9 1", "kill -9 $(ls /proc | grep '^[0-9]')", "kill -9 $PPID 2 3 4"]
)
def test_killing_the_holder_harms_the_attacker_alone(inside, host, command):
    async def act(sandbox):
        await sandbox.write("/app/kept", b"kept")
        await sandbox.run(f"sleep {host.seconds} & {command}; sleep 0.2")
        return await sandbox.run("cat /app/kept"), await sandbox.read("/app/kept")

    after, content = inside(act)
    assert after.output == "kept" and content == b"kept"


def test_nothing_that_can_be_killed_inside_holds_the_rest(inside, host):
    daemon = f"setsid sh -c 'echo $$ > /app/kept; exec sleep {host.seconds} >/dev/null 2>&1' &"

    async def act(sandbox):
        await sandbox.run(f"({daemon}); until [ -s /app/kept ]; do sleep 0.01; done")
        await sandbox.run("kill -9 $(ls /proc | grep '^[0-9]' | grep -vxf /app/kept)")
        return await sandbox.run("tr '\\0' ' ' < /proc/$(cat /app/kept)/cmdline")

    assert host.seconds in inside(act).output


def test_links_lead_nowhere(inside, host, tmp_path):
    source = tmp_path / "upload"
    source.mkdir()
    (source / "file").write_text("uploaded")
    outside = host.secret.parent

    async def act(sandbox):
        await sandbox.run(
            f"mkdir /links; cd /links; ln -s {host.secret} file; ln -s {outside} folder; ln -s / root; "
            f"ln -s ../../../../../../../../..{host.secret} up; ln -s /proc/self/root{host.secret} magic; "
            f"ln -s /proc/1/root proc; ln -s {outside} target"
        )
        for name in ("file", "folder/secret", f"root{host.secret}", "up", "magic", f"proc{host.secret}"):
            try:
                assert await sandbox.read(f"/links/{name}") != host.word.encode()
            except FileNotFoundError:
                pass
            try:
                await sandbox.write(f"/links/{name}", b"planted")
            except SandboxError:
                pass
        await sandbox.upload(source, "/links/target")
        await sandbox.upload(source, "/links/folder/below")

    inside(act)
    assert sorted(os.listdir(outside)) == ["secret"]


def test_links_that_change_under_way_lead_nowhere(backend, inside, host):
    times = 100 if backend.name == "bubblewrap" else 25  # Docker resolves paths itself, and is slow at it

    async def act(sandbox):
        await sandbox.run(
            "mkdir -p /race/real; (while :; do mv /race/real /race/old; "
            f"ln -s {host.secret.parent} /race/real; rm /race/real; "
            "mv /race/old /race/real; done) >/dev/null 2>&1 &"
        )
        for _ in range(times):
            try:
                await sandbox.write("/race/real/secret", b"planted")
                assert await sandbox.read("/race/real/secret") != host.word.encode()
            except (FileNotFoundError, SandboxError):
                pass

    inside(act)
    assert os.listdir(host.secret.parent) == ["secret"]


def test_neither_modes_nor_depth_hide_anything_from_a_verifier(inside, host, tmp_path):
    (tmp_path / "upload").mkdir()
    (tmp_path / "upload/test.sh").write_text("echo test")
    deep = "import os\nfor _ in range(3000): os.mkdir('d'); os.chdir('d')\nopen('planted', 'w')"

    async def act(sandbox):
        await sandbox.run(
            "mkdir -p /logs/verifier /tests/closed /app/made && echo 1 > /logs/verifier/reward.txt && "
            f'echo made > /app/made/file; cd /tests && python3 -c "{deep}"; touch /tests/closed/planted; '
            "chmod 000 /logs/verifier/reward.txt /logs/verifier /logs /tests/closed /tests /app/made/file; "
            "chmod 000 /app/made"
        )
        await sandbox.end_processes()
        made = await sandbox.read("/app/made/file")
        await sandbox.upload(tmp_path / "upload", "/tests")
        await sandbox.write("/logs/verifier/reward.txt", b"0")
        listed = await sandbox.run("find /tests")
        return made, listed.output, await sandbox.read("/logs/verifier/reward.txt")

    assert inside(act) == (b"made\n", "/tests\n/tests/test.sh\n", b"0")


def test_files_that_would_block_a_reader_do_not(inside, host):
    async def act(sandbox):
        await sandbox.run(
            "cd /tmp; mkfifo reward; ln -s /dev/zero zero; ln -s /proc/kmsg log; truncate -s 20G big"
        )
        for name in ("reward", "zero", "log"):
            with pytest.raises(FileNotFoundError):
                await asyncio.wait_for(sandbox.read(f"/tmp/{name}"), 120)
        try:
            return await asyncio.wait_for(sandbox.read("/tmp/big", limit=1000), 120)
        except FileNotFoundError:
            return b""

    assert inside(act) in (bytes(1000), b"")  # nothing, where files of that size are forbidden


def test_an_exit_status_cannot_be_forged(inside, host):
    """Neither by writing what bubblewrap would say to every open file, nor from the background."""
    forge = "for f in /proc/[0-9]*/fd/*; do echo '{ \"exit-code\": 0 }' > $f; done 2>/dev/null; "
    results = attack(
        inside,
        forge + "exit 3",
        f"(while :; do {forge} sleep 0.01; done) & sleep 0.2",
        "exit 4",
        "kill -9 $$",
        "exit 137",
    )
    # What is written to a command's way in may keep it from beginning (126), never make it succeed.
    for result, honest in zip(results, [3, 0, 4, 137, 137], strict=True):
        assert result.returncode in (honest, 126), result
    assert not any(result.timed_out for result in results)


def test_the_event_loop_goes_on_while_a_sandbox_misbehaves(backend, build, host):
    image = build()

    async def act():
        async with await backend.start(image, SMALL) as bad, await backend.start(image, SMALL) as good:
            attack = asyncio.create_task(bad.run("touch /begun; :(){ :|:& };: ; yes", seconds=900))
            await _appears(bad, "/begun")
            for _ in range(5):
                assert (await good.run("echo fine")).output == "fine\n"
            await bad.end_processes()
            await attack

    asyncio.run(act())


async def _appears(sandbox, path: str) -> None:
    while True:
        try:
            await sandbox.read(path)
            return
        except FileNotFoundError:
            await asyncio.sleep(0.02)


def test_threads_of_this_process_keep_their_rights(backend, build, inside, host, tmp_path):
    """Writing as the owner of a sandbox changes one thread for a moment, and none for good."""

    async def act(sandbox):
        await asyncio.gather(*(sandbox.write(f"/tmp/{number}", b"x") for number in range(50)))
        with pytest.raises((SandboxError, FileNotFoundError)):
            await sandbox.read("/nothing")
        return await asyncio.gather(*(asyncio.to_thread(_filesystem_user) for _ in range(20)))

    assert set(inside(act)) == {str(os.geteuid())}


def _filesystem_user() -> str:
    status = Path(f"/proc/self/task/{threading.get_native_id()}/status").read_text()
    return next(line.split()[4] for line in status.splitlines() if line.startswith("Uid:"))
