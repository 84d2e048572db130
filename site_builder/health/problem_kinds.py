"""The kinds of problems that a GPU can have: how grave each is, what is said of it, and what to do about it."""

from __future__ import annotations

from typing import NamedTuple

GRAVE, LOOK, TOLD = WEIGHTS = "grave", "look", "told"
# What resets a GPU, and what its driver's messages in dmesg have in them.
RESETS = {"nvidia": "as root: nvidia-smi --gpu-reset -i {}", "amd": "as root: amd-smi reset --gpureset --gpu {}"}
MESSAGES = {"nvidia": "Xid", "amd": "amdgpu"}


class Kind(NamedTuple):
    """What a problem is: `what` has room for values, `advice` for what resets the GPU, its number, and a word."""

    weight: str
    what: str
    advice: str
    avoid: bool = False


COOLING = "look at its fans, at dust, and at the air around the host"
KINDS: dict[str, Kind] = {
    "lost": Kind(
        GRAVE,
        "the driver cannot reach it: {0}",
        "look for {log} in dmesg, then reset it ({reset}) or reboot the host",
        avoid=True,
    ),
    "off-bus": Kind(
        GRAVE,
        "it fell off the bus: {0}",
        "look for {log} in dmesg, then reboot the host; if it comes again, look at its power, its seat and its cooling",
        avoid=True,
    ),
    "reset": Kind(
        GRAVE,
        "it cannot be used until it is reset",
        "end what runs on it and reset it ({reset}); where that is refused, reboot the host",
        avoid=True,
    ),
    "power-cable": Kind(
        GRAVE,
        "it has too little power: {0}",
        "switch the host off and look that all of its power cables are plugged in",
        avoid=True,
    ),
    "interrupts": Kind(
        GRAVE,
        "its interrupts do not arrive: {0}",
        "look for NVRM and irq in dmesg, update the firmware of the mainboard, then reboot the host",
        avoid=True,
    ),
    "recovery": Kind(
        GRAVE,
        "the driver says that it needs to be recovered: {0}",
        "do what it says once nobody is on it, and look for {log} in dmesg",
        avoid=True,
    ),
    "unreadable": Kind(
        GRAVE,
        "{0}",
        "look for {log} in dmesg; if it stays so, end what runs on it and reset it ({reset}), or reboot the host",
        avoid=True,
    ),
    "ecc-uncorrected": Kind(
        GRAVE,
        "{0} since the driver was loaded",
        "what was computed on it may be wrong: end what runs on it and reset it ({reset}); if it comes "
        "again, have it replaced",
        avoid=True,
    ),
    "repair-failed": Kind(
        GRAVE,
        "a repair of its memory failed",
        "have it replaced: no spare memory is left for the next one",
        avoid=True,
    ),
    "repair-pending": Kind(
        LOOK,
        "a repair of its memory waits for a reset of the GPU",
        "reset it when nobody is on it ({reset}); until then it may be used",
    ),
    "heat": Kind(
        LOOK,
        "slowed by heat{0}",
        COOLING,
    ),
    "hot": Kind(
        LOOK,
        "too warm: at its limit of {0} °C",
        COOLING,
    ),
    "power-brake": Kind(
        LOOK,
        "slowed by the power brake of the hardware",
        "look at the power supplies of the host: one has failed, or all together are too weak",
    ),
    "slowdown": Kind(
        LOOK,
        "slowed by the hardware, which does not say why",
        "look at its power cables, at the power supplies, and at its fans",
    ),
    "fan": Kind(
        LOOK,
        "{0}",
        "look whether its fan turns and is plugged in, before the GPU overheats",
    ),
    "power": Kind(
        LOOK,
        "its power cannot be read: {0}",
        "it can be used; some cards never tell it. If it was told before, look for {log} in dmesg",
    ),
    "inforom": Kind(
        LOOK,
        "its infoROM is corrupted",
        "it works, but may forget what it keeps there, such as its ECC mode and its counts: have its maker "
        "restore it, or have it replaced",
    ),
    "said": Kind(
        LOOK,
        "its driver says of it: {0}",
        "look for {log} in dmesg",
    ),
    "link": Kind(
        LOOK,
        "its PCIe link has {0} of {1} lanes",
        "data take longer to get there: look whether it sits well, and in a slot that has them all; where "
        "the mainboard gives it no more, nothing is wrong",
    ),
    "ecc-corrected": Kind(
        TOLD,
        "{0} corrected ECC errors since the driver was loaded",
        "they did no harm; if uncorrected ones follow, have it replaced",
    ),
    "ecc-before": Kind(
        TOLD,
        "{0} in its life{1}",
        "nothing is to be done now; if there are more every few weeks, have it replaced",
    ),
    "persistence": Kind(
        TOLD,
        "persistence mode is off: the driver starts anew at each call{0}",
        "as root: nvidia-smi -pm 1, or better the service nvidia-persistenced, which lasts over a reboot",
    ),
    "prohibited": Kind(
        TOLD,
        "its compute mode is Prohibited: no program can use it",
        "if that is not meant, as root: nvidia-smi -i {gpu} -c DEFAULT",
        avoid=True,
    ),
}
# What a driver says of a GPU, and which kind that is; the first that is in its words counts.
SAYINGS = (
    ("requires reset", "reset"),
    ("reset required", "reset"),
    ("requires a reset", "reset"),
    ("external power", "power-cable"),
    ("power cable", "power-cable"),
    ("interrupt", "interrupts"),
    ("inforom", "inforom"),
    ("lost", "off-bus"),
    ("fallen off", "off-bus"),
    ("fell off", "off-bus"),
    ("device handle", "lost"),
)
RESET_IT = KINDS["reset"].advice
# What to do by the word of the driver, the first that is in it.
ACTIONS = (
    ("drain", "give it nothing new and end what runs on it and exchanges data with it, then reset it ({reset})"),
    ("reboot", "reboot the host"),
    ("reset", RESET_IT),
)
# Exit codes of nvidia-smi that are about a GPU, where its words do not say which.
CODES = {8: "power-cable", 10: "interrupts", 14: "inforom", 15: "off-bus"}


def advised(advice: str, vendor: str, which: str = "") -> str:
    """Advice with the commands of the GPU's maker, and with its number or its place on the bus."""
    reset = RESETS.get(vendor, "with the tool of its maker").format(which or "N")
    return advice.format(reset=reset, gpu=which or "N", log=MESSAGES.get(vendor, "its driver"))


def kind_of(said: str, other: str) -> str:
    """Which problem somebody means."""
    low = said.lower()
    return next((kind for word, kind in SAYINGS if word in low), other)
