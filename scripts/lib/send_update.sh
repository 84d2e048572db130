#!/bin/sh
# lib/send_update.sh FILE...: send one update to gpu-receive.sh on fd 4, and read its answer on fd 5. Exit 3 if it is refused, with the reason on stderr.
set -eu
case $0 in */*) LIB=${0%/*} ;; *) LIB=. ;; esac
awk -f "$LIB/format_update.awk" "$@" >&4
while read -r word words <&5; do
    case $word in
        ok) exit 0 ;;
        refused) echo "the web host refuses it: $words" >&2 && exit 3 ;;
        gone) exit 1 ;;
    esac # other lines may come from the login shell of the web host
done
exit 1
