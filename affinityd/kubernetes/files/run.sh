#!/bin/sh
# run [--fail-closed] [--] COMMAND [ARGUMENT...]: starts a command near its container's GPUs.
#
# `affinityd init` puts it into a pod. It asks the node's affinityd, else reads the table beside
# itself. Of the image it needs sh, and taskset or python3; it asks by curl, python3 or, over TCP,
# wget, and sees by ls whose a socket is. Whatever is wrong, the command starts all the same, and a
# line on stderr says why.
# shellcheck disable=SC2034,SC2154 # variables that eval reads and sets

# All of it runs in a subshell: its variables may be names of the command's environment.
find_place() { # prints what the command is told, nothing if off, or what kept it from its place
    unset -f [ printf read cd # exported functions of the job, where sh is bash
    dev=/dev sys=/sys proc=/proc ls=ls id=id
    set +e +f +u # of a job's SHELLOPTS
    LC_ALL=C
    trap '' PIPE # of a stderr that nobody reads
    newline='
'
    case $0 in */*) here=${0%/*} ;; *) here=. ;; esac
    switch=on
    heed "${AFFINITYD-}" || leave 'AFFINITYD is none of on, observe and off'
    # shellcheck source=/dev/null
    [ ! -r "$here/settings" ] || . "$here/settings"
    stay_if_off
    read_mask || leave "the mask in $proc/$$/status cannot be read"
    has taskset || has python3 || leave 'neither taskset nor python3 is here'
    find_gpus
    find_rank
    find_asked
    sharers=1
    allowed=$mask # what an earlier run has set is no limit
    [ "${AFFINITYD_CPULIST-}" != "$mask" ] || ! is_cpulist "${AFFINITYD_ALLOWED-}" ||
        allowed=$AFFINITYD_ALLOWED
    if ! ask_daemon; then
        [ -r "$here/table" ] || leave "$trouble, and there is no table of what one said before"
        # shellcheck source=affinityd/kubernetes/files/table.sh
        . "$here/table.sh"
        plan_from_table
        is_enough || leave "$trouble, and in $here/table $size CPUs are near, of $each asked for"
        say "$trouble; planned from $here/table"
    fi
    stay_if_off
    [ "$switch" = on ] || leave "observe: would run on CPUs $cpulist ($locality)"
    pin "$cpulist" || leave "CPUs $cpulist were refused"
    read_mask || leave "CPUs $cpulist could not be read back"
    [ "$locality" != remote ] || say "CPUs $mask are not near the GPU; allowed are $allowed"
    printf '%s %s %s' "$mask" "$locality" "$allowed"
}

heed() { # WORD: switch, the least of what it was and what AFFINITYD=WORD says
    case $1 in
    '' | [Oo][Nn] | 1 | [Yy][Ee][Ss] | [Tt][Rr][Uu][Ee]) ;;
    [Oo][Bb][Ss][Ee][Rr][Vv][Ee]) [ "$switch" = off ] || switch=observe ;;
    [Oo][Ff][Ff] | 0 | [Nn][Oo] | [Ff][Aa][Ll][Ss][Ee]) switch=off ;;
    *) return 1 ;;
    esac
}
stay_if_off() { [ "$switch" != off ] || exit 0; }
is_number() { case $1 in '' | *[!0-9]* | ??????????*) return 1 ;; esac; }
is_plain() { case $1 in *[!A-Za-z0-9_.:,/-]*) return 1 ;; esac; }
is_cpulist() {
    case $1 in '' | *[!0-9,-]* | [,-]* | *[,-] | *[,-][,-]*) return 1 ;; esac
    case $1 in *[0-9][0-9][0-9][0-9][0-9][0-9]*) return 1 ;; esac # nor has any machine
}
has() { command -v "$1" >/dev/null; }
say() { [ "$switch" = observe ] || printf 'affinityd run: %s\n' "$1" >&3; }
leave() { # REASON
    [ "$switch" != observe ] || { printf 'unpinned %s' "$1" && exit; }
    printf %s "$1"
    exit 1
}
strip() { # NUMBER: number, without the zeros that would make it octal
    number=${1#"${1%%[!0]*}"}
    [ -n "$number" ] || [ -z "$1" ] || number=0
}
count() { # LIST [SEPARATOR]: count, how many entries it has
    set -f
    IFS=${2:-,}
    # shellcheck disable=SC2086 # a word an entry
    set -- $1
    unset IFS
    set +f
    count=$#
}
common() { # LIST LIST: common, the CPUs that are in both
    common=''
    IFS=,
    for one in $1; do
        for other in $2; do
            low=${one%-*} high=${one#*-}
            [ "$low" -ge "${other%-*}" ] || low=${other%-*}
            [ "$high" -le "${other#*-}" ] || high=${other#*-}
            [ "$low" -gt "$high" ] || common=${common:+$common,}$low-$high
        done
    done
    unset IFS
}
read_mask() { # mask: the CPUs on which the command would run
    while read -r name mask; do
        [ "$name" != Cpus_allowed_list: ] || break
    done <"$proc/$$/status"
    is_cpulist "$mask"
}
pin() { # CPULIST
    { has taskset && taskset -cp "$1" $$; } || # an old busybox's takes masks alone
        python3 -I -S -c '
import os, sys
parts = [part.partition("-") for part in sys.argv[1].split(",")]
cpus = {cpu for part in parts for cpu in range(int(part[0]), int(part[2] or part[0]) + 1)}
os.sched_setaffinity(int(sys.argv[2]), cpus)
' "$1" $$
} >/dev/null

# ------------------------------------------------------------------------------ which GPUs and rank

find_devices() { # PREFIX KIND: granted, the device files that this process may open
    for device in "$1"[0-9]*; do
        if is_number "${device#"$1"}" && [ -r "$device" ] && [ -w "$device" ] &&
            is_of_vendor "$2"; then
            granted=${granted:+$granted,}$2:${device#"$1"}
        fi
    done
}
is_of_vendor() { # KIND: NVIDIA's files are so by their name
    [ "$1" = minor ] && return
    read -r vendor <"$sys/class/drm/${device##*/}/device/vendor" && [ "$vendor" = 0x1002 ]
}
find_gpus() { # granted: by device files; listed: by the container runtime; visible: by variables
    granted='' listed='' variables='' hip=''
    find_devices "$dev/nvidia" minor
    [ -n "$granted" ] || find_devices "$dev/dri/renderD" drm
    case $granted in
    drm:*)
        hip=${HIP_VISIBLE_DEVICES:-${CUDA_VISIBLE_DEVICES-}} # HIP reads CUDA's, too
        variables=${ROCR_VISIBLE_DEVICES+ROCR_VISIBLE_DEVICES}${hip:+ hip}
        visible=${ROCR_VISIBLE_DEVICES+ROCR_VISIBLE_DEVICES=$ROCR_VISIBLE_DEVICES}
        visible=$visible${hip:+${visible:+;}HIP_VISIBLE_DEVICES=$hip} said=$visible
        ;;
    *)
        variables=${CUDA_VISIBLE_DEVICES+CUDA_VISIBLE_DEVICES}
        visible=${CUDA_VISIBLE_DEVICES-} said="CUDA_VISIBLE_DEVICES=$visible"
        case ${NVIDIA_VISIBLE_DEVICES-} in # all, void, none or a folder prove nothing
        [0-9]* | GPU-* | MIG-*) listed=$NVIDIA_VISIBLE_DEVICES ;;
        esac
        ;;
    esac
    : "${granted:=$listed}"
    [ -n "$granted" ] || leave 'no device file of a GPU is here'
}
find_rank() { # rank of ranks, if a launcher says it and each rank does not see a GPU of its own
    for names in LOCAL_RANK:LOCAL_WORLD_SIZE LOCAL_RANK:LOCAL_SIZE \
        OMPI_COMM_WORLD_LOCAL_RANK:OMPI_COMM_WORLD_LOCAL_SIZE MPI_LOCALRANKID:MPI_LOCALNRANKS \
        PMI_LOCAL_RANK:PMI_LOCAL_SIZE LOCAL_RANK: FLUX_TASK_LOCAL_ID:; do
        rank='' ranks=''
        eval "rank=\${${names%:*}-}"
        [ -z "${names#*:}" ] || eval "ranks=\${${names#*:}-}"
        is_number "$rank" && { is_number "$ranks" || [ -z "${names#*:}" ]; } && break
        rank=''
    done
    [ "$ranks" != 1 ] || [ -n "${LOCAL_RANK-}" ] || rank='' # alone, it has all that it sees
    [ -n "$rank" ] || return 0
    strip "$rank" && rank=$number
    strip "$ranks" && ranks=$number
    count "${listed:-$granted}"
    given=$count
    [ -z "$variables" ] || count "${visible##*=}"
    case $count,${AFFINITYD_SHARE-},${AFFINITYD_MODE-} in
    [01],requested,* | [01],*,even | [01],*,core[-_]complex) ;; # who differ by their numbers
    [01],*) [ "$given" -lt 2 ] || rank='' AFFINITYD_SHARE=${AFFINITYD_SHARE:-node} ;;
    esac
    [ "${ranks:-0}" -gt "${rank:-0}" ] || ranks=$((${rank:-0} < count ? count : rank + 1))
}

find_asked() { # job_cpus, task_cpus: the container's CPU request, else its limit; its ranks' part
    job_cpus=${AFFINITYD_JOB_CPUS-} task_cpus='' quota='' period=''
    if ! is_number "$job_cpus"; then
        job_cpus=''
        read -r quota period <"$sys/fs/cgroup/cpu.max" ||
            { read -r quota <"$sys/fs/cgroup/cpu/cpu.cfs_quota_us" &&
                read -r period <"$sys/fs/cgroup/cpu/cpu.cfs_period_us"; }
        ! is_number "$quota" || ! is_number "$period" || job_cpus=$(((quota + period - 1) / period))
    fi
    strip "$job_cpus" && job_cpus=${number#0} # 0: the container asked for none
    [ -z "$job_cpus" ] || task_cpus=1/${ranks:-1}
    case ${AFFINITYD_CPUS-} in
    '') ;;
    none) task_cpus='' ;;
    *)
        is_number "$AFFINITYD_CPUS" ||
            leave "AFFINITYD_CPUS=$(printf %.40s "$AFFINITYD_CPUS") is neither none nor a number"
        strip "$AFFINITYD_CPUS" && task_cpus=$number
        ;;
    esac
}
is_enough() { # the cpulist has as many CPUs as its tasks asked for, or all of them; size, each
    case $task_cpus in
    '') return ;;
    1/*) each=$((job_cpus * sharers / ${task_cpus#1/})) ;;
    *) each=$((task_cpus * sharers)) ;;
    esac
    measure "$allowed"
    [ "$each" -le "$size" ] || each=$size
    measure "$cpulist"
    [ "$size" -ge "$each" ]
}
measure() { # CPULIST: size, how many CPUs are in it
    size=0
    IFS=,
    for one in $1; do
        size=$((size + ${one#*-} - ${one%-*} + 1))
    done
    unset IFS
}

# ------------------------------------------------------------------------------ asked of the daemon

ask_daemon() { # cpulist, locality, allowed; trouble
    trouble='no affinityd is here to be asked' seconds=0.7
    mode=${AFFINITYD_MODE:-${AFFINITYD_SCOPE:+all}} observed=''
    [ "$switch" = on ] || observed=$mask
    query=format=shell
    add mode "${mode:-node}"
    add cpuset "$allowed"
    for fact in observe:observed granted:granted nvidia_visible:listed \
        scope:AFFINITYD_SCOPE share:AFFINITYD_SHARE \
        multithreading:AFFINITYD_MULTITHREADING balanced:AFFINITYD_BALANCED \
        strict:AFFINITYD_STRICT min_physical_cores:AFFINITYD_MIN_PHYSICAL_CORES \
        max_physical_cores:AFFINITYD_MAX_PHYSICAL_CORES task_cpus:task_cpus job_cpus:job_cpus \
        rank:rank ranks:rank; do
        eval "value=\${${fact#*:}-}"
        [ -z "$value" ] || [ "$fact" != ranks:rank ] || value=$ranks
        [ -z "$value" ] || add "${fact%%:*}" "$value"
    done
    [ -z "$variables" ] || add visible "$visible"
    for address in "${AFFINITYD_SOCKET:-/run/affinityd/affinityd.sock}" "${AFFINITYD_URL-}"; do
        case $address in
        /*) [ -S "$address" ] || continue ;;
        http://*:[0-9]*) address=${address%/} ;;
        '') continue ;;
        *)
            trouble="$address is neither http://HOST:PORT nor the path of a socket from /"
            continue
            ;;
        esac
        trouble="neither curl nor python3 is here to ask $address"
        choose_tool "$address" || continue
        is_trusted "$address" || continue
        trouble="no answer from $address"
        answer=$newline$(ask_by_"$tool" "$address")$newline
        ! understand || return 0
        seconds=0.2
    done
    return 1
}
is_trusted() { # ADDRESS: address, of a socket that without links; trouble
    case $1 in /*) ;; *) return ;; esac
    # shellcheck source=affinityd/kubernetes/files/trust.sh
    . "$here/trust.sh"
    if found=$(trusted_socket "$1" "${AFFINITYD_DAEMON_UID-}"); then
        address=$found
    else
        trouble=$found
        return 1
    fi
}
understand() { # cpulist, locality, allowed of the answer
    read_line AFFINITYD
    heed "$value" || switch=off
    read_line AFFINITYD_CPULIST && cpulist=$value
    read_line AFFINITYD_LOCALITY && locality=$value
    read_line AFFINITYD_ALLOWED && planned=$value
    case $locality in local | unknown | mixed | remote) ;; *) cpulist='' ;; esac
    if is_cpulist "$cpulist" && is_cpulist "$planned"; then
        common "$cpulist" "$allowed"
        cpulist=$common allowed=$planned
        [ -n "$cpulist" ]
        return
    fi
    reason=${answer#?}
    reason=${reason%%"$newline"*}
    case $reason in
    'Malformed request: unknown parameter'* | *[[:cntrl:]]*) ;; # of another release, or none
    'Malformed request: '* | 'No such GPU: '* | 'Cannot be satisfied: '*)
        leave "$(printf %.300s "$reason")${variables:+ ($said)}"
        ;;
    esac
    return 1
}
add() { # NAME VALUE
    encoded='' rest=$2
    ! is_plain "$rest" || encoded=$rest rest=''
    [ "${#rest}" -lt 512 ] || # which takes long
        leave "$1 has ${#rest} characters that are no plan's: $(printf %.40s "$rest")..."
    while [ -n "$rest" ]; do
        one=${rest%"${rest#?}"} rest=${rest#?}
        is_plain "$one" || one=$(printf '%%%02X' "'$one")
        encoded=$encoded$one
    done
    query="$query&$1=$encoded"
}
choose_tool() { # ADDRESS: tool
    for tool in curl python3 wget; do
        has "$tool" || continue
        [ "$tool" != wget ] || case $1 in /*) continue ;; *) has timeout || continue ;; esac
        return
    done
    return 1
}
ask_by_curl() { # ADDRESS
    tries=1
    case $1 in
    /*)
        tries='1 2 3 4 5 6 7 8 9 10 11 12' # of ms: it waits for no room in a queue, unix(7)
        set -- http://localhost --unix-socket "$1"
        ;;
    esac
    url="$1/plan?$query"
    shift
    for _ in $tries; do
        curl -q -s --noproxy '*' -m "$seconds" "$@" "$url"
        [ $? = 7 ] || break
    done | head -c 65536
}
ask_by_wget() { http_proxy='' timeout 1 wget -q -O - "$1/plan?$query" | head -c 65536; }
ask_by_python3() {
    python3 -I -S -c '
import signal, socket, sys
address, seconds, query = sys.argv[1:]
signal.signal(signal.SIGALRM, signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
signal.setitimer(signal.ITIMER_REAL, float(seconds))  # and that is the end
if address.startswith("/"):
    daemon = socket.socket(socket.AF_UNIX)
    daemon.connect(address)
else:
    host, _, port = address.partition("//")[2].rpartition(":")
    daemon = socket.create_connection((host.strip("[]"), int(port)))
daemon.sendall(f"GET /plan?{query} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
print(daemon.makefile("rb").read(65536).partition(b"\r\n\r\n")[2].decode())
' "$1" "$seconds" "$query"
}
read_line() { # NAME: value, what the answer says of it
    value=''
    case $answer in *"$newline$1="*) ;; *) return ;; esac
    value=${answer#*"$newline$1="}
    value=${value%%"$newline"*}
}

# ---------------------------------------------------------------------------------------- and then

tell() { (unset -f printf && printf 'affinityd run: %s\n' "$1" >&2); } # SIGPIPE may have that shell

# Becomes the command. Some sh drop variables whose names they could not assign: env keeps them.
start() { # COMMAND [ARGUMENT...]
    affinityd_odd=''
    case $1 in *=*) ;; *) ! has env || affinityd_odd=$(odd_variables 2>/dev/null) ;; esac
    if [ -n "$affinityd_odd" ]; then
        set -f
        IFS='
'
        for affinityd_odd in $affinityd_odd; do
            set -- "$affinityd_odd" "$@"
        done
        set -- env "$@"
    fi
    trap - EXIT
    exec "$@"
}
odd_variables() { # those of one line
    unset -f [ printf read tr
    tr '\0\n' '\n\1' <"/proc/$$/environ" | while IFS= read -r entry; do
        case $entry in *[[:cntrl:]]*) continue ;; esac
        case ${entry%%=*} in *[!A-Za-z0-9_]* | [0-9]*) printf '%s\n' "$entry" ;; esac
    done
}

affinityd_closed='' affinityd_usage='usage: run [--fail-closed] [--] COMMAND [ARGUMENT...]'
case ${1-} in
--fail-closed)
    affinityd_closed=1
    shift
    ;;
-h | --help) echo "$affinityd_usage" && exit ;;
esac
[ "${1-}" != -- ] || shift
case ${1--} in
-*)
    echo "$affinityd_usage" >&2
    exit 125
    ;;
esac
if [ -z "$affinityd_closed" ]; then
    trap 'exec "$@"' EXIT # of a shell that may not even fork
    trap 'trap - EXIT TERM && kill -TERM $$' TERM # for bash would take its end for that, too
    trap 'trap - EXIT INT && kill -INT $$' INT
    trap 'trap - EXIT HUP && kill -HUP $$' HUP
fi
if affinityd_place=$(
    if (: >&2); then exec 3>&2; else exec 3>/dev/null; fi
    exec 2>/dev/null </dev/null
    find_place
); then
    case $affinityd_place in
    '') ;;
    'unpinned '*)
        AFFINITYD_UNPINNED=${affinityd_place#* }
        export AFFINITYD_UNPINNED
        ;;
    *)
        AFFINITYD_CPULIST=${affinityd_place%% *} AFFINITYD_ALLOWED=${affinityd_place##* }
        AFFINITYD_LOCALITY=${affinityd_place#* }
        AFFINITYD_LOCALITY=${AFFINITYD_LOCALITY%% *}
        export AFFINITYD_CPULIST AFFINITYD_LOCALITY AFFINITYD_ALLOWED
        unset AFFINITYD_UNPINNED
        ;;
    esac
elif [ -n "$affinityd_closed" ]; then
    tell "${affinityd_place:-the script broke off}; the command was not started"
    exit 125
else
    tell "${affinityd_place:-the script broke off}; the command runs unpinned"
fi
start "$@"
