"""The namespaces of one sandbox, from outside: a holder, a first process for each phase, the way in.

The holder is a shell of the host in user, mount and IPC namespaces of its own. In these it mounts a tmpfs
(the disk limit; gone with the holder, nothing to clean up) and the overlay of the image's layers over it. For
each phase it starts a first process, a shell in fresh PID and network namespaces with nothing but a read-only
/usr, that does nothing but reap. Being number 1 it can't be killed from inside, and nothing else that runs
inside holds the phase. A command is a bubblewrap of its own that joins them and sees the
overlay.

No program of the sandbox ever runs with a capability, and no user namespace can be made inside: what could
mount, trace or raise limits is done by the host's own bubblewrap before the first instruction of the sandbox.
Everything dies with us: the holder by the parent-death signal and the end of its standard input, the rest by
bubblewrap's --die-with-parent.

When we are root the sandbox belongs to a user number that owns nothing else; no file, signal or sysctl of
the host's root is ever reachable, not even through /dev or /proc.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT_OWNER = 61_000  # Debian and systemd give this number to nobody

# $1 size in MB, $2 inodes, $3 lower folders, $4 upper and $5 work folder (empty: in the tmpfs), then the
# first process's arguments. Relative paths start in the layers' folder, which the sandbox's user may not
# reach by name.
HOLDER = """\
size=$1 inodes=$2 lower=$3 upper=$4 work=$5
shift 5
start() {
  "$@" --json-status-fd 3 -- /usr/bin/bash -c 'while read -r; do :; done' 3>&1 >/dev/null 2>&1 <&4 4<&- &
}
start "$@"
mount -t tmpfs -o "size=${size}m,nr_inodes=$inodes,mode=755" sandbox /tmp &&
mkdir /tmp/upper /tmp/work /tmp/root /tmp/shm &&
mount -t overlay -o "userxattr,lowerdir=$lower,upperdir=${upper:-/tmp/upper},workdir=${work:-/tmp/work}" \
  sandbox /tmp/root &&
echo 0 > /proc/sys/user/max_user_namespaces && echo ready || exit 1
while read -r _; do start "$@"; done
wait
"""
ROOT = "/tmp/root"  # in the holder's mount namespace

# Join control groups ("$@" up to --), then become the program behind them.
JOIN = 'while [ "$1" != -- ]; do echo 0 > "$1" || exit 125; shift; done; shift; exec "$@"'
# A holder's standard error comes as the lifeline, a pipe that ends when we die, and is kept as descriptor 4.
HOLD = f"exec 4<&2 2>&1; {JOIN}"
# A command ends before what holds the sandbox does, where memory is short.
ENTER = f"echo 500 > /proc/self/oom_score_adj; {JOIN}"


def owner() -> int:
    """The user number that owns everything inside: we, or where we are root one without any right."""
    return os.geteuid() or ROOT_OWNER


def as_owner() -> list[str]:
    if os.geteuid():
        return []
    number = str(ROOT_OWNER)
    return ["setpriv", "--reuid", number, "--regid", number, "--clear-groups", "--"]


def holder(
    disk_mb: int, lower: list[str], draft: str | None, network: bool, groups: Sequence[str] = ()
) -> list[str]:
    """``lower``: layers, the topmost first; ``draft``: where what is written is kept, else in a tmpfs."""
    upper, work = (f"{draft}/tree", f"{draft}/work") if draft else ("", "")
    inodes = max(4096, disk_mb * 256)
    return [
        "sh", "-c", HOLD, "hold", *groups, "--", *as_owner(),
        "unshare", "--user", "--map-root-user", "--mount", "--ipc", "--",
        "setpriv", "--pdeathsig", "KILL", "sh", "-c", HOLDER, "holder",
        str(disk_mb), str(inodes), ":".join(f"{key}/tree" for key in lower), upper, work,
        *_first(network),
    ]  # fmt: skip


def _first(network: bool) -> list[str]:
    """The first process of a phase. It sees the host's /usr without /usr/local, for its own program alone."""
    links = [name for name in ("lib", "lib64", "lib32") if Path("/", name).is_symlink()]
    return [
        "/usr/bin/bwrap", "--unshare-pid", "--as-pid-1", "--unshare-uts", "--unshare-cgroup-try",
        *([] if network else ["--unshare-net"]),
        "--die-with-parent", "--new-session", "--cap-drop", "ALL", "--clearenv",
        "--ro-bind", "/usr", "/usr", "--tmpfs", "/usr/local", "--remount-ro", "/usr/local",
        *(part for name in links for part in ("--symlink", f"usr/{name}", f"/{name}")),
        "--remount-ro", "/",
    ]  # fmt: skip


def command(
    argv: list[str],
    *,
    holder: int,
    pid_namespace: int,
    net_namespace: int | None,
    status: int,
    cwd: str,
    environment: Mapping[str, str],
    binds: Mapping[str, str],
    groups: list[str],
    limits: list[str],
) -> list[str]:
    """Host program and arguments that run ``argv`` inside. Numbers but ``holder`` are descriptors to pass on;
    ``binds`` host paths seen read-only; ``groups`` files of control groups to join; ``limits`` prlimit's
    options. There is no --die-with-parent: with --pidns its parent is a process that ends at once, and the
    first process takes the command with it in any case.
    """
    net = [] if net_namespace is None else [f"--net=/proc/self/fd/{net_namespace}"]
    return [
        "sh", "-c", ENTER, "enter", *groups, "--", *as_owner(),
        "nsenter", "--target", str(holder), "--user", "--preserve-credentials", "--mount", "--ipc",
        *net, "--",
        *(["prlimit", *limits, "--"] if limits else []),
        "/usr/bin/bwrap", "--pidns", str(pid_namespace), "--unshare-uts", "--hostname", "sandbox",
        "--unshare-cgroup-try", "--new-session", "--cap-drop", "ALL", "--clearenv",
        *(part for name, value in environment.items() for part in ("--setenv", name, value)),
        "--bind", ROOT, "/", "--ro-bind", "/usr", "/usr", "--bind", f"{ROOT}/usr/local", "/usr/local",
        "--proc", "/proc", "--dev", "/dev", "--bind", "/tmp/shm", "/dev/shm", "--remount-ro", "/dev",
        *(part for source, target in binds.items() for part in ("--ro-bind", source, target)),
        "--json-status-fd", str(status), "--chdir", cwd, "--", *argv,
    ]  # fmt: skip
