# Sourced by slurm/task_prolog.sh and by a pod's run: they ask affinityd, and pin by its answer.
# They pass variables on as they are: the daemon interprets them.
#
# The script sets the paths (proc, curl, taskset, python; clean starts a tool), and has a switch
# and `leave REASON`, which ends it.
# shellcheck shell=sh disable=SC2034,SC2154 # variables of the scripts, and those that eval reads

# Parameters that site and job may choose.
plan_variables='AFFINITYD_MODE AFFINITYD_SCOPE AFFINITYD_SHARE AFFINITYD_MULTITHREADING AFFINITYD_BALANCED
AFFINITYD_STRICT AFFINITYD_MIN_PHYSICAL_CORES AFFINITYD_MAX_PHYSICAL_CORES AFFINITYD_CPUS'
cpuset='' observe='' granted='' job='' # other parameters, if known

heed() { # WORD: switch, the least of its value and AFFINITYD=WORD
    case $1 in
    '' | [Oo][Nn] | 1 | [Yy][Ee][Ss] | [Tt][Rr][Uu][Ee]) ;;
    [Oo][Bb][Ss][Ee][Rr][Vv][Ee]) [ "$switch" = off ] || switch=observe ;;
    [Oo][Ff][Ff] | 0 | [Nn][Oo] | [Ff][Aa][Ll][Ss][Ee]) switch=off ;;
    *) return 1 ;;
    esac
}
has() { command -v "$1" >/dev/null; }
is_number() { case $1 in '' | *[!0-9]* | ???????????*) return 1 ;; esac; }
is_cpulist() { # no machine has a CPU of six digits
    case $1 in '' | *[!0-9,-]* | [,-]* | *[,-] | *[,-][,-]* | *[0-9][0-9][0-9][0-9][0-9][0-9]*) return 1 ;; esac
}
read_status() { # FIELD PID: value
    while read -r name value _; do
        [ "$name" != "$1" ] || return 0
    done <"$proc/$2/status"
    return 1
}
read_mask() { # PID: mask, the CPUs on which it may run
    read_status Cpus_allowed_list: "$1" && is_cpulist "$value" && mask=$value
}
find_devices() { # PREFIX KIND: granted, the device files that this process may open
    for device in "$1"[0-9]*; do
        ! is_number "${device#"$1"}" || ! [ -r "$device" ] || ! [ -w "$device" ] ||
            granted=${granted:+$granted,}$2:${device#"$1"}
    done
}

ask() { # ADDRESS SECONDS VARIABLES: answer, and the status asked; of a socket's path, http://HOST:PORT, or a node.json
    address=$1 seconds=$2 variables=$3
    set -- --data-urlencode format=shell
    for name in cpuset observe granted job; do
        eval "set -- \"\$@\" \${$name:+--data-urlencode \"$name=\$$name\"}"
    done
    for name in $variables $plan_variables; do
        eval "set -- \"\$@\" \${$name+--data-urlencode \"env=$name=\$$name\"}"
    done
    answer=$(fetch "$@")
    asked=$?
    [ "$asked,$((${#answer} < 65536))" = 0,1 ] || answer='' # a plan that was cut off does not count
}
fetch() { # --data-urlencode PARAMETER...; 7: nothing listens
    if [ -f "$address" ]; then
        for it; do
            shift
            [ "$it" != --data-urlencode ] || it=--query
            set -- "$@" "$it"
        done
        $clean "$limit" -s KILL "$seconds" "$affinityd" plan --node-file "$address" "$@"
    elif has "$curl"; then
        tries=1
        case $address in
        /*)
            set -- "$@" --unix-socket "$address" http://localhost/plan
            tries='1 2 3 4 5 6 7 8 9 10 11 12' # of ms: curl waits for no room in a queue, unix(7)
            ;;
        *) set -- "$@" "$address/plan" ;;
        esac
        for _ in $tries; do
            $clean "$curl" -q -s -G --noproxy '*' -m "$seconds" --max-filesize 65536 --limit-rate 1M "$@"
            status=$?
            [ "$status" = 7 ] || return "$status"
        done
        return 7
    elif has "$python"; then
        $clean "$python" -I -S -c '
import http.client, os, signal, socket, sys, urllib.parse
signal.signal(signal.SIGALRM, signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
signal.setitimer(signal.ITIMER_REAL, float(sys.argv[2]))  # and that is the end
daemon = http.client.HTTPConnection(sys.argv[1].partition("//")[2] or "localhost")
if sys.argv[1].startswith("/"):
    daemon.sock = socket.socket(socket.AF_UNIX)
    if daemon.sock.connect_ex(sys.argv[1]):
        sys.exit(7)
query = "&".join(urllib.parse.quote(os.fsencode(it), "=") for it in sys.argv[4::2])
daemon.request("GET", "/plan?" + query)
print(daemon.getresponse().read(65536).decode())
' "$address" "$seconds" "$@"
    else
        query='' # wget encodes nothing
        for it; do
            case $it in --data-urlencode) ;; *[!A-Za-z0-9_.:,/\(\)=-]*) return 1 ;; *) query="$query&$it" ;; esac
        done
        http_proxy='' timeout 1 wget -q -O - "$address/plan?${query#?}"
    fi
}
understand() { # cpulist, locality, allowed, warnings, job_gpus, rdma; else reason, the answer's first line
    value='' cpulist='' locality='' allowed='' warnings='' job_gpus='' rdma='' reason=''
    while IFS= read -r line; do # to cut lines out of a long answer takes some shells seconds
        reason=${reason:-$line}
        case $line in
        AFFINITYD=*) value=${line#*=} ;;
        AFFINITYD_CPULIST=*) cpulist=${line#*=} ;;
        AFFINITYD_LOCALITY=*) locality=${line#*=} ;;
        AFFINITYD_ALLOWED=*) allowed=${line#*=} ;;
        AFFINITYD_WARNINGS=*) warnings=${line#*=} ;;
        AFFINITYD_JOB_GPUS=*) job_gpus=${line#*=} ;;
        AFFINITYD_RDMA=*) rdma=${line#*=} ;;
        esac
    done <<END
$answer
END
    heed "$value" || switch=off
    case $locality in
    local | mixed | remote | unknown) is_cpulist "$cpulist" && is_cpulist "$allowed" && return ;;
    esac
    case $reason in AFFINITYD_* | *[[:cntrl:]]*) reason='' ;; esac
    return 1
}
apply() { # PID: mask, which it then has
    [ "$switch" = on ] || leave "observe: would run on CPUs $cpulist ($locality)"
    [ "$locality" != unknown ] || leave 'the machine does not say where its GPU is'
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
# Libraries that AFFINITYD_NICS names are told which RDMA devices are near the GPUs. What the user has
# set stays; a value of an earlier pin is replaced.
nic_variables() ( # prints NAME=value, a line each
    case ${AFFINITYD_NICS:-none},$rdma in none,* | *[!A-Za-z0-9_.:,\ -]*) return ;; esac
    for name in $(former_nics); do
        unset "$name"
    done
    ports='' set_one=''
    IFS=', '
    for port in $rdma; do
        ! can_open "${port%:*}" "${port#*:}" || ports=${ports:+$ports,}$port
    done
    for library in ${ports:+$AFFINITYD_NICS}; do
        case $library in
        [Uu][Cc][Xx]) name=UCX_NET_DEVICES ;;
        [Nn][Vv][Ss][Hh][Mm][Ee][Mm]) name=NVSHMEM_HCA_LIST ;;
        [Nn][Cc][Cc][Ll]) name=NCCL_IB_HCA ;;
        [Uu][Cc][Cc][Ll]) name=UCCL_P2P_RDMA_DEV ;;
        *) continue ;;
        esac
        eval "[ -z \"\${$name-}\" ]" && set_one=yes && printf '%s\n' "$name=$(nic_value "$name" "$ports")"
    done
    [ -z "$set_one" ] || printf '%s\n' "AFFINITYD_RDMA=$ports"
)
former_nics() ( # prints the variables that an earlier pin has set, by its AFFINITYD_RDMA
    former=${AFFINITYD_RDMA-}
    case $former in '' | *[!A-Za-z0-9_.:,-]*) return ;; esac
    for name in UCX_NET_DEVICES NVSHMEM_HCA_LIST NCCL_IB_HCA UCCL_P2P_RDMA_DEV; do
        eval "value=\${$name-}"
        [ "$value" != "$(nic_value "$name" "$former")" ] || printf '%s\n' "$name"
    done
)
nic_value() ( # NAME PORTS: prints the value of a library's variable
    case $1 in
    NCCL_IB_HCA) printf '=%s' "$2" ;; # else it is a prefix
    UCCL_P2P_RDMA_DEV)
        devices='' IFS=,
        for port in $2; do
            case ,$devices, in *",${port%:*},"*) ;; *) devices=${devices:+$devices,}${port%:*} ;; esac
        done
        printf %s "$devices"
        ;;
    *) printf %s "$2" ;;
    esac
)
can_open() { # DEVICE PORT: whether a port is active, and this process may open its device
    folder=$sys/class/infiniband/$1 state=''
    IFS=' ' read -r state _ <"$folder/ports/$2/state"
    [ "$state" = 4: ] || return 1
    for file in "$folder"/device/infiniband_verbs/uverbs*; do
        { IFS= read -r ibdev <"$file/ibdev" && [ "$ibdev" = "$1" ]; } || continue # an adapter may have several
        file=$dev/infiniband/${file##*/}
        [ ! -r "$file" ] || [ ! -w "$file" ] || return 0
    done
    return 1
}
