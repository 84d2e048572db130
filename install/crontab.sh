# shellcheck shell=sh disable=SC2154 # work: set by the script that reads this one
# Change the crontab of this user: a block for each role between two marker lines; no other line is touched.

# print_crontab_error: print the errors of crontab on one line.
print_crontab_error() { awk 'NF {all = all (all == "" ? "" : "; ") $0} END {print substr(all, 1, 300)}' "$work/words"; }

# read_crontab: write it to $work/before. A user who may not have a crontab is told before anything is changed.
read_crontab() {
    command -v crontab >/dev/null || die 'there is no crontab command: install cron first (Debian and Ubuntu: sudo apt-get install cron)'
    unset CRONTAB_NOHEADER # or the header of cron would be printed, and kept as if it were the user's
    if ! crontab -l >"$work/before" 2>"$work/words"; then
        grep -qiE 'no crontab for|No such file' "$work/words" || die "your crontab cannot be read, so nothing was changed: $(print_crontab_error)"
        : >"$work/before"
    fi
    # crontab -l does not report a full disk, and what is missing here would be lost
    crontab -l 2>/dev/null | cmp -s - "$work/before" || die "your crontab could not be read completely, so nothing was changed: is the disk of ${work%/*} full?"
    ! grep -qF '\r' "$work/before" || read_carriage_returns
}

# read_carriage_returns: Debian's `crontab -l` prints a carriage return as \r, two letters, which would be written back as such. `crontab -e` has the true text.
read_carriage_returns() {
    # shellcheck disable=SC2016 # for the small program
    printf '#!/bin/sh\ncp "$1" "%s/true_text"\n' "$work" >"$work/editor"
    chmod +x "$work/editor"
    VISUAL=$work/editor EDITOR=$work/editor crontab -e >/dev/null 2>&1 </dev/null || :
    cr=$(printf '\r')
    if [ -f "$work/true_text" ] && { cmp -s "$work/true_text" "$work/before" || sed "s/$cr/\\\\r/g" "$work/true_text" | cmp -s - "$work/before"; }; then
        mv -f "$work/true_text" "$work/before"
    else
        die 'your crontab contains \r, which may be a carriage return or two characters: remove it first (crontab -e)'
    fi
}

# quote_for_crontab PATH: quote it for sh in a crontab, where a plain % would end the command. Crons treat any other backslash differently, so there is none.
quote_for_crontab() {
    case $1 in
        *[!A-Za-z0-9/._+@:,=-]*) printf '%s\n' "$1" | sed -e "s/'/'\"'\"'/g" -e 's/%/\\%/g' -e "s/.*/'&'/" ;;
        *) printf '%s\n' "$1" ;;
    esac
}

# change_crontab ROLE LINES: set the lines in the block of this role; without lines, remove the block.
change_crontab() {
    read_crontab
    # twice, since busybox awk does not report a full disk
    { print_new_crontab "$@" >"$work/after" && print_new_crontab "$@" | cmp -s - "$work/after"; } 2>/dev/null ||
        die "your crontab could not be changed and is unchanged: is the disk of ${work%/*} full?"
    ! cmp -s "$work/before" "$work/after" || return 0
    if [ -s "$work/after" ]; then
        crontab - <"$work/after" 2>"$work/words" || die "your crontab could not be changed and is unchanged: $(print_crontab_error)"
    else
        crontab -r
    fi
}

# print_new_crontab ROLE LINES: print the new crontab.
print_new_crontab() { BLOCK=$2 awk -v role="$1" -f "$ROOT/install/crontab.awk" "$work/before"; }

# has_crontab_block ROLE: whether the crontab that was read has its block.
has_crontab_block() { grep -qxF "# >>> gpuboard $1 >>>" "$work/before"; }
