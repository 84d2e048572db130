# shellcheck shell=sh disable=SC2030,SC2031,SC2154 # containers, answer: set by the script that reads this one; the limit of an engine is its own
# Image, pod and person of containers, where this user may query an engine. Each container is queried once: what it was
# started with does not change. SPOOL/containers has the results; an engine that refuses or hangs is not called again for a while.

# Seconds until an engine that refused is called again, and time limit of a call.
REFUSED_FOR=900
ENGINE_LIMIT=3
# Limits of the containers in one call, and of those that are remembered.
MAX_QUERIED=200
MAX_KNOWN=1000

# Labels and variables that may name a person; valid_names.awk and container_answers.awk decide. The rest of an environment may be secret,
# and does not leave the engine: printf %.5s prints the first five characters.
# shellcheck disable=SC2016 # for the engine
TEMPLATE='id {{.ID}}
image {{printf "%q" IMAGE}}
{{range $name, $value := .Config.Labels}}{{if or (eq $name "gpuboard.user") (eq $name "hub.jupyter.org/username") (eq $name "user") (eq $name "username") (eq $name "owner") (eq $name "com.docker.compose.project.working_dir") (eq $name "devcontainer.local_folder") (eq $name "io.kubernetes.pod.name") (eq $name "io.kubernetes.pod.namespace")}}{{$name}} {{printf "%q" $value}}
{{end}}{{end}}{{range .Config.Env}}{{if or (eq (printf "%.14s" .) "GPUBOARD_USER=") (eq (printf "%.16s" .) "JUPYTERHUB_USER=") (eq (printf "%.8s" .) "NB_USER=") (eq (printf "%.5s" .) "USER=") (eq (printf "%.8s" .) "LOGNAME=")}}variable {{printf "%q" .}}
{{end}}{{end}}{{range .Mounts}}{{if eq (printf "%s" .Type) "bind"}}mount {{printf "%q" .Source}}
{{end}}{{end}}'

# query_engines: print a line `c`, id, image, pod, person for each of $containers that is known.
query_engines() {
    SPOOL=${RUN%/run}
    known_file=$SPOOL/containers
    [ -e "$known_file" ] || : >"$known_file"
    query_engine docker docker .Config.Image docker kubernetes
    query_engine podman podman .Config.Image podman podman
    query_engine nerdctl nerdctl .Image containerd containerd
    query_engine nerdctl-k8s 'nerdctl --namespace k8s.io' .Image kubernetes kubernetes
    awk -F '\t' -v containers="$containers" '
        BEGIN { n = split(containers, list, " "); for (i = 1; i <= n; i++) { sub(/.*:/, "", list[i]); wanted[list[i]] = 1 } }
        $2 in wanted && NF == 5 && $3 $4 $5 != "---" { print "c\t" $2 "\t" $3 "\t" $4 "\t" $5 }' "$known_file"
}

# query_engine NAME COMMAND IMAGE KIND KIND: query an engine for new containers of these kinds; IMAGE is the field of the image's name.
query_engine() {
    command -v "${2%% *}" >/dev/null || return 0
    choose_new_containers "$1" "$4" "$5"
    if [ -z "$ids" ] || is_refusing "$1"; then return; fi
    code=0
    # shellcheck disable=SC2086 # one word an id
    (
        [ "$GPUBOARD_LIMIT" -le "$ENGINE_LIMIT" ] || GPUBOARD_LIMIT=$ENGINE_LIMIT
        run_limited "$1" 1 $2 container inspect --format "${TEMPLATE%%IMAGE*}$3${TEMPLATE#*IMAGE}" $ids
    ) </dev/null >"$answer" 2>"$answer.err" || code=$?
    case $code in 124 | 137 | 200) tail -n 1 "$answer.err" >&2 ;; esac
    if grep -q '^id [0-9a-f]' "$answer" || grep -qi 'no such \(container\|object\)' "$answer.err"; then
        store_container_answers "$1"
    else
        read_uptime
        printf '%s\n' "$up" >"$SPOOL/refused.$1"
    fi
}

# choose_new_containers NAME KIND KIND: set ids to those of $containers for which this engine was not queried yet.
choose_new_containers() {
    queried_ids=' ' ids='' count=0
    while read -r engine id _; do [ "$engine" != "$1" ] || queried_ids="$queried_ids$id "; done <"$known_file"
    for id in $containers; do
        case $id in "$2":* | "$3":*) id=${id#*:} ;; *) continue ;; esac
        case $queried_ids in *" $id "*) continue ;; esac
        count=$((count + 1))
        [ "$count" -gt "$MAX_QUERIED" ] || ids="$ids $id"
    done
}

# is_refusing NAME: whether the engine refused not long ago.
is_refusing() {
    refused_at=
    [ ! -r "$SPOOL/refused.$1" ] || read -r refused_at <"$SPOOL/refused.$1" || :
    read_uptime
    case $refused_at in '' | *[!0-9]*) return 1 ;; esac
    [ "$up" -ge "$refused_at" ] && [ $((up - refused_at)) -lt "$REFUSED_FOR" ]
}

# store_container_answers NAME: store the answers. A name that is not there to name the owner counts only if it is a login here.
store_container_answers() {
    timeout -k 1 "$GPUBOARD_LIMIT" awk -v stage=names -f "$LIB/valid_names.awk" -f "$LIB/container_answers.awk" "$answer" >"$answer.names" || :
    : >"$answer.logins"
    if [ -s "$answer.names" ]; then
        set -f
        # shellcheck disable=SC2046 # one word a name
        run_limited getent 1 getent passwd $(head -n 500 "$answer.names") >"$answer.logins" || :
        set +f
    fi
    {
        tail -n "$MAX_KNOWN" "$known_file"
        timeout -k 1 "$GPUBOARD_LIMIT" awk -v engine="$1" -v ids="$ids" -v logins="$answer.logins" -f "$LIB/valid_names.awk" -f "$LIB/container_answers.awk" "$answer"
    } >"$answer.known" && mv -f "$answer.known" "$known_file"
}
