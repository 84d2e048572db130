"""A snapshot of a host by ssh, with nothing installed there: our scripts go along, and are gone with the connection.

scripts/lib/pull.sh is what runs there, and says what each line of the conversation means.
"""

from __future__ import annotations

import gzip
import io
import tarfile
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from site_builder.core.resources import scripts_folder
from site_builder.remote import ssh, ssh_fallback
from site_builder.remote.ssh_config import last_line
from site_builder.remote.ssh_keys import TIMEOUTS, left
from site_builder.remote.target_syntax import Target
from site_builder.remote.writer import FILES, NotPulled
from site_builder.snapshots.store import LIMIT

if TYPE_CHECKING:
    import paramiko  # noqa: TID251 for mypy

MARK = b"gpuboard-pull "
PIECE = 65536
# A login may print a greeting; nobody prints more.
MOST_NOISE = 65536
LONGEST_LINE = 200
MOST_SAID = 4096
# How many of the numbers of an answer are no sizes, by its kind and how many there are.
CODES = {("files", 2): 1, ("files", 6): 1, ("plain", 7): 3}
# What one question to nvidia-smi may take on the host. There are two, and where an earlier one hangs, each waits three
# seconds longer: all that must fit into the time limit of a pull.
LONGEST_QUESTION = 10
# After so many seconds of silence beyond a round, the host takes the connection for dead and clears up.
SILENCE = 60


class Odd(Exception):
    """What a host said that no host of ours says."""


class OverSsh:
    """A host, and the conversation with it that stays open between rounds."""

    def __init__(self, target: Target, every: int, limit: int, config: Path | None = None) -> None:
        """Nothing is asked yet; `config` is another configuration of ssh than the person's own."""
        self.target = target
        self.config = config
        self.every = every
        self.limit = limit
        self.connection: ssh.Connection | None = None
        self.talk: Talk | None = None
        self.closed = False

    def close(self) -> None:
        """End it under whoever waits for it; what runs on the host reads the end, and clears up."""
        self.closed = True
        if self.connection:
            self.connection.close()

    def fetch(self, deadline: float) -> dict[str, bytes]:
        """Ask for a snapshot, and take it."""
        name = self.target.name
        try:
            talk = self.talk or self.open(deadline)
            talk.send(b"go\n", deadline)
            return self.snapshot(talk, deadline)
        except ssh.SshError as why:
            raise NotPulled(str(why)) from None
        except TIMEOUTS:
            message = f"{name} sent no whole snapshot within {self.limit} s; is it very busy? --limit allows more"
            raise NotPulled(message) from None
        except Odd as what:
            raise NotPulled(f"{name} does not answer as a shell does: {last_line(str(what))}") from None
        except OSError as error:
            raise NotPulled(f"the connection to {name} was cut ({error.strerror or type(error).__name__})") from None

    def open(self, deadline: float) -> Talk:
        """Connect, and hand over what is to be done."""
        self.connection = ssh.connect(self.target.address, left(deadline), self.config)
        if self.closed:
            self.connection.close()
            raise TimeoutError
        try:
            channel = self.connection.transport.open_session(timeout=left(deadline))
            channel.settimeout(left(deadline))
            channel.exec_command("exec sh")
        except TIMEOUTS:
            raise
        except Exception as error:  # of paramiko, which is not imported here
            raise Odd(last_line(str(error) or type(error).__name__)) from None
        talk = Talk(channel)
        talk.send(first_words(self.target.name, self.every, self.limit), deadline)
        words = talk.mark(deadline, MOST_NOISE)
        if words == ["scripts"]:
            packed = scripts()
            talk.send(b"%d\n%b" % (len(packed), packed), deadline)
            words = talk.mark(deadline, MOST_NOISE)
        if words != ["ready"]:
            raise Odd(" ".join(words))
        self.talk = talk
        return talk

    def snapshot(self, talk: Talk, deadline: float) -> dict[str, bytes]:
        """The answer to one `go`."""
        kind, *words = talk.mark(deadline, 0)
        numbers = [int(word) for word in words if word.isdecimal() and len(word) < 12]
        codes = CODES.get((kind, len(words)), 0)
        if not codes or len(numbers) != len(words):
            raise Odd(" ".join([kind, *words]))
        if max(numbers[codes:]) > LIMIT:
            message = f"{self.target.name} has files of more than the {LIMIT >> 20} MiB that are read"
            raise NotPulled(message)
        texts = [talk.take(size, deadline) for size in numbers[codes:]]
        if kind == "plain":
            return ssh_fallback.files(self.target.name, self.every, numbers[:codes], texts)
        if len(texts) < len(FILES):
            said = last_line(texts[0].decode("utf-8", "replace") or f"exit {numbers[0]}")
            raise NotPulled(f"no snapshot could be taken on {self.target.name}: {said}")
        return dict(zip(FILES, texts))


class Talk:
    """What is said over one channel: lines with our mark, and so many bytes behind them."""

    def __init__(self, channel: paramiko.Channel) -> None:
        """Nothing was heard yet."""
        self.channel = channel
        self.heard = bytearray()
        self.noise = b""  # the last line that was not for us

    def send(self, data: bytes, deadline: float) -> None:
        """All of it; where nobody takes it any more, what was said before counts more than that."""
        view = memoryview(data)
        while view:
            self.channel.settimeout(left(deadline))
            try:
                view = view[self.channel.send(bytes(view[:PIECE])) :]
            except TIMEOUTS:
                raise
            except OSError:
                with suppress(Odd, OSError):
                    self.more(deadline)
                words = self.last_words()
                if not words:
                    raise
                raise Odd(words) from None

    def more(self, deadline: float) -> None:
        """Wait for what comes next."""
        self.channel.settimeout(left(deadline))
        piece = self.channel.recv(PIECE)
        if not piece:
            raise Odd(self.last_words())
        self.heard += piece

    def mark(self, deadline: float, noise: int) -> list[str]:
        """The words of the next line that is for us; before the first of all a login may print what it likes."""
        while True:
            while b"\n" not in self.heard:
                if len(self.heard) > max(noise, LONGEST_LINE):
                    raise Odd(self.last_words())
                self.more(deadline)
            end = self.heard.index(b"\n")
            line = bytes(self.heard[:end])
            del self.heard[: end + 1]
            if line.startswith(MARK) and len(line) <= LONGEST_LINE:
                return line[len(MARK) :].decode("ascii", "replace").split() or [""]
            self.noise = line
            noise -= len(line) + 1
            if noise <= 0:
                raise Odd(self.last_words())

    def take(self, size: int, deadline: float) -> bytes:
        """So many bytes."""
        while len(self.heard) < size:
            self.more(deadline)
        found = bytes(self.heard[:size])
        del self.heard[:size]
        return found

    def last_words(self) -> str:
        """What came on stderr, or else what was heard last, fit to be shown."""
        said = (
            self.channel.recv_stderr(MOST_SAID) if self.channel.recv_stderr_ready() else bytes(self.heard) or self.noise
        )
        return last_line(said.decode("utf-8", "replace"))


def first_words(name: str, every: int, limit: int) -> bytes:
    """What the shell there reads: its variables, of which none needs quotes, and what it does."""
    question = min(LONGEST_QUESTION, max(1, (limit - 9) // 2))
    intervals = " ".join(f"GPUBOARD_{task}_EVERY={every}" for task in ("GPUS", "PROCESSES", "PS"))
    settings = f"export HOST={name} GPUBOARD_LIMIT={question} {intervals}\npatience={every + limit + SILENCE}\n"
    return settings.encode() + (scripts_folder() / "lib/pull.sh").read_bytes()


@lru_cache(maxsize=1)
def scripts() -> bytes:
    """All that gpu-run.sh needs, packed the same whoever packs it."""
    packed = io.BytesIO()
    folder = scripts_folder()
    with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as squeezed, tarfile.open(fileobj=squeezed, mode="w") as tar:
        for path in [folder / "gpu-run.sh", *sorted((folder / "lib").iterdir())]:
            if path.suffix in {".sh", ".awk"}:
                add(tar, path, str(path.relative_to(folder)))
    return packed.getvalue()


def add(tar: tarfile.TarFile, path: Path, name: str) -> None:
    """One file, that can be run."""
    content = path.read_bytes()
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), 0o755
    tar.addfile(entry, io.BytesIO(content))
