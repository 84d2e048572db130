#!/bin/sh
# lib/to-folder.sh DEST HOST SPOOL FILE...: put the files in DEST/HOST/, each whole or not at all.
set -eu
umask 027
dest=$1 host=$2 spool=$3
shift 3
# never made here: a share that is not mounted would be filled below its mount point
[ -d "$dest" ] || {
    echo "the folder $dest is not there (not mounted?)" >&2
    exit 1
}
new=$dest/$host/.new
[ -d "$new" ] || mkdir -p "$new"
cd "$spool"
cp -f "$@" "$new/"
cd "$new"
mv -f "$@" ..
