"""What searches find in the lab of tests/every_state.py: by host, its GPUs. The page and the commands agree on them."""

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
    ("hardly", {"hydra": "0"}),
    ('"held idle"', {"hydra": "0"}),
    ("explains", {"nile": "2"}),
    ("neither", {"nile": "4"}),
    ('"cannot reach"', {"nile": "1"}),
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
]
# Words that only the page has: status.json tells no containers, and no bookings of a host whose GPUs nobody has seen.
FOUND_IN_THE_PAGE = [("docker", {"hydra": "1"}), ("ivan", {"tiber": ""})]
# Letters with a meaning elsewhere are text; and a word is looked for only where its field says.
NOT_FOUND = [
    *(".*", "[a-z]+", "\\d", "^atlas", "atlas|hydra", "(?:", "constructor:x", "__proto__:x", "tag:vis", "mem>x"),
    *("command:dave", "state:fresh", "4242", '"30 gib"'),
    *("mem>nan", "mem>1_0", 'mem>"20"', "mem:20", "nosuch:atlas", "any:atlas"),
]
NOT_YET_TYPED = ["", "   ", '"', '""', "mem>", "state:", "tag:", 'user:"']
