#!/bin/sh
# lib/push_folder.sh DEST HOST SPOOL FILE...: put the files in DEST/HOST/, each whole or not at all.
# DEST is never created: a share that is not mounted would be filled below its mount point. It may belong to anybody, DEST/HOST must be ours.
set -eu
umask 027
case $0 in */*) LIB=${0%/*} ;; *) LIB=. ;; esac
case $LIB in /*) ;; *) LIB=$PWD/$LIB ;; esac
# shellcheck source=scripts/lib/host_folder.sh
. "$LIB/host_folder.sh"
dest=$1 HOST=$2 spool=$3
shift 3
# shellcheck disable=SC2034 # for the sentences of host_folder.sh
data_label=$dest where='' allowed_owners=any remedy="run ./install.sh web on the web host, or as the owner of that folder: chmod +t $dest"

# print_error_and_exit: print why the folder cannot be used.
print_error_and_exit() {
    printf '%s\n' "$rejection" >&2
    exit 1
}

enter_host_folder "$dest" || print_error_and_exit
# a .new of another mode or owner is from an older version, or somebody else's; a file in it was left by a push that was killed
can_reuse='' sources=''
# shellcheck disable=SC3067 # -O: in every sh that we know
if [ "$new_mode" = 700 ] && [ ! -h .new ] && [ -O .new ]; then can_reuse=1; fi
for file in "$@"; do
    sources="$sources $spool/$file"
    if [ -e ".new/$file" ] || [ -h ".new/$file" ]; then can_reuse=; fi
done
[ -n "$can_reuse" ] || make_new_folder || print_error_and_exit
# shellcheck disable=SC2086 # one word a file
cp $sources .new/
cd .new
mv -f "$@" ..
