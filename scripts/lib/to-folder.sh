#!/bin/sh
# lib/to-folder.sh DEST HOST SPOOL FILE...: put the files in DEST/HOST/, each whole or not at all.
# DEST is never made here: a share that is not mounted would be filled below its mount point. It may belong to anybody, DEST/HOST must be ours.
set -eu
umask 027
case $0 in */*) LIB=${0%/*} ;; *) LIB=. ;; esac
case $LIB in /*) ;; *) LIB=$PWD/$LIB ;; esac
# shellcheck source=scripts/lib/protect.sh
. "$LIB/protect.sh"
dest=$1 HOST=$2 spool=$3
shift 3
# shellcheck disable=SC2034 # for the sentences of protect.sh
called=$dest there='' owners=any remedy="call ./install.sh web on the web host, or as the owner of that folder: chmod +t $dest"

# fail: what is wrong, in a sentence.
fail() {
    printf '%s\n' "$wrong" >&2
    exit 1
}

enter_host "$dest" || fail
# a .new of another mode or owner is of an older version, or somebody else's; a file in it is of a push that was killed
fresh='' sources=''
# shellcheck disable=SC3067 # -O: in every sh that we know
if [ "$new_mode" = 700 ] && [ ! -h .new ] && [ -O .new ]; then fresh=1; fi
for file in "$@"; do
    sources="$sources $spool/$file"
    if [ -e ".new/$file" ] || [ -h ".new/$file" ]; then fresh=; fi
done
[ -n "$fresh" ] || make_new || fail
# shellcheck disable=SC2086 # one word a file
cp $sources .new/
cd .new
mv -f "$@" ..
