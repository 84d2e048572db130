# The container or job of a process, from /proc/PID/cgroup, and the user who logged in to start it. Variables: proc.

# find_hex_id: return the first 12 characters of a container id in a text.
function find_hex_id(text,    id) {
    if (!match(text, HEX64)) return ""
    id = substr(text, RSTART, 12) # as `docker ps` shows it
    return id
}

# clean_name: return a name up to the next slash, without unusual characters.
function clean_name(name) {
    sub(/\/.*/, "", name)
    gsub(/[^A-Za-z0-9._-]/, "", name)
    return name
}

# parse_container: return the container in a line of cgroup, or `known`, that of an earlier line.
function parse_container(line, known,    id, kind, pod) {
    if (line !~ /docker|libpod|kubepods|crio|containerd|nerdctl|buildkit|lxc|slurm|\/default\//) return known # most lines
    if (HEX64 == "") {
        HEX64 = "[0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f]"
        HEX64 = HEX64 HEX64 HEX64 HEX64 HEX64 HEX64 HEX64 HEX64
    }
    id = find_hex_id(line)
    if (match(line, /kubepods/)) {
        if (!match(line, /pod[0-9a-f][0-9a-f_-]*/)) return known
        pod = substr(line, RSTART + 3, RLENGTH - 3)
        gsub(/_/, "-", pod)
        return "kubernetes:" pod (id == "" ? "" : "/" id)
    }
    if (id != "") {
        kind = ""
        if (line ~ /libpod/) kind = "podman"
        else if (line ~ /docker/) kind = "docker"
        else if (line ~ /crio/) kind = "cri-o"
        else if (line ~ /containerd|nerdctl|buildkit/ || line ~ /\/default\//) kind = "containerd"
        if (kind != "") return kind ":" id
    }
    if (match(line, /\/lxc\.payload[.\/][^\/]+/)) return "lxc:" clean_name(substr(line, RSTART + 13, RLENGTH - 13))
    if (match(line, /\/lxc\/[^\/]+/)) return "lxc:" clean_name(substr(line, RSTART + 5, RLENGTH - 5))
    if (line ~ /slurm/ && match(line, /job_[0-9]+/)) return "slurm:" substr(line, RSTART + 4, RLENGTH - 4)
    return known
}

# read_container: set container to that of a process, and login to the uid of the user who logged in to start it, or "". The kernel keeps both, and
# sudo changes neither. For services login is empty: they work for whoever sends a request, not for the user who started them last.
function read_container(pid,    line, slice) {
    container = "-"
    login = slice = ""
    while ((getline line < (proc "/" pid "/cgroup")) > 0) {
        if (container == "-" || index(container, "slurm:") == 1) container = parse_container(line, container)
        # the users within a container are not those of the host
        if (match(line, /\/user-[0-9]+\.slice/) && substr(line, 1, RSTART) !~ /lxc|docker|libpod|kubepods|crio|containerd|nerdctl|buildkit/)
            slice = substr(line, RSTART + 6, RLENGTH - 12)
    }
    close(proc "/" pid "/cgroup")
    if (container !~ /^(docker|containerd|cri-o|kubernetes|lxc):/ && (getline line < (proc "/" pid "/loginuid")) > 0 && line ~ /^[0-9]+$/) login = line
    close(proc "/" pid "/loginuid")
    if (login == "" || login + 0 == 4294967295) login = slice
    if (login + 0 == 0) login = ""
}
