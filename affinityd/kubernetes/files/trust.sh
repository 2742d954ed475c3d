# Sourced: whether a unix socket is of somebody whose word counts: root, or whom AFFINITYD_DAEMON_UID
# names. Who could write to a folder above it could listen there, too; where nobody else could, the
# owner of a socket is who listens. In a user namespace the node's users have one number, the
# overflow uid, which counts as root's; folders further up may be one's own, who made the container.
# shellcheck shell=sh disable=SC2154 # the caller's: proc, ls, id

trusted_socket() ( # SOCKET UIDS: prints its path without links, or else why it is not trusted
    find_trusted "$2"
    cd -P "${1%/*}/" || refuse "$1 is not there, or cannot be looked at"
    plain=${PWD%/}/${1##*/} above=${PWD%/}/
    set -- "$plain"
    while [ "$above" ]; do
        set -- "$above" "$@"
        above=${above%/} && above=${above%"${above##*/}"}
    done
    listed=$("$ls" -ldn -- "$@") || refuse "whose $plain is cannot be seen"
    while read -r bits _ uid _ && [ $# -gt 0 ]; do
        case ,$trusted, in
        *,"$uid",*) ;;
        *) [ "$uid,$(($# > 2))" = "$own,1" ] || refuse "$1 belongs to uid $uid, and is not trusted" ;;
        esac
        case $#,$bits in
        1,s* | *,d????????[tT]*) ;;
        1,l*) refuse "$1 is a link; name the socket itself" ;;
        1,*) refuse "$1 is no socket" ;;
        *,?????w* | *,????????w*) refuse "others may write to $1, which is not trusted" ;;
        esac
        shift
    done <<END
$listed
END
    [ $# = 0 ] || refuse "whose $1 is cannot be seen"
    printf %s "$plain"
)
refuse() { # REASON
    printf %s "$1"
    exit 1
}
find_trusted() { # UIDS: trusted, numbers; own: whose folders count, too, further up
    trusted=0 own=''
    set -f
    IFS=", "
    for user in $1; do
        case $user in *[!0-9]*) user=$("$id" -u "$user") ;; esac
        trusted=$trusted${user:+,$user}
    done
    unset IFS
    set +f
    read -r first second size <"$proc/self/uid_map" || return
    [ "$first,$second,$size" != 0,0,4294967295 ] || return
    trusted=$trusted,65534 # unless somebody changed /proc/sys/kernel/overflowuid
    while read -r name _ uid _; do
        [ "$name" != Uid: ] || own=$uid
    done <"$proc/self/status"
}
