# shellcheck shell=sh disable=SC2154 # agent, prefix, http_status, response_text: set by consul.sh
# Push to Consul's KV store: the four files, concatenated and packed, are the value of PREFIX/data/HOST, in one PUT.
# shellcheck source=scripts/lib/consul.sh
. "$LIB/consul.sh"

MAX_VALUE_BYTES=524288 # the limit of Consul, unless its kv_max_value_size is set

# push_to_consul: send all files; print errors on stderr. Until a PUT succeeds, Consul keeps the last snapshot.
push_to_consul() {
    parse_consul_destination
    check_consul_settings
    set --
    for file in gpus.csv processes.csv ps.txt host.txt; do
        [ ! -s "$SPOOL/$file" ] || set -- "$@" "$SPOOL/$file"
    done
    cat "$@" | gzip -n >"$RUN/consul.gz" || return 1
    packed_bytes=$(wc -c <"$RUN/consul.gz")
    if [ "$packed_bytes" -gt "$MAX_VALUE_BYTES" ]; then
        echo "the snapshot has $((packed_bytes / 1024)) KB compressed, and Consul accepts 512 KB: nothing was sent" >&2
        return 1
    fi
    put_to_consul push "kv/$prefix/data/$HOST" "$RUN/consul.gz"
    [ "$http_status:$response_text" = 200:true ] || {
        explain_consul_answer "the key $prefix/data/$HOST" "key \"$prefix/data/$HOST\" { policy = \"write\" }"
        return 1
    }
}
