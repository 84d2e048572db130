"""Who and what there is in the simulated lab: machines, people, and what they run."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Model:
    """A kind of GPU, in nvidia-smi's words and units."""

    name: str
    memory: int
    watts: int
    clock: int
    compute: str
    fan: bool
    ecc: bool


@dataclass(frozen=True)
class Machine:
    """A host of the lab.

    `tries` is how many short runs come an hour; `load` is the share of its GPUs that long jobs ask for, and `idle` the
    share that notebooks hold. `story` names what happens to it in story.py.
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
)
# On the last of them the old scripts still run, so that its files are of their kind.
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
