#!/bin/sh
# lib/process_details.sh UIDS PIDS CONTAINERS: print names of users, commands of processes and images of containers for ps.awk, under the time limit.
set -eu
LIB=${0%/*}
# shellcheck source=scripts/lib/common.sh
. "$LIB/common.sh"
# shellcheck source=scripts/lib/snapshot.sh
. "$LIB/snapshot.sh"
load_settings
uids=$1 pids=$2 containers=$3
# answers go to files: a process that hangs in the kernel would keep a pipe open
names=$RUN/names.$$ commands=$RUN/commands.$$ answer=$RUN/answer.$$
trap 'rm -f "$names" "$commands" "$answer" "$answer".*' EXIT
: >"$names"
# shellcheck disable=SC2086 # one word per uid; exit code 2: one of them has no name
[ -z "$uids" ] || run_limited getent 1 getent passwd $uids >"$names" || :
awk -F : '{gsub(/[\001-\037\177]/, "?", $1); print "u\t" $3 "\t" $1}' "$names"
set --
environments=
for pid in $pids; do
    set -- "$@" "$PROC/$pid/cmdline"
    [ ! -r "$PROC/$pid/environ" ] || environments="$environments $PROC/$pid/environ"
done
run_limited reading-commands 1 grep -asHz '' "$@" >"$commands" || :
# only these variables: the rest of an environment may be secret, and is not even copied
# shellcheck disable=SC2086 # one word a file
[ -z "$environments" ] || run_limited reading-environments 1 grep -asHzE '^((APPTAINER|SINGULARITY)_NAME|(GPUBOARD|JUPYTERHUB|SUDO)_USER)=' $environments >>"$commands" || :
# one line per argument, after the name of its file; a newline becomes a space, any other control character a ?
tr '\000\012\001-\011\013-\037\177' '\012\040?' <"$commands" |
    timeout -k 1 "$GPUBOARD_LIMIT" awk -v proc="$PROC" -v pids="$pids" -f "$LIB/secret_patterns.awk" -f "$LIB/mask_option_names.awk" -f "$LIB/mask_programs.awk" \
        -f "$LIB/mask_values.awk" -f "$LIB/mask_words.awk" -f "$LIB/mask_commands.awk" -f "$LIB/valid_names.awk" -f "$LIB/process_details.awk"
if [ -n "$containers" ]; then
    # shellcheck source=scripts/lib/containers.sh
    . "$LIB/containers.sh"
    query_engines
fi
