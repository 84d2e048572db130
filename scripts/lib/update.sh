#!/bin/sh
# lib/update.sh FILE...: one update for gpu-receive.sh by fd 4, its answer by fd 5. Exit 3 if it is refused, with its sentence on stderr.
set -eu
case $0 in */*) LIB=${0%/*} ;; *) LIB=. ;; esac
awk -f "$LIB/update.awk" "$@" >&4
while read -r word words <&5; do
    case $word in
        ok) exit 0 ;;
        refused) echo "the web host refuses it: $words" >&2 && exit 3 ;;
        gone) exit 1 ;;
    esac # the login shell of the far side may have words of its own
done
exit 1
