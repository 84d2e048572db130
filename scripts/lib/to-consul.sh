# shellcheck shell=sh disable=SC2154 # agent, prefix, answer, said: set by consul.sh
# Push into Consul's KV: the four files, one after the other and packed, are the value of PREFIX/data/HOST, in one PUT.
# shellcheck source=scripts/lib/consul.sh
. "$LIB/consul.sh"

LARGEST=524288 # what Consul takes, unless its kv_max_value_size says otherwise

# to_consul: what went wrong goes to stderr. Until a PUT succeeds, what Consul had stays.
to_consul() {
    parse_consul_dest
    check_consul
    set --
    for file in gpus.csv processes.csv ps.txt host.txt; do
        [ ! -s "$SPOOL/$file" ] || set -- "$@" "$SPOOL/$file"
    done
    cat "$@" | gzip -n >"$RUN/consul.gz" || return 1
    size=$(wc -c <"$RUN/consul.gz")
    if [ "$size" -gt "$LARGEST" ]; then
        echo "the snapshot has $((size / 1024)) KB when packed, and Consul takes 512 KB: nothing was sent" >&2
        return 1
    fi
    consul_put push "kv/$prefix/data/$HOST" "$RUN/consul.gz"
    [ "$answer:$said" = 200:true ] || {
        explain "the key $prefix/data/$HOST" "key \"$prefix/data/$HOST\" { policy = \"write\" }"
        return 1
    }
}
