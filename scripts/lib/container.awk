# Which container or job a process runs in, from /proc/PID/cgroup, and who logged in to start it. Variables: proc.

function hex_id(text,    id) {
    if (!match(text, HEX64)) return ""
    id = substr(text, RSTART, 12) # as `docker ps` shows it
    return id
}

function plain(name) {
    sub(/\/.*/, "", name)
    gsub(/[^A-Za-z0-9._-]/, "", name)
    return name
}

# container: of a line of cgroup; `known` is what an earlier line told.
function container(line, known,    id, kind, pod) {
    if (line !~ /docker|libpod|kubepods|crio|containerd|nerdctl|buildkit|lxc|slurm|\/default\//) return known # most lines, most days
    if (HEX64 == "") {
        HEX64 = "[0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f]"
        HEX64 = HEX64 HEX64 HEX64 HEX64 HEX64 HEX64 HEX64 HEX64
    }
    id = hex_id(line)
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
    if (match(line, /\/lxc\.payload[.\/][^\/]+/)) return "lxc:" plain(substr(line, RSTART + 13, RLENGTH - 13))
    if (match(line, /\/lxc\/[^\/]+/)) return "lxc:" plain(substr(line, RSTART + 5, RLENGTH - 5))
    if (line ~ /slurm/ && match(line, /job_[0-9]+/)) return "slurm:" substr(line, RSTART + 4, RLENGTH - 4)
    return known
}

# look: sets found to the container of a process, and login to the uid of who logged in to start it, or "". The kernel keeps both, and
# sudo changes neither. What a service runs for others, it runs for whoever asked it, and not for who started the service last.
function look(pid,    line, slice) {
    found = "-"
    login = slice = ""
    while ((getline line < (proc "/" pid "/cgroup")) > 0) {
        if (found == "-" || index(found, "slurm:") == 1) found = container(line, found)
        if (match(line, /\/user-[0-9]+\.slice/)) slice = substr(line, RSTART + 6, RLENGTH - 12)
    }
    close(proc "/" pid "/cgroup")
    if (found !~ /^(docker|containerd|cri-o|kubernetes|lxc):/ && (getline line < (proc "/" pid "/loginuid")) > 0 && line ~ /^[0-9]+$/) login = line
    close(proc "/" pid "/loginuid")
    if (login == "" || login + 0 == 4294967295) login = slice
    if (login + 0 == 0) login = ""
}
