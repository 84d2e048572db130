# shellcheck shell=sh disable=SC2034,SC2154 # variables come from the scripts that read this one, and go back to them
# Consul's HTTP API, by curl or else by GNU wget: its address, one PUT, and what its responses mean.
# The token is never an argument, which `ps` would show.

# parse_agent_address TEXT SETTING: set agent to addr:port of addr[:port], where addr may be [::1].
parse_agent_address() {
    case $1 in
        *@*) die "the address of Consul in $2 contains a name or a password, which Consul does not use: set a token as CONSUL_HTTP_TOKEN" ;;
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

# parse_consul_destination: set agent and prefix from consul://addr[:port]/prefix.
parse_consul_destination() {
    rest=${GPUBOARD_DEST#consul://}
    prefix=${rest#*/}
    prefix=${prefix%/}
    case $rest in
        */?*) ;;
        *) die "GPUBOARD_DEST is 'consul://${rest##*@}', but has no prefix after the address, as in consul://127.0.0.1:8500/gpuboard" ;;
    esac
    case /$prefix/ in
        *//* | */[.-]* | *..* | *[!A-Za-z0-9._/-]*) die "the prefix in GPUBOARD_DEST is '$prefix', but must be names of letters, digits and . _ -, separated by single slashes" ;;
    esac
    [ ${#prefix} -le 200 ] || die 'the prefix in GPUBOARD_DEST has more than 200 characters'
    parse_agent_address "${rest%%/*}" GPUBOARD_DEST
}

# check_consul_settings: refuse settings that do not fit into one line of a config file of curl.
check_consul_settings() {
    case ${CONSUL_HTTP_TOKEN:-} in *[!!-~]* | *[\"\\]*) die 'CONSUL_HTTP_TOKEN is not a token: it contains spaces, quotes or characters that cannot be sent' ;; esac
    for file in "${CONSUL_CACERT:-}" "${CONSUL_CLIENT_CERT:-}" "${CONSUL_CLIENT_KEY:-}"; do
        case $file in *[[:cntrl:]\"\\]*) die "'$file' cannot be used as a certificate file: its name contains quotes or control characters" ;; esac
        [ -z "$file" ] || [ -r "$file" ] || die "$file cannot be read: correct CONSUL_CACERT, CONSUL_CLIENT_CERT and CONSUL_CLIENT_KEY"
    done
    scheme=http verify=yes
    case ${CONSUL_HTTP_SSL:-} in 1 | t | T | true | TRUE | True) scheme=https ;; esac
    case ${CONSUL_HTTP_SSL_VERIFY:-} in 0 | f | F | false | FALSE | False) verify=no ;; esac
}

# print_client_settings curl|wget: print token and certificates as lines of its config file.
print_client_settings() {
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

# put_with_curl URL FILE: write the response to $body and errors to $err, and set http_status.
put_with_curl() {
    http_status=$(print_client_settings curl | timeout -k 1 "$((GPUBOARD_LIMIT + 1))" curl -q -K - -gsS -X PUT --noproxy '*' --max-time "$GPUBOARD_LIMIT" \
        -H 'Expect:' -H 'Content-Type: application/octet-stream' --data-binary "@$2" -o "$body" -w '%{http_code}' "$1" 2>"$err") || status=$?
}

# put_with_wget URL FILE: do the same with wget. Its config is in a file that only we can read.
put_with_wget() {
    (umask 077 && print_client_settings wget >"$err.conf") || return 1
    timeout -k 1 "$GPUBOARD_LIMIT" wget --config="$err.conf" -nv -S --method=PUT --body-file="$2" --no-proxy --no-hsts --tries=1 \
        --max-redirect=0 --content-on-error -O "$body" "$1" 2>"$err" || status=$?
    rm -f "$err.conf"
    http_status=$(awk '$1 ~ /^HTTP\// {code = $2} END {print code}' "$err")
}

# put_to_consul NAME PATH [FILE]: PUT the file, or nothing, at http(s)://agent/v1/PATH. Set http_status (000 without a response),
# and response_text to its first line, or to why there is none. NAME separates calls that run at the same time.
put_to_consul() {
    body=$RUN/consul.$1 err=$RUN/consul.$1.err http_status='' status=0
    : >"$body"
    url=$scheme://$agent/v1/$2
    if command -v curl >/dev/null; then
        put_with_curl "$url" "${3:-/dev/null}"
    elif wget --help 2>&1 | grep -q -e '--method'; then
        put_with_wget "$url" "${3:-/dev/null}"
    else
        echo 'neither curl nor GNU wget is on this host (busybox wget cannot PUT): install curl' >"$err"
    fi
    case $http_status in [1-5][0-9][0-9]) ;; *) http_status=000 ;; esac
    response_text=
    IFS= read -r response_text <"$body" || :
    case $http_status:$response_text in 200: | 200:true) return ;; esac
    response_text=$body
    [ "$http_status" != 000 ] || response_text=$err
    # show no HTML, no control characters, and not our token: the response may come from any server
    response_text=$(head -c 2000 "$response_text" | TOKEN=${CONSUL_HTTP_TOKEN:-} awk '
        { gsub(/[\001-\037\177]/, " ") }
        NF && text == "" { text = $0 }
        END {
            sub(/^(curl|wget): (\([0-9]*\) )?/, "", text); sub(/^[ \t]+/, "", text)
            if (text ~ /^</) text = "a page in HTML"
            if (ENVIRON["TOKEN"] != "" && index(text, ENVIRON["TOKEN"])) text = "words with our token in them"
            print substr(text, 1, 150)
        }')
    case $status in 28 | 124 | 137) response_text="no answer within $GPUBOARD_LIMIT s" ;; esac
}

# explain_consul_answer WHAT RIGHT: print one sentence on stderr about the response to the PUT of WHAT, for which a token needs RIGHT.
explain_consul_answer() {
    no_token_note=
    [ -n "${CONSUL_HTTP_TOKEN:-}" ] || no_token_note=' (none is set)'
    case $http_status:$response_text in
        000:*) message="cannot be reached: ${response_text:-no answer}" ;;
        200:*) message="answers, but not as Consul does (${response_text:-nothing}): is that Consul?" ;;
        3??:*) message="answers with a redirect ($http_status), which is not followed: give the address to which it leads" ;;
        400:*HTTPS*) message='speaks TLS: set CONSUL_HTTP_SSL=true' ;;
        403:*) message="refuses $1 (${response_text:-403}): the token in CONSUL_HTTP_TOKEN$no_token_note needs $2" ;;
        5??:*'cluster leader'* | 5??:*'rpc error'*) message="has no leader at the moment ($response_text), so nothing can be written: check that most of its servers are up" ;;
        *) message="answers with an error ($http_status${response_text:+: }$response_text)" ;;
    esac
    echo "Consul at $agent $message" >&2
}
