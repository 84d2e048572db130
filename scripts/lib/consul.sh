# shellcheck shell=sh disable=SC2034,SC2154 # variables come from the scripts that read this one, and go back to them
# Consul's HTTP API, by curl or else by GNU wget: its address, one PUT, and what its answers mean.
# The token is never an argument, where `ps` would show it.

# parse_agent TEXT SETTING: addr[:port], where addr may be [::1]; sets agent to both.
parse_agent() {
    case $1 in
        *@*) die "the address of Consul in $2 holds a name or a password, which Consul does not know: give a token as CONSUL_HTTP_TOKEN" ;;
        *\]:* | [!\[]*:*) name=${1%:*} port=${1##*:} ;;
        *) name=$1 port=8500 ;;
    esac
    case $name in
        \[*\]) case $name in \[*[!0-9A-Fa-f:.]*\]) name= ;; esac ;;
        *[!A-Za-z0-9._-]*) name= ;;
    esac
    case $port in '' | *[!0-9]* | 0* | ??????*) port=0 ;; esac
    if [ -z "$name" ] || [ "$port" -lt 1 ] || [ "$port" -gt 65535 ]; then
        die "the address of Consul in $2 is '$1', but must be host or host:port"
    fi
    agent=$name:$port
}

# parse_consul_dest: consul://addr[:port]/prefix; sets agent and prefix.
parse_consul_dest() {
    rest=${GPUBOARD_DEST#consul://}
    prefix=${rest#*/}
    prefix=${prefix%/}
    case $rest in
        */?*) ;;
        *) die "GPUBOARD_DEST is 'consul://${rest##*@}', but a prefix is missing behind the address, as in consul://127.0.0.1:8500/gpuboard" ;;
    esac
    case /$prefix/ in
        *//* | */[.-]* | *..* | *[!A-Za-z0-9._/-]*) die "the prefix in GPUBOARD_DEST is '$prefix', but must be names of letters, digits and . _ -, with one / between them" ;;
    esac
    [ ${#prefix} -le 200 ] || die 'the prefix in GPUBOARD_DEST has more than 200 letters'
    parse_agent "${rest%%/*}" GPUBOARD_DEST
}

# check_consul: what goes to Consul beside the data must fit into one line of a settings file of curl.
check_consul() {
    case ${CONSUL_HTTP_TOKEN:-} in *[!!-~]* | *[\"\\]*) die 'CONSUL_HTTP_TOKEN is no token: it has blanks, quotes or signs that cannot be sent' ;; esac
    for file in "${CONSUL_CACERT:-}" "${CONSUL_CLIENT_CERT:-}" "${CONSUL_CLIENT_KEY:-}"; do
        case $file in *[[:cntrl:]\"\\]*) die "'$file' cannot be the name of a certificate's file here: it has quotes or control characters" ;; esac
        [ -z "$file" ] || [ -r "$file" ] || die "$file cannot be read: correct CONSUL_CACERT, CONSUL_CLIENT_CERT and CONSUL_CLIENT_KEY"
    done
    scheme=http verify=yes
    case ${CONSUL_HTTP_SSL:-} in 1 | t | T | true | TRUE | True) scheme=https ;; esac
    case ${CONSUL_HTTP_SSL_VERIFY:-} in 0 | f | F | false | FALSE | False) verify=no ;; esac
}

# settings_for curl|wget: the words that are nobody's business, as lines of its settings file.
settings_for() {
    case $1 in
        curl) set -- header cacert cert key insecure '"' ;;
        wget) set -- header ca_certificate certificate private_key 'check_certificate = off' '' ;;
    esac
    [ -z "${CONSUL_HTTP_TOKEN:-}" ] || printf '%s = %sX-Consul-Token: %s%s\n' "$1" "$6" "$CONSUL_HTTP_TOKEN" "$6"
    [ -z "${CONSUL_CACERT:-}" ] || printf '%s = %s%s%s\n' "$2" "$6" "$CONSUL_CACERT" "$6"
    [ -z "${CONSUL_CLIENT_CERT:-}" ] || printf '%s = %s%s%s\n' "$3" "$6" "$CONSUL_CLIENT_CERT" "$6"
    [ -z "${CONSUL_CLIENT_KEY:-}" ] || printf '%s = %s%s%s\n' "$4" "$6" "$CONSUL_CLIENT_KEY" "$6"
    [ "$verify" = yes ] || printf '%s\n' "$5"
}

# put_by_curl URL FILE: leaves the body in $body, and sets answer to the HTTP status; its own words go to $err.
put_by_curl() {
    answer=$(settings_for curl | timeout -k 1 "$((GPUBOARD_LIMIT + 1))" curl -q -K - -gsS -X PUT --noproxy '*' --max-time "$GPUBOARD_LIMIT" \
        -H 'Expect:' -H 'Content-Type: application/octet-stream' --data-binary "@$2" -o "$body" -w '%{http_code}' "$1" 2>"$err") || status=$?
}

# put_by_wget URL FILE: the same. Its settings go to a file that only we can read.
put_by_wget() {
    (umask 077 && settings_for wget >"$err.conf") || return 1
    timeout -k 1 "$GPUBOARD_LIMIT" wget --config="$err.conf" -nv -S --method=PUT --body-file="$2" --no-proxy --no-hsts --tries=1 \
        --max-redirect=0 --content-on-error -O "$body" "$1" 2>"$err" || status=$?
    rm -f "$err.conf"
    answer=$(awk '$1 ~ /^HTTP\// {code = $2} END {print code}' "$err")
}

# consul_put NAME PATH [FILE]: PUTs the file, or nothing, at http(s)://agent/v1/PATH. Sets answer to the HTTP status (000 if none came),
# and said to the first words of the answer, or to why there is none. NAME tells apart what runs side by side.
consul_put() {
    body=$RUN/consul.$1 err=$RUN/consul.$1.err answer='' status=0
    : >"$body"
    url=$scheme://$agent/v1/$2
    if command -v curl >/dev/null; then
        put_by_curl "$url" "${3:-/dev/null}"
    elif wget --help 2>&1 | grep -q -e '--method'; then
        put_by_wget "$url" "${3:-/dev/null}"
    else
        echo 'neither curl nor GNU wget is on this host (busybox wget cannot PUT): install curl' >"$err"
    fi
    case $answer in [1-5][0-9][0-9]) ;; *) answer=000 ;; esac
    said=
    IFS= read -r said <"$body" || :
    case $answer:$said in 200: | 200:true) return ;; esac
    said=$body
    [ "$answer" != 000 ] || said=$err
    # no page in HTML, no control characters, and what answers may be anything: not our token either
    said=$(head -c 2000 "$said" | TOKEN=${CONSUL_HTTP_TOKEN:-} awk '
        { gsub(/[\001-\037\177]/, " ") }
        NF && said == "" { said = $0 }
        END {
            sub(/^(curl|wget): (\([0-9]*\) )?/, "", said); sub(/^[ \t]+/, "", said)
            if (said ~ /^</) said = "a page in HTML"
            if (ENVIRON["TOKEN"] != "" && index(said, ENVIRON["TOKEN"])) said = "words with our token in them"
            print substr(said, 1, 150)
        }')
    case $status in 28 | 124 | 137) said="no answer within $GPUBOARD_LIMIT s" ;; esac
}

# explain WHAT RIGHT: one sentence on stderr about an answer to the PUT of WHAT, for which a token needs RIGHT.
explain() {
    none=
    [ -n "${CONSUL_HTTP_TOKEN:-}" ] || none=' (none is set)'
    case $answer:$said in
        000:*) words="cannot be reached: ${said:-no answer}" ;;
        200:*) words="answers, but not as Consul does (${said:-nothing}): is that Consul?" ;;
        3??:*) words="answers with a redirect ($answer), which is not followed: give the address to which it leads" ;;
        400:*HTTPS*) words='speaks TLS: set CONSUL_HTTP_SSL=true' ;;
        403:*) words="refuses $1 (${said:-403}): the token in CONSUL_HTTP_TOKEN$none needs $2" ;;
        5??:*'cluster leader'* | 5??:*'rpc error'*) words="has no leader just now ($said), so nothing can be written: are most of its servers up?" ;;
        *) words="answers with an error ($answer${said:+: }$said)" ;;
    esac
    echo "Consul at $agent $words" >&2
}
