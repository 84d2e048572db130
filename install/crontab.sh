# shellcheck shell=sh disable=SC2154 # work: set by the script that reads this one
# The crontab of this user: a block for each role between two marker lines; no other line is touched.

# crontab_words: what crontab said, in one line.
crontab_words() { awk 'NF {all = all (all == "" ? "" : "; ") $0} END {print substr(all, 1, 300)}' "$work/words"; }

# read_crontab: into the file $work/before. Whoever may not have a crontab learns it here, before anything is changed.
read_crontab() {
    command -v crontab >/dev/null || die 'there is no crontab command here: install cron first (Debian and Ubuntu: sudo apt-get install cron)'
    unset CRONTAB_NOHEADER # or cron's own head would be shown, and kept as if it were the user's
    if ! crontab -l >"$work/before" 2>"$work/words"; then
        grep -qiE 'no crontab for|No such file' "$work/words" || die "your crontab cannot be read, so nothing was changed: $(crontab_words)"
        : >"$work/before"
    fi
    # crontab -l does not tell of a full disk, and what is missing here would be lost
    crontab -l 2>/dev/null | cmp -s - "$work/before" || die "your crontab could not be read whole, so nothing was changed: is the disk of ${work%/*} full?"
    ! grep -qF '\r' "$work/before" || read_returns
}

# read_returns: Debian's `crontab -l` shows a carriage return as \r, in two letters, which would be put back as such. `crontab -e` has the true text.
read_returns() {
    # shellcheck disable=SC2016 # for the small program
    printf '#!/bin/sh\ncp "$1" "%s/true"\n' "$work" >"$work/look"
    chmod +x "$work/look"
    VISUAL=$work/look EDITOR=$work/look crontab -e >/dev/null 2>&1 </dev/null || :
    cr=$(printf '\r')
    if [ -f "$work/true" ] && { cmp -s "$work/true" "$work/before" || sed "s/$cr/\\\\r/g" "$work/true" | cmp -s - "$work/before"; }; then
        mv -f "$work/true" "$work/before"
    else
        die 'your crontab has \r in it, and nobody tells whether that is a carriage return or two letters: take it out first (crontab -e)'
    fi
}

# quoted PATH: for sh in a crontab, where a bare % would end the command. Crons differ in what they make of any other backslash, so there is none.
quoted() {
    case $1 in
        *[!A-Za-z0-9/._+@:,=-]*) printf '%s\n' "$1" | sed -e "s/'/'\"'\"'/g" -e 's/%/\\%/g' -e "s/.*/'&'/" ;;
        *) printf '%s\n' "$1" ;;
    esac
}

# change_crontab ROLE LINES: the block of this role holds these lines; with no lines there is no block. Again makes no difference.
change_crontab() {
    read_crontab
    # twice, since busybox awk does not tell of a full disk
    { crontab_text "$@" >"$work/after" && crontab_text "$@" | cmp -s - "$work/after"; } 2>/dev/null ||
        die "your crontab could not be changed, and is as it was: is the disk of ${work%/*} full?"
    ! cmp -s "$work/before" "$work/after" || return 0
    if [ -s "$work/after" ]; then
        crontab - <"$work/after" 2>"$work/words" || die "your crontab could not be changed, and is as it was: $(crontab_words)"
    else
        crontab -r
    fi
}

crontab_text() { BLOCK=$2 awk -v role="$1" -f "$ROOT/install/crontab.awk" "$work/before"; }

# has_block ROLE: whether the crontab that was read has one.
has_block() { grep -qxF "# >>> gpuboard $1 >>>" "$work/before"; }
