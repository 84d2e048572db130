"""Who and what there is in the simulated lab: machines, people, and what they run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple


@dataclass(frozen=True)
class Model:
    """A kind of GPU, in the words and units of its maker's tool."""

    name: str
    memory: int
    watts: int
    clock: int
    compute: str
    fan: bool
    ecc: bool
    maker: str = "nvidia"


class Instance(NamedTuple):
    """A part of a GPU in MIG mode: its profile and number, what it has, and what it takes with nobody on it."""

    profile: str
    number: int
    memory: int
    empty: int
    processors: int
    engines: int
    window: int


class Unit(NamedTuple):
    """What can be free or busy by itself: a GPU, or an instance of one; `index` is its GPU's, by its maker's tool."""

    label: str
    index: int  # type: ignore[assignment] # nvidia-smi's word hides a method of tuples
    model: Model
    memory: int
    instance: Instance | None = None

    @property
    def maker(self) -> str:
        """Who made it."""
        return self.model.maker


@dataclass(frozen=True)
class Machine:
    """A host of the lab.

    `tries` is how many short runs come an hour; `load` is the share of its GPUs that long jobs ask for, and `idle` the
    share that notebooks hold. `story` names what happens to it in story.py. The first GPU may be `cut` into instances,
    each of which counts as one, and the last ones may be of another model, which stand `beside` the others. `amd` is
    the tool that tells those of AMD.
    """

    name: str
    model: Model
    gpus: int
    cpus: int
    memory: int
    title: str = ""
    tags: str = ""
    tries: float = 10.0
    load: float = 0.45
    idle: float = 0.08
    remark: str = ""
    number: int = 0
    story: str = ""
    cut: tuple[Instance, ...] = ()
    beside: tuple[Model, ...] = ()
    amd: str = ""

    @cached_property
    def units(self) -> tuple[Unit, ...]:
        """All that can be free or busy on it, as the board calls them."""
        model, parts = self.model, len(self.cut)
        found = [Unit(f"0:{n}", 0, model, one.memory, one) for n, one in enumerate(self.cut)]
        for index in range(bool(parts), self.gpus - parts + bool(parts) - len(self.beside)):
            found.append(Unit(str(index), index, model, model.memory))
        return (*found, *(Unit(f"{one.maker}{n}", n, one, one.memory) for n, one in enumerate(self.beside)))

    def fit(self, gpus: Sequence[int], count: int) -> tuple[int, ...]:
        """The first so many of these that can work on one thing: GPUs of one model; no two instances can."""
        for model in (self.model, *self.beside[:1]):
            alike = gpus
            if self.cut or self.beside:
                alike = [gpu for gpu in gpus if self.units[gpu].model is model]
            if self.cut and count > 1:
                alike = [gpu for gpu in alike if self.units[gpu].instance is None]
            if len(alike) >= count:
                return tuple(alike[:count])
        return ()


H100 = Model("NVIDIA H100 80GB HBM3", 81559, 700, 1980, "9.0", fan=False, ecc=True)
A100 = Model("NVIDIA A100-SXM4-40GB", 40960, 400, 1410, "8.0", fan=False, ecc=True)
A100_80 = Model("NVIDIA A100 80GB PCIe", 81920, 300, 1410, "8.0", fan=False, ecc=True)
L40S = Model("NVIDIA L40S", 46068, 350, 2520, "8.9", fan=False, ecc=True)
ADA = Model("NVIDIA RTX 6000 Ada Generation", 49140, 300, 3105, "8.9", fan=True, ecc=True)
RTX_4090 = Model("NVIDIA GeForce RTX 4090", 24564, 450, 3120, "8.9", fan=True, ecc=False)
RTX_3090 = Model("NVIDIA GeForce RTX 3090", 24576, 350, 2100, "8.6", fan=True, ecc=False)
RTX_2080 = Model("NVIDIA GeForce RTX 2080 Ti", 11264, 250, 2100, "7.5", fan=True, ecc=False)
V100 = Model("Tesla V100-SXM2-16GB", 16384, 300, 1530, "7.0", fan=False, ecc=True)
GH200 = Model("NVIDIA GH200 480GB", 97871, 900, 1980, "9.0", fan=False, ecc=True)
T4 = Model("Tesla T4", 15360, 70, 1590, "7.5", fan=False, ecc=True)
P100 = Model("Tesla P100-PCIE-16GB", 16280, 250, 1328, "6.0", fan=False, ecc=True)
A6000 = Model("NVIDIA RTX A6000", 49140, 300, 2100, "8.6", fan=True, ecc=True)
MI210 = Model("AMD Instinct MI210", 65520, 300, 1700, "", fan=False, ecc=True, maker="amd")
RX_7900 = Model("Radeon RX 7900 XTX", 24560, 327, 2482, "", fan=True, ecc=False, maker="amd")
# How an H100 with 80 GB can be cut.
CUT = (
    Instance("3g.40gb", 2, 40448, 26, 60, 3, 24739),
    Instance("2g.20gb", 3, 20096, 17, 32, 2, 12369),
    Instance("1g.10gb", 9, 9984, 9, 16, 1, 6184),
    Instance("1g.10gb", 10, 9984, 9, 16, 1, 6184),
)

MACHINES = (
    Machine("atlas", H100, 8, 192, 2063000, "Training", "vision nlp", 4, 0.6, 0.02),
    Machine("hydra", A100, 8, 128, 1031000, "Training", "vision", 8),
    Machine("orion", A100_80, 4, 64, 515000, "Speech", "speech nlp", 6, 0.6),
    Machine("vega", L40S, 4, 64, 515000, "Models for everybody", "inference", 6, 0.1),
    Machine("lyra", ADA, 4, 48, 257000, "", "graphics", 10),
    Machine("cygnus", RTX_4090, 2, 32, 128000, "Robotics", "robotics", 14, 0.3),
    Machine("draco", RTX_3090, 4, 32, 128000, "", "vision", 8),
    Machine("perseus", RTX_2080, 8, 40, 257000, "Teaching", "teaching", 40, 0.1, 0.15),
    Machine("taurus", V100, 4, 40, 515000, "Teaching", "teaching", 16, 0.2, 0.15),
    Machine("vulcan", GH200, 1, 72, 490000, "", "nlp", 2, 0.7, 0),
    Machine("pavo", T4, 2, 16, 64000, "", "", 8, 0, 0, "maintenance: new power supply, back on Friday"),
    Machine("pascal", P100, 2, 16, 128000, tries=0, load=0, idle=0),
    Machine("gemini", H100, 5, 96, 1031000, "Notebooks", "teaching nlp", 12, 0.3, 0.1, cut=CUT),
    Machine("aquila", MI210, 4, 64, 515000, "", "nlp", 6, 0.4, amd="amd-smi"),
    Machine("centaurus", A6000, 4, 48, 257000, "Rendering", "graphics", 8, beside=(RX_7900, RX_7900), amd="rocm-smi"),
)
# On one of them the old scripts still run, so that its files are of their kind.
OLD = "pascal"

PEOPLE = (
    "alice",
    "bruno",
    "chen",
    "dana",
    "elif",
    "farid",
    "greta",
    "hiro",
    "ines",
    "jonas",
    "kavya",
    "lena",
    "marek",
    "noor",
)
FIRST_UID = 1001
ALIASES = "lenak, lena\nmarek, Marek S.\n"

# What is on a GPU is the worker, not the launcher that started it.
COMMANDS = {
    "train": (
        "python -u train.py --config configs/vit-l.yaml --lr {lr} --batch-size 256",
        "/opt/conda/bin/python -u main.py --name run-{n} --data /data/imagenet",
        "python finetune.py --model llama-3-8b --rank {n}",
        "python -m speech.train --set librispeech --seed {n}",
    ),
    "debug": (
        "python train.py --debug --steps 100",
        "python eval.py --checkpoint runs/{n}/last.pt",
        "python -m pytest -q tests/test_kernels.py",
        "python render.py --scene {n}",
        "python exercise{n}.py",
    ),
    "notebook": (
        "/opt/conda/bin/python -m ipykernel_launcher -f /run/user/{uid}/jupyter/kernel-{n}.json",
        "python3 -m ipykernel_launcher -f /home/{person}/.local/share/jupyter/runtime/kernel-{n}.json",
    ),
    "serve": ("VLLM::EngineCore",),
    "sweep": ("python sweep.py --trials 200 --seed {n}", "python -u agent.py --sweep retrieval-{n}"),
}
RATES = ("1e-4", "3e-4", "5e-5", "2e-5")


def lab(hosts: int) -> tuple[Machine, ...]:
    """So many machines: the first of the lab, and more of the same kinds under numbered names."""
    found = []
    for number in range(hosts):
        machine = MACHINES[number % len(MACHINES)]
        again = number // len(MACHINES)
        if again:  # those have no story and no remark of their own, and the new scripts
            found.append(replace(machine, name=f"{machine.name}{again + 1}", remark="", number=number))
        else:
            found.append(replace(machine, number=number, story=machine.name))
    return tuple(found)
