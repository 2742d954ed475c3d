# Sourced by slurm/task_prolog.sh and by a pod's run: they ask affinityd, and pin by its answer. What
# variables mean is the daemon's to know; they are passed on. prolog.sh takes trusted_socket alone.
#
# The script says where things are (proc, ls, id, od, curl, taskset, python; clean starts a tool), has a
# switch, and `leave REASON`, which ends it.
# shellcheck shell=sh disable=SC2034,SC2154 # variables of the scripts, and those that eval reads

newline='
'
# What site and job may choose.
plan_variables='AFFINITYD_MODE AFFINITYD_SCOPE AFFINITYD_SHARE AFFINITYD_MULTITHREADING AFFINITYD_BALANCED
AFFINITYD_STRICT AFFINITYD_MIN_PHYSICAL_CORES AFFINITYD_MAX_PHYSICAL_CORES AFFINITYD_CPUS'

# A socket is trusted if it is root's, or of a user whom AFFINITYD_DAEMON_UID names. Who can write to a
# folder above it could listen there, too. In a user namespace the node's users have one number, the
# overflow uid, which counts as root's; folders further up may belong to who made the container.
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
refuse() { printf %s "$1"; exit 1; }
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

heed() { # WORD: switch, the least of what it was and what AFFINITYD=WORD says
    case $1 in
    '' | [Oo][Nn] | 1 | [Yy][Ee][Ss] | [Tt][Rr][Uu][Ee]) ;;
    [Oo][Bb][Ss][Ee][Rr][Vv][Ee]) [ "$switch" = off ] || switch=observe ;;
    [Oo][Ff][Ff] | 0 | [Nn][Oo] | [Ff][Aa][Ll][Ss][Ee]) switch=off ;;
    *) return 1 ;;
    esac
}
has() { command -v "$1" >/dev/null; }
is_number() { case $1 in '' | *[!0-9]* | ???????????*) return 1 ;; esac; }
is_cpulist() {
    case $1 in '' | *[!0-9,-]* | [,-]* | *[,-] | *[,-][,-]*) return 1 ;; esac
    case $1 in *[0-9][0-9][0-9][0-9][0-9][0-9]*) return 1 ;; esac # nor has any machine
}
read_mask() { # PID: mask, the CPUs on which it may run
    while read -r name mask; do
        [ "$name" != Cpus_allowed_list: ] || break
    done <"$proc/$1/status"
    is_cpulist "$mask"
}
find_devices() { # PREFIX KIND: granted, the device files that this process may open
    for device in "$1"[0-9]*; do
        ! is_number "${device#"$1"}" || ! [ -r "$device" ] || ! [ -w "$device" ] ||
            granted=${granted:+$granted,}$2:${device#"$1"}
    done
}

encode() { # VALUE: encoded, as in a URL
    # shellcheck disable=SC2046 # a word a byte
    case $1 in
    *[!A-Za-z0-9_.:,/\(\)-]*) encoded=$(printf '%%%s' $(printf %s "$1" | "$od" -An -v -tx1)) ;;
    *) encoded=$1 ;;
    esac
}
add() { # NAME VALUE: query, with this parameter, if it has a value
    encode "$2"
    query=$query${2:+&$1=$encoded}
}
pass() { # VARIABLE...: query, with those that are set
    for name; do
        eval "[ -n \"\${$name+set}\" ] && encode \"\$$name\"" && query="$query&env=$name=$encoded"
    done
}
ask() { # ADDRESS SECONDS: answer; of a socket's path, or http://HOST:PORT
    answer=$(fetch "$1" "$2") && [ "${#answer}" -lt 65536 ] || answer='' # what was cut off is no plan
    answer=$newline$answer$newline
}
fetch() { # ADDRESS SECONDS
    if has "$curl"; then
        seconds=$2 tries=1
        case $1 in
        /*)
            set -- --unix-socket "$1" "http://localhost/plan?$query"
            tries='1 2 3 4 5 6 7 8 9 10 11 12' # of ms: curl waits for no room in a queue, unix(7)
            ;;
        *) set -- "$1/plan?$query" ;;
        esac
        for _ in $tries; do
            $clean "$curl" -q -s --noproxy '*' -m "$seconds" --max-filesize 65536 --limit-rate 1M "$@"
            status=$?
            [ "$status" = 7 ] || return "$status"
        done
    elif has "$python"; then
        $clean "$python" -I -S -c '
import http.client, signal, socket, sys
address, seconds, query = sys.argv[1:]
signal.signal(signal.SIGALRM, signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
signal.setitimer(signal.ITIMER_REAL, float(seconds))  # and that is the end
daemon = http.client.HTTPConnection(address.partition("//")[2] or "localhost")
if address.startswith("/"):
    daemon.sock = socket.socket(socket.AF_UNIX)
    daemon.sock.connect(address)
daemon.request("GET", "/plan?" + query)
print(daemon.getresponse().read(65536).decode())
' "$1" "$2" "$query"
    else
        http_proxy='' timeout 1 wget -q -O - "$1/plan?$query"
    fi
}
understand() { # cpulist, locality, allowed, warnings, job_gpus; else reason, the answer's first line
    value='' cpulist='' locality='' allowed='' warnings='' job_gpus=''
    while IFS= read -r line; do # to cut lines out of a long answer takes some shells seconds
        case $line in
        AFFINITYD=*) value=${line#*=} ;;
        AFFINITYD_CPULIST=*) cpulist=${line#*=} ;;
        AFFINITYD_LOCALITY=*) locality=${line#*=} ;;
        AFFINITYD_ALLOWED=*) allowed=${line#*=} ;;
        AFFINITYD_WARNINGS=*) warnings=${line#*=} ;;
        AFFINITYD_JOB_GPUS=*) job_gpus=${line#*=} ;;
        esac
    done <<END
$answer
END
    heed "$value" || switch=off
    case $locality in
    local | mixed | remote | unknown) is_cpulist "$cpulist" && is_cpulist "$allowed" && return ;;
    esac
    reason=${answer#?} reason=${reason%%"$newline"*}
    case $reason in AFFINITYD_* | *[[:cntrl:]]*) reason='' ;; esac
    return 1
}
apply() { # PID: mask, which it then has
    [ "$switch" = on ] || leave "observe: would run on CPUs $cpulist ($locality)"
    pin "$cpulist" "$1" >/dev/null || leave "CPUs $cpulist were refused"
    read_mask "$1" || leave "CPUs $cpulist could not be read back"
}
pin() { # CPULIST PID
    { has "$taskset" && "$taskset" -cp "$1" "$2"; } || # an old busybox's takes masks alone
        "$python" -I -S -c '
import os, sys
parts = [part.partition("-") for part in sys.argv[1].split(",")]
cpus = {cpu for part in parts for cpu in range(int(part[0]), int(part[2] or part[0]) + 1)}
os.sched_setaffinity(int(sys.argv[2]), cpus)
' "$1" "$2"
}
