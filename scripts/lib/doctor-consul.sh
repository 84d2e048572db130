# shellcheck shell=sh disable=SC2034,SC2154 # variables come from gpu-doctor.sh and consul.sh, and go back to them
# The check of Consul, where snapshots go there: one question for this host's own key, which tells of address, TLS, leader, token, and time.

see_consul() {
    applies consul || return 0
    # shellcheck source=scripts/lib/consul.sh
    . "$LIB/consul.sh"
    if ! words=$( (parse_consul_dest && check_consul) 2>&1); then
        fail "${words#"${0##*/}: "}" 'correct it in gpuboard.conf'
        return
    fi
    parse_consul_dest
    check_consul
    asked_at=$(date +%s)
    ask_consul "$scheme://$agent/v1/kv/$prefix/data/$HOST?raw"
    stamp=$(sed -n 's/^ *[Dd]ate: *//p' "$work/headers" | tr -d '\r' | tail -n 1)
    [ -z "$stamp" ] || web_time=$(date -d "$stamp" +%s 2>/dev/null) || web_time=
    case $answer in
        200) pass "Consul at $agent answers, and has the last snapshot of this host" ;;
        404) pass "Consul at $agent answers; it has no snapshot of this host yet" ;;
        *) fail "$(explain "the key $prefix/data/$HOST" "key \"$prefix/data/$HOST\" { policy = \"write\" }" 2>&1)" 'what was sent last stays there; the loops try on by themselves' ;;
    esac
}

# ask_consul URL: sets answer to the HTTP status (000 if none came), and said to the first words of an error. The token is in a file that
# only we can read.
ask_consul() {
    answer='' said=''
    : >"$work/headers"
    : >"$work/body"
    if command -v curl >/dev/null; then
        (umask 077 && settings_for curl >"$work/rc")
        asked curl -q -K "$work/rc" -gsS --noproxy '*' --max-time "$GPUBOARD_LIMIT" -D "$work/headers" -o "$work/body" -w '%{http_code}' "$1"
        answer=$(cat "$out")
    else
        (umask 077 && settings_for wget >"$work/rc")
        asked wget --config="$work/rc" -nv -S --no-proxy --no-hsts --tries=1 --max-redirect=0 --content-on-error -O "$work/body" "$1"
        cp "$err" "$work/headers"
        answer=$(awk '$1 ~ /^HTTP\// {code = $2} END {print code}' "$err")
    fi
    case $answer in
        [1-5][0-9][0-9]) said=$(head -c 150 "$work/body" | tr '\000-\037\177' ' ') ;;
        *)
            answer=000 said=$(last_words | sed 's/^curl: ([0-9]*) //')
            ! timed_out && [ "$rc" != 28 ] || said="no answer within $GPUBOARD_LIMIT s"
            ;;
    esac
    case $said in '<'*) said='a page in HTML' ;; esac
}
