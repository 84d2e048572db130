# shellcheck shell=sh disable=SC2034,SC2154,SC3067 # HOST and the words of sentences are set by the script that reads this one, which uses wrong and new_mode; -O: in every sh that we know
# Writing into a folder that other accounts may write to, too. Nothing is written by a path that they can redirect: we enter DATA/HOST
# first, and then check `.`, which nobody can exchange any more. All names are relative to it from then on.

# can_others_write FOLDER MODE GID: whether another account can replace what stands in a folder with this mode (stat's %a) and group.
# In a sticky folder they cannot. A group that has the name of this account and no other members (umask 002) has no others in it; but
# where there is an access list, which ls shows by a +, these bits are not about the group.
can_others_write() {
    case $2 in
        '' | *[!0-7]*) return 0 ;;
        [1357]???) return 1 ;;
        *[2367]) return 0 ;;
        *[2367]?) ;;
        *) return 1 ;;
    esac
    case $(ls -ld "$1/") in ??????????+*) return 0 ;; esac
    case $(getent group "$3") in "$(id -un)":*:) return 1 ;; esac
    return 0
}

# reject DATA SENTENCE: sets wrong to it, or to what lets others cause that and more.
reject() {
    wrong=$2
    # shellcheck disable=SC2046 # two words
    ! can_others_write "$1" $(stat -c '%a %g' "$1/.") || wrong="other accounts can write to $called$there, and so redirect what is written: $remedy"
    return 1
}

# enter_host DATA: goes into DATA/HOST, which is made if it is not there, and checks it. If it cannot be used, `wrong` is the sentence
# that says why: `called` is DATA as sentences name it, `there` says on which machine, `remedy` what to do if others can write to it.
# DATA may belong to anybody if `owners` is any; else to us or root.
enter_host() {
    wrong=
    CDPATH='' cd -P -- "$1" 2>/dev/null || { wrong="the folder $1 is not there$there (not mounted?)" && return 1; }
    top=$PWD
    [ -d "$HOST" ] || [ -h "$HOST" ] || mkdir "$HOST" 2>/dev/null || [ -d "$HOST" ] || {
        wrong="the folder $called/$HOST cannot be made$there: may $(id -un) write to $called, and has its disk room?"
        return 1
    }
    CDPATH='' cd -P -- "$HOST" 2>/dev/null || { reject "$1" "the folder $called/$HOST cannot be entered$there: it must be a folder of $(id -un)" || return; }
    [ "$PWD" = "$top/$HOST" ] || { reject "$1" "$called/$HOST is a link$there, and links are not followed: remove it" || return; }
    [ -O . ] || { reject "$1" "$called/$HOST belongs to $(stat -c %U .)$there, and not to $(id -un): remove it there, or give it to $(id -un) (chown)" || return; }
    {
        read -r top_mode top_group top_owner
        read -r mode _
        read -r new_mode _ || new_mode=
    } <<END
$(stat -c '%a %g %u' .. . .new 2>/dev/null)
END
    if [ "$owners" != any ] && [ "$top_owner" != 0 ] && [ ! -O .. ]; then
        wrong="the folder $called$there belongs to $(stat -c %U ..), and not to $(id -un): give it to $(id -un) (chown)"
        return 1
    fi
    ! can_others_write .. "$top_mode" "$top_group" || { reject .. '' || return; }
    case $mode in *[2367] | *[2367]?) ;; *) return 0 ;; esac # made under a umask of 002, or by somebody's hand
    chmod go-w . 2>/dev/null || { wrong="other accounts can write to $called/$HOST$there: chmod go-w $1/$HOST" && return 1; }
}

# make_new: after enter_host, an empty folder .new for this account alone; files are written there, and renamed.
make_new() {
    wrong=
    rm -rf .new 2>/dev/null || :
    mkdir -m 0700 .new 2>/dev/null || { # a umask would not count where there is a default access list
        wrong="$called/$HOST/.new cannot be made$there: remove what stands in its place, and see whether the disk is full"
        return 1
    }
}
