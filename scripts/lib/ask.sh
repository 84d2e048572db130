#!/bin/sh
# lib/ask.sh UIDS PIDS: what ps.awk asks of the system, under the time limit: names of users, containers and commands of processes.
set -eu
LIB=${0%/*}
# shellcheck source=scripts/lib/common.sh
. "$LIB/common.sh"
# shellcheck source=scripts/lib/snapshot.sh
. "$LIB/snapshot.sh"
load_settings
uids=$1 pids=$2
# shellcheck disable=SC2086 # one word a uid; exit code 2: one of them has no name
{ [ -z "$uids" ] || limited getent 1 getent passwd $uids || :; } | awk -F : '{gsub(/[\001-\037\177]/, "?", $1); print $3 "\t" $1}'
set --
for pid in $pids; do set -- "$@" "$PROC/$pid/cmdline"; done
# every argument becomes a line behind its file's name; a newline in one becomes a space, any other control character a ?
limited reading-commands 1 grep -asHz '' "$@" | tr '\000\012\001-\011\013-\037\177' '\012\040?' |
    awk -v proc="$PROC" -v pids="$pids" -f "$LIB/mask.awk" -f "$LIB/container.awk" -f "$LIB/ask.awk"
