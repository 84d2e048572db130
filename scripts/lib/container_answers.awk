# Parse what an engine prints about containers, in the format of TEMPLATE in containers.sh. With stage=names: print every name that may be a
# login, one per line. Else print a line for each id in `ids`: engine, id, image, pod, person, separated by tabs, - if not known; `logins` is
# what getent prints for these names.

# unquote_text: return the text between the quotes of Go's %q; "" if it has escapes other than \\.
function unquote_text(text,    part, n, i, all) {
    if (length(text) < 2 || substr(text, 1, 1) != "\"" || substr(text, length(text)) != "\"") return ""
    n = split(substr(text, 2, length(text) - 2), part, /\\\\/)
    for (i = 1; i <= n; i++) {
        if (part[i] ~ /["\\]/) return ""
        all = all (i > 1 ? "\\" : "") part[i]
    }
    return all
}

# claim_person: take a name from this source. The first four sources are meant to name the person; from any other, a name counts only if it is a login here.
function claim_person(source, name) {
    name = parse_person(name)
    if (name == "") return
    if (rank[source] > 4) {
        if (stage == "names") { if (!(name in listed) && ++names <= 500) print name; listed[name] = 1 }
        if (!(tolower(name) in login)) return
        name = login[tolower(name)]
    }
    if ((id, source) in claimed && claimed[id, source] != name) name = "" # two people: not known
    claimed[id, source] = name
}

# claim_home: take the person from a folder such as /home/alice/data or /nfs/users/lab/alice.
function claim_home(path,    part, n, i) {
    n = split(path, part, "/")
    for (i = 2; i < n; i++)
        if (part[i] ~ /^(home|homes|users|Users)$/) {
            claim_person("home", part[i + 1])
            if (i + 2 <= n && !(tolower(part[i + 1]) in login)) claim_person("home", part[i + 2])
            return
        }
}

BEGIN {
    SOURCE_COUNT = split("gpuboard.user GPUBOARD_USER JUPYTERHUB_USER hub.jupyter.org/username user username owner NB_USER USER LOGNAME home", source_name, " ")
    for (i = 1; i <= SOURCE_COUNT; i++) rank[source_name[i]] = i
    while (logins != "" && (getline line < logins) > 0)
        if (split(line, f, ":") >= 4 && f[3] >= 500 && f[3] != 65534) login[tolower(f[1])] = f[1]
}

$1 == "id" { id = $2 ~ /^[0-9a-f]+$/ && length($2) == 64 ? substr($2, 1, 12) : ""; next }
id == "" { next }
{ value = unquote_text(substr($0, length($1) + 2)) }
value == "" { next }
$1 == "image" { image[id] = parse_image(value) }
$1 == "variable" { at = index(value, "="); $1 = substr(value, 1, at - 1); value = substr(value, at + 1) }
$1 == "com.docker.compose.project.working_dir" || $1 == "devcontainer.local_folder" || $1 == "mount" { claim_home(value) }
$1 in rank { claim_person($1, value) }
$1 == "io.kubernetes.pod.namespace" && value ~ /^[a-z0-9.-]+$/ { pod_namespace[id] = substr(value, 1, 100) }
$1 == "io.kubernetes.pod.name" && value ~ /^[a-z0-9.-]+$/ { pod[id] = substr(value, 1, 100) }

END {
    if (stage == "names") exit
    n = split(ids, list, " ")
    for (i = 1; i <= n; i++) {
        id = list[i]
        person = ""
        for (j = 1; j <= SOURCE_COUNT && person == ""; j++) person = claimed[id, source_name[j]]
        print engine "\t" id "\t" (image[id] == "" ? "-" : image[id]) "\t" (pod[id] == "" ? "-" : (pod_namespace[id] == "" ? "" : pod_namespace[id] "/") pod[id]) "\t" (person == "" ? "-" : person)
    }
}
