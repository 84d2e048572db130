#!/bin/sh
# lib/ask.sh UIDS PIDS CONTAINERS: what ps.awk asks of the system, under the time limit: names of users, commands of processes, images of containers.
set -eu
LIB=${0%/*}
# shellcheck source=scripts/lib/common.sh
. "$LIB/common.sh"
# shellcheck source=scripts/lib/snapshot.sh
. "$LIB/snapshot.sh"
load_settings
uids=$1 pids=$2 containers=$3
# the answers go to files: one that hangs in the kernel would keep a pipe open, and us waiting
names=$RUN/names.$$ commands=$RUN/commands.$$ answer=$RUN/answer.$$
trap 'rm -f "$names" "$commands" "$answer" "$answer".*' EXIT
: >"$names"
# shellcheck disable=SC2086 # one word a uid; exit code 2: one of them has no name
[ -z "$uids" ] || limited getent 1 getent passwd $uids >"$names" || :
awk -F : '{gsub(/[\001-\037\177]/, "?", $1); print "u\t" $3 "\t" $1}' "$names"
set --
environments=
for pid in $pids; do
    set -- "$@" "$PROC/$pid/cmdline"
    [ ! -r "$PROC/$pid/environ" ] || environments="$environments $PROC/$pid/environ"
done
limited reading-commands 1 grep -asHz '' "$@" >"$commands" || :
# of an environment only these few: the rest may be secret, and is not even copied
# shellcheck disable=SC2086 # one word a file
[ -z "$environments" ] || limited reading-environments 1 grep -asHzE '^((APPTAINER|SINGULARITY)_NAME|(GPUBOARD|JUPYTERHUB|SUDO)_USER)=' $environments >>"$commands" || :
# every argument becomes a line behind its file's name; a newline in one becomes a space, any other control character a ?
tr '\000\012\001-\011\013-\037\177' '\012\040?' <"$commands" |
    timeout -k 1 "$GPUBOARD_LIMIT" awk -v proc="$PROC" -v pids="$pids" -f "$LIB/shapes.awk" -f "$LIB/mask-names.awk" -f "$LIB/mask-programs.awk" \
        -f "$LIB/mask-values.awk" -f "$LIB/mask-words.awk" -f "$LIB/mask.awk" -f "$LIB/claim.awk" -f "$LIB/ask.awk"
if [ -n "$containers" ]; then
    # shellcheck source=scripts/lib/engines.sh
    . "$LIB/engines.sh"
    ask_engines
fi
