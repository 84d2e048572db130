"""What searches find in the lab of every_state.py: by host, its GPUs. The page and the commands agree on them."""

from __future__ import annotations

from pathlib import Path

from tests.support.board_fixture import Lab, gpu, soon

ALL = ["atlas", "ganges", "hydra", "nile", "pascal", "rhine", "tiber", "volga"]
FOUND = [
    ("atlas", {"atlas": "0123"}),
    ("host:hydra", {"hydra": "0123"}),
    ("host:a", {"atlas": "0123", "ganges": "0", "hydra": "0123", "pascal": "01", "volga": ""}),
    ("user:alice", {"atlas": "01"}),
    ("grace", {"nile": "3"}),
    ("4090", {"nile": "01234"}),
    ("model:h100", {"atlas": "0123"}),
    ('model:"4 × a100"', {"hydra": "0123"}),
    ("jupyter", {"hydra": "0"}),
    ("command:sweep", {"hydra": "1"}),
    ("icml", {"atlas": "01"}),
    ("booking:demo", {"atlas": "3"}),
    ("booking:unused", {"atlas": "3"}),
    ("booking:ended", {"nile": "0"}),
    ('booking:"used by dave"', {"hydra": "1"}),
    ("booking:fallback", {"pascal": "01"}),
    ("fallback", {"pascal": "01"}),
    ("basement", {"tiber": ""}),
    ('"power supply"', {"rhine": "0"}),
    ("couldn't", {"volga": ""}),
    ("taken", {"hydra": "0"}),
    ('"held idle"', {"hydra": "0"}),
    ("without a process", {"nile": "2"}),
    ("neither", {"nile": "4"}),
    ('"cannot reach"', {"nile": "1"}),
    ("dmesg", {"nile": "1"}),
    ('"31 gib"', {"hydra": "0"}),
    ("state:free", {"atlas": "2", "hydra": "3", "nile": "0"}),
    ("state:b", {"atlas": "013", "hydra": "2", "nile": "23"}),
    ("state:down", {"pascal": "01"}),
    ("state:failed", {"volga": ""}),
    ("state:unknown", {"ganges": "0", "nile": "4", "pascal": "01", "rhine": "0"}),
    ("mem>70", {"atlas": "0123"}),
    ("mem<20", {"pascal": "01", "rhine": "0"}),
    ("mem>20 mem<30", {"nile": "0234"}),
    ("mem>24", {"atlas": "0123", "ganges": "0", "hydra": "0123"}),
    ("mem<2e1", {"pascal": "01", "rhine": "0"}),
    ("tag:vision", {"atlas": "0123"}),
    ("TAG:Teaching", {"nile": "01234"}),
    ("state:free tag:vision", {"atlas": "2"}),
    ("hydra python", {"hydra": "12"}),
    ("python nile state:busy", {"nile": "3"}),
    ('"python eval.py"', {"hydra": "2"}),
    ('command:"python eval.py"', {"hydra": "2"}),
    ('command:"python eval.py', {"hydra": "2"}),
    ("JUPYTER State:Held", {"hydra": "0"}),
    # a state is meant by its bare word, a text by quotes
    ("free", {"atlas": "2", "hydra": "3", "nile": "0"}),
    ("FREE a100", {"hydra": "3"}),
    ("busy", {"atlas": "01", "hydra": "2", "nile": "23"}),
    ("held", {"hydra": "0"}),
    ("booked", {"atlas": "3"}),
    ("conflict", {"hydra": "1"}),
    ("lost", {"nile": "1"}),
    ("unknown", {"ganges": "0", "nile": "4", "pascal": "01", "rhine": "0"}),
    ("maintenance", {"rhine": "0"}),
    ("stale", {"ganges": "0"}),
    ("down", {"pascal": "01"}),
    ("failed", {"volga": ""}),
    ("unseen", {"tiber": ""}),
    ("mem>=80", {"atlas": "0123"}),
    ("mem<=16 mem>=16GiB", {"pascal": "01", "rhine": "0"}),
    ("mem=40gb", {"ganges": "0", "hydra": "0123"}),
    ("gpu:3", {"atlas": "3", "hydra": "3", "nile": "3"}),
    ("gpu:0,3 host:hydra", {"hydra": "03"}),
    ("hydra:3", {"hydra": "3"}),
    ("4242", {"atlas": "0"}),
    ('"pid 503"', {"hydra": "2"}),
    ("pid:503", {"hydra": "2"}),
    ("PID:4243,501", {"atlas": "1", "hydra": "0"}),
]
# A host with two models, of which one GPU is booked until tomorrow, and then free again.
FOUND_ON_A_MIXED_HOST = [
    ("a100 free", {"duo": "1"}),
    ("a100", {"duo": "01"}),
    ("model:t4 free", {"duo": "2"}),
    ("free", {"duo": "12"}),
    ('"free again"', {"duo": "0"}),
]
# Words that only the page has: status.json tells no containers, and no bookings of a host whose GPUs nobody has seen.
FOUND_IN_THE_PAGE = [("docker", {"hydra": "1"}), ("ivan", {"tiber": ""})]
# Letters with a meaning elsewhere are text; and a word is looked for only where its field says.
STATES_HINT = (
    "The states are free, busy, held, booked, conflict, lost, unknown, maintenance, stale, down, failed, unseen."
)
FIELDS_HINT = (
    "is not a search field. The fields are host:, gpu:, model:, state:, user:, command:, pid:, booking:, tag: and "
    "mem>40."
)
MEMORY_HINT = "Memory is in GiB: mem>40, mem>=40, mem<40 or mem=40."
# With the hint at what would work.
NOT_FOUND = [
    *((words, "") for words in (".*", "[a-z]+", "\\d", "^atlas", "atlas|hydra", "(?:", "tag:vis", "command:dave")),
    *((words, "") for words in ("__proto__:x", "pid:424", "pid:x", "4244", '"30 gib"', '"lost" jupyter', "gpu:33")),
    ("constructor:x", f"constructor: {FIELDS_HINT}"),
    ("nosuch:atlas free", f"nosuch: {FIELDS_HINT}"),
    ("any:atlas", f"any: {FIELDS_HINT}"),
    ("gpus:0", f"gpus: {FIELDS_HINT}"),
    *((words, MEMORY_HINT) for words in ("mem>x", "mem>nan", "mem>1_0", 'mem>"20"', "mem:20", "free mem==40")),
    ("temp>90", f"Only memory can be compared. {MEMORY_HINT}"),
    ("lr=4", ""),
    ("state:idle", STATES_HINT),
    ("state:fresh", STATES_HINT),
]
NOT_YET_TYPED = ["", "   ", '"', '""', "mem>", "mem>=", "state:", "gpu:", "pid:", "tag:", 'user:"']


def make_mixed_lab(folder: Path) -> Lab:
    """Make the lab of FOUND_ON_A_MIXED_HOST."""
    lab = Lab(folder)
    t4 = gpu(2, uuid="GPU-2", name="Tesla T4", total=15360)
    lab.host("duo", gpu(0, uuid="GPU-0") + gpu(1, uuid="GPU-1") + t4)
    running = {"name": "bob", "date": soon(7200)}
    lab.book({"duo": {"0": [running, {"name": "eve", "from": soon(7200), "date": soon(90_000)}]}})
    lab.build()
    return lab
