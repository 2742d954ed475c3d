# Sourced by slurm/task_prolog.sh and by a pod's run: asks affinityd for a plan, and pins by it.
# Variables are sent unchanged: the daemon interprets them. The sourcing script sets the paths proc, curl,
# taskset and python, the prefix `clean` before the commands of tools, and the word `switch`; it defines
# `leave REASON`, which exits.
# shellcheck shell=sh disable=SC2034,SC2154 # variables of the scripts, and those that eval reads

# Parameters that site and job may choose.
plan_variables='AFFINITYD_MODE AFFINITYD_SCOPE AFFINITYD_SHARE AFFINITYD_MULTITHREADING AFFINITYD_BALANCED
AFFINITYD_STRICT AFFINITYD_MIN_PHYSICAL_CORES AFFINITYD_MAX_PHYSICAL_CORES AFFINITYD_CPUS'
observe='' granted='' job='' # other parameters, if known
# Variables of an answer; each restricts a task to the GPUs that were chosen for it.
visible_variables='CUDA_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES HIP_VISIBLE_DEVICES ASCEND_RT_VISIBLE_DEVICES ZE_AFFINITY_MASK'

heed() { # WORD: lowers switch to the value of AFFINITYD=WORD, if this value is lower
    case $1 in
    [Oo][Bb][Ss][Ee][Rr][Vv][Ee]) [ "$switch" = off ] || switch=observe ;;
    [Oo][Ff][Ff] | 0 | [Nn][Oo] | [Ff][Aa][Ll][Ss][Ee]) switch=off ;;
    *) [ -z "$1" ] || is_on "$1" ;;
    esac
}
is_on() { case $1 in [Oo][Nn] | 1 | [Yy][Ee][Ss] | [Tt][Rr][Uu][Ee]) ;; *) return 1 ;; esac; }
has() { command -v "$1" >/dev/null; }
is_number() { case $1 in '' | *[!0-9]* | ???????????*) return 1 ;; esac; }
is_cpulist() { # no CPU has a number of six digits
    case $1 in '' | *[!0-9,-]* | [,-]* | *[,-] | *[,-][,-]* | *[0-9][0-9][0-9][0-9][0-9][0-9]*) return 1 ;; esac
}
read_mask() { # PID: sets mask to the CPUs on which the process may run
    mask=''
    while read -r name value _; do
        [ "$name" != Cpus_allowed_list: ] || mask=$value
    done <"$proc/$1/status"
    is_cpulist "$mask"
}
find_devices() { # PREFIX KIND: adds to granted the device files that this process may open
    for device in "$1"[0-9]*; do
        ! is_number "${device#"$1"}" || ! [ -r "$device" ] || ! [ -w "$device" ] ||
            granted=${granted:+$granted,}$2:${device#"$1"}
    done
}

ask() { # ADDRESS (a socket's path, http://HOST:PORT, a node.json) SECONDS VARIABLES: sets answer; sets asked to the status
    has "$curl" || has "$python" || leave 'neither curl nor python3 is here, to ask affinityd'
    [ "$switch" = on ] || observe=$mask
    has_mps "${CUDA_MPS_PIPE_DIRECTORY:=/tmp/nvidia-mps}/control" || unset CUDA_MPS_PIPE_DIRECTORY
    address=$1 seconds=$2 variables=$3 cpuset=$mask option=--data-urlencode
    [ ! -f "$address" ] || option=--query
    set -- $option format=shell
    for name in cpuset observe granted job; do
        eval "set -- \"\$@\" \${$name:+$option \"$name=\$$name\"}"
    done
    for name in $variables $plan_variables; do
        eval "set -- \"\$@\" \${$name+$option \"env=$name=\$$name\"}"
    done
    answer=$(fetch "$@")
    asked=$?
    [ "$asked,$((${#answer} < 65536))" = 0,1 ] || answer='' # a plan that was cut off does not count
}
has_mps() { # SOCKET: whether root's or this user's MPS daemon made the socket; any user may make the folder
    [ -S "$1" ] && [ ! -L "$1" ] || return 1
    [ ! -O "$1" ] || return 0
    read -r _ _ owner _ <<END
$($clean /bin/ls -dn -- "$1")
END
    [ "$owner" = 0 ]
}
fetch() { # OPTION PARAMETER...: prints the answer; status 7: no process listens
    if [ -f "$address" ]; then
        $clean "$limit" -s KILL "$seconds" "$affinityd" plan --node-file "$address" "$@"
    elif has "$curl"; then
        case $address in
        /*) set -- "$@" --unix-socket "$address" http://localhost/plan ;;
        *) set -- "$@" "$address/plan" ;;
        esac
        for _ in 1 2 3 4 5 6 7 8 9 10 11 12; do # each try takes some ms: curl does not wait for room in the queue, unix(7)
            $clean "$curl" -q -s -G --noproxy '*' -m "$seconds" --max-filesize 65536 --limit-rate 1M "$@"
            status=$?
            [ "$status" = 7 ] || break
        done
        return "$status"
    else
        $clean "$python" -I -S -c '
import http.client, os, signal, socket, sys, urllib.parse
signal.signal(signal.SIGALRM, signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
signal.setitimer(signal.ITIMER_REAL, float(sys.argv[2]))  # ends this process
daemon = http.client.HTTPConnection(sys.argv[1].partition("//")[2] or "localhost")
if sys.argv[1].startswith("/"):
    daemon.sock = socket.socket(socket.AF_UNIX)
    if daemon.sock.connect_ex(sys.argv[1]):
        sys.exit(7)
query = "&".join(urllib.parse.quote(os.fsencode(it), "=") for it in sys.argv[4::2])
daemon.request("GET", "/plan?" + query)
print(daemon.getresponse().read(65536).decode())
' "$address" "$seconds" "$@"
    fi
}
read_lines() { # PREFIX: sets PREFIX_NAME for each line NAME=VALUE of stdin; the last line of a name counts
    while IFS='=' read -r name value || [ -n "$name" ]; do
        case $name in '' | *[!A-Za-z_]*) ;; *) eval "$1_$name=\$value" ;; esac
    done
}
read_settings() { # FILE: sets site_NAME for each line, as affinityd/config reads it; on failure, sets fault
    fault="$1 cannot be read" number=0
    [ -e "$1" ] || [ -L "$1" ] || return 0 # a link may lead where this user may not look
    { [ -f "$1" ] && [ -r "$1" ]; } || return 1
    while IFS= read -r line || [ -n "$line" ]; do
        number=$((number + 1)) fault="$1:$number is not written as NAME=value"
        line=${line#"${line%%[![:space:]]*}"}
        case $line in '' | '#'* | ';'*) continue ;; *=*) ;; *) return 1 ;; esac
        name=${line%%=*} value=${line#*=}
        name=${name%"${name##*[![:space:]]}"} value=${value#"${value%%[![:space:]]*}"}
        value=${value%"${value##*[![:space:]]}"}
        case $name in '' | [0-9]* | *[!A-Za-z0-9_]*) return 1 ;; esac
        case $value in \"*\" | \'*\') value=${value#?} value=${value%?} ;; esac
        case $value in *[\"\'\\]*) return 1 ;; esac
        eval "site_$name=\$value"
    done <"$1"
}
understand() { # sets cpulist, locality, allowed, warnings, job_gpus, rdma; on failure, sets reason to the answer's first line
    for name in '' _CPULIST _LOCALITY _ALLOWED _WARNINGS _JOB_GPUS _RDMA _GPUS; do unset "plan_AFFINITYD$name"; done
    for name in $visible_variables; do unset "plan_$name"; done
    read_lines plan <<END
$answer
END
    IFS= read -r reason <<END
$answer
END
    cpulist=$plan_AFFINITYD_CPULIST locality=$plan_AFFINITYD_LOCALITY allowed=$plan_AFFINITYD_ALLOWED
    warnings=$plan_AFFINITYD_WARNINGS job_gpus=$plan_AFFINITYD_JOB_GPUS rdma=$plan_AFFINITYD_RDMA
    heed "$plan_AFFINITYD" || switch=off
    case $locality in
    local | mixed | remote | unknown) is_cpulist "$cpulist" && is_cpulist "$allowed" && return ;;
    esac
    case $reason in AFFINITYD_* | *[[:cntrl:]]*) reason='' ;; esac
    return 1
}
apply() { # PID: pins the process, and sets mask to its new mask
    [ "$switch" = on ] || leave "observe: would run on CPUs $cpulist ($locality)"
    [ "$locality" != unknown ] || leave 'the machine does not say where its GPU is'
    [ "$cpulist" != "$mask" ] || return 0 # a mask that was never set grows with the cpuset
    has "$taskset" || leave 'taskset is not here, to set CPUs'
    "$taskset" -cp "$cpulist" "$1" >/dev/null || leave "CPUs $cpulist were refused"
    read_mask "$1" || leave "CPUs $cpulist could not be read back"
}
# AFFINITYD_NICS names libraries: their variables are set to the RDMA devices near the GPUs. A value that
# the user has set stays; the value of an earlier pin is replaced.
nic_variables() ( # PREFIX: prints a line PREFIX NAME=value for each variable
    case ${AFFINITYD_NICS:-none},$rdma in none,* | *[!A-Za-z0-9_.:,\ -]*) return ;; esac
    eval "$(former_nics)"
    ports='' IFS=', '
    for port in $rdma; do
        ! can_open "${port%:*}" "${port#*:}" || ports=${ports:+$ports,}$port
    done
    nic_values "$ports" | while IFS= read -r line; do
        eval "[ -z \"\${${line%%=*}-}\" ]" || continue
        case ${line%%_*},$AFFINITYD_NICS in
        UCX,*[Uu][Cc][Xx]* | NVSHMEM,*[Nn][Vv][Ss][Hh][Mm][Ee][Mm]* | NCCL,*[Nn][Cc][Cc][Ll]* | UCCL,*[Uu][Cc][Cc][Ll]*)
            printf '%s\n' "${1-}$line"
            ;;
        esac
    done
    [ -z "$ports" ] || printf '%s\n' "${1-}AFFINITYD_RDMA=$ports"
)
former_nics() { # prints `unset NAME` for each variable that an earlier pin has set, as AFFINITYD_RDMA shows
    case ${AFFINITYD_RDMA-} in *[!A-Za-z0-9_.:,-]*) return ;; esac
    nic_values "${AFFINITYD_RDMA-}" | while IFS= read -r line; do
        eval "[ \"\${${line%%=*}-}\" != \"\${line#*=}\" ]" || printf 'unset %s\n' "${line%%=*}"
    done
}
nic_values() ( # PORTS: prints NAME=value for each library; NCCL reads a list without a second = as prefixes
    devices='' IFS=,
    for port in $1; do
        case ,$devices, in *",${port%:*},"*) ;; *) devices=${devices:+$devices,}${port%:*} ;; esac
    done
    [ -z "$1" ] ||
        printf '%s\n' "UCX_NET_DEVICES=$1" "NVSHMEM_HCA_LIST=$1" "NCCL_IB_HCA==$1" "UCCL_P2P_RDMA_DEV=$devices"
)
can_open() { # DEVICE PORT: whether a port is active, and this process may open its device
    folder=$sys/class/infiniband/$1 state=''
    IFS=' ' read -r state _ <"$folder/ports/$2/state"
    [ "$state" = 4: ] || return 1
    for file in "$folder"/device/infiniband_verbs/uverbs*; do
        { IFS= read -r ibdev <"$file/ibdev" && [ "$ibdev" = "$1" ]; } || continue # an adapter may have several devices
        file=$dev/infiniband/${file##*/}
        [ ! -r "$file" ] || [ ! -w "$file" ] || return 0
    done
    return 1
}
