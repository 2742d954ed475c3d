#!/bin/sh
# run [--fail-closed] [--] COMMAND [ARGUMENT...]: starts a command near its container's GPUs.
# `affinityd init` puts it into a pod. It asks the node's affinityd by curl or python3 of the image, else reads the
# files that init left for the container's GPUs, and pins by taskset. After any error the command starts
# all the same, and a line on stderr says why.
# shellcheck disable=SC1090,SC1091,SC2034,SC2086,SC2154 # files that are sourced, variables that eval sets, words

# This runs in a subshell: its variables may have the names of variables of the command's environment.
find_place() { # prints the command's new variables, nothing if off; on failure, why it is not pinned
    dev=/dev sys=/sys proc=/proc curl=curl taskset=taskset python=python3 clean=''
    set +e +f +u # a job's SHELLOPTS may have set them
    LC_ALL=C
    trap '' PIPE # the reader of stderr may have ended
    case $0 in */*) here=${0%/*} ;; *) here=. ;; esac
    switch=on rdma=''
    . "$here/pinning.sh"
    heed "${AFFINITYD-}" || leave 'AFFINITYD is none of on, observe and off'
    [ ! -r "$here/settings" ] || . "$here/settings"
    [ "$switch" != off ] || exit 0
    read_mask $$ || leave "the mask in $proc/$$/status cannot be read"
    find_gpus
    find_limit
    ask_daemon
    [ "$switch" != off ] || exit 0
    apply $$
    count_cpus "$mask"
    if [ "$size" -lt "$least" ]; then
        "$taskset" -cp "$allowed" $$ >/dev/null
        leave "$trouble, and $here/gpu has $size near CPUs, of $least asked for"
    fi
    [ "$locality" != remote ] || say "CPUs $mask are not near the GPU; allowed are $allowed"
    printf %s "AFFINITYD_CPULIST=$mask AFFINITYD_LOCALITY=$locality AFFINITYD_ALLOWED=$allowed $(nic_variables '')"
}
say() { [ "$switch" = observe ] || printf 'affinityd run: %s\n' "$1" >&3; }
leave() { # REASON
    [ "$switch" != observe ] || { printf 'unpinned %s' "$1" && exit; }
    printf %s "$1"
    exit 1
}
find_gpus() { # sets granted, by device files, else by the container runtime
    find_devices "$dev/nvidia" minor
    [ -n "$granted" ] || find_devices "$dev/davinci" davinci
    [ -n "$granted" ] || find_devices "$dev/dri/renderD" drm
    [ -n "$granted" ] || find_devices "$dev/accel/accel" accel
    case $granted,,${NVIDIA_VISIBLE_DEVICES-} in # all, void, none or a folder prove nothing
    drm:* | davinci:* | accel:*) unset NVIDIA_VISIBLE_DEVICES ;;
    *,,[0-9]* | *,,GPU-* | *,,MIG-*) granted=${granted:-$NVIDIA_VISIBLE_DEVICES} ;;
    *) unset NVIDIA_VISIBLE_DEVICES ;;
    esac
    [ -n "$granted" ] || leave 'no device file of a GPU is here'
}
find_limit() { # sets AFFINITYD_JOB_CPUS to the container's CPU request, else its limit, else its exclusive CPUs
    ! is_number "${AFFINITYD_JOB_CPUS-}" || return 0
    AFFINITYD_JOB_CPUS='' quota='' period='' weight=''
    read -r quota period <"$sys/fs/cgroup/cpu.max" ||
        { read -r quota <"$sys/fs/cgroup/cpu/cpu.cfs_quota_us" &&
            read -r period <"$sys/fs/cgroup/cpu/cpu.cfs_period_us"; }
    is_number "$quota" && is_number "$period" && AFFINITYD_JOB_CPUS=$(((quota + period - 1) / period)) && return
    # Since 1.33 kubelet sets no limit for exclusive CPUs: the weight is then that of all CPUs of the cpuset.
    count_cpus "$mask"
    [ "$size" -le 256 ] && shares=$((1024 * size)) || shares=262144 # the largest weight
    # A weight of 100 is the default, and asks for nothing.
    { read -r weight <"$sys/fs/cgroup/cpu.weight" && [ "$weight" != 100 ] && shares=$((1 + (shares - 2) * 9999 / 262142)); } ||
        read -r weight <"$sys/fs/cgroup/cpu/cpu.shares"
    ! is_number "$weight" || [ "$weight" -lt "$shares" ] || AFFINITYD_JOB_CPUS=$size
}
count_cpus() { # CPULIST: sets size
    size=0 blanks=$IFS IFS=,
    for part in $1; do
        size=$((size + 1 + ${part#*-} - ${part%-*}))
    done
    IFS=$blanks
}
ask_daemon() { # sets cpulist, locality, allowed; sets least to how many CPUs the command needs
    trouble='no affinityd is here to be asked' timeout=0.7 least=0
    has curl || has python3 || { trouble='neither curl nor python3 is here, to ask affinityd' && plan_from_files; return; }
    for place in "${AFFINITYD_SOCKET:-/run/affinityd/affinityd.sock}" "${AFFINITYD_URL-}"; do
        case $place in
        '') continue ;;
        http://*:[0-9]*) ;;
        /*) [ -S "$place" ] || continue ;;
        *) trouble="$place is neither http://HOST:PORT nor the path of a socket from /" && continue ;;
        esac
        ask "${place%/}" "$timeout" 'NVIDIA_VISIBLE_DEVICES CUDA_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES
            HIP_VISIBLE_DEVICES ASCEND_RT_VISIBLE_DEVICES ZE_AFFINITY_MASK ZE_FLAT_DEVICE_HIERARCHY
            ONEAPI_DEVICE_SELECTOR HABANA_VISIBLE_MODULES
            CUDA_DEVICE_ORDER CUDA_MPS_PIPE_DIRECTORY AFFINITYD_JOB_CPUS AFFINITYD_JOB_GPUS AFFINITYD_CPULIST AFFINITYD_ALLOWED
            LOCAL_RANK LOCAL_WORLD_SIZE LOCAL_SIZE TORCHELASTIC_RUN_ID OMPI_COMM_WORLD_LOCAL_RANK OMPI_COMM_WORLD_LOCAL_SIZE
            MPI_LOCALRANKID MPI_LOCALNRANKS PMI_LOCAL_RANK PMI_LOCAL_SIZE PALS_LOCAL_RANKID PALS_LOCAL_SIZE
            MV2_COMM_WORLD_LOCAL_RANK MV2_COMM_WORLD_LOCAL_SIZE JSM_NAMESPACE_LOCAL_RANK JSM_NAMESPACE_LOCAL_SIZE
            HOROVOD_LOCAL_RANK HOROVOD_LOCAL_SIZE FLUX_TASK_LOCAL_ID FLUX_JOB_SIZE FLUX_JOB_NNODES'
        trouble="no answer from ${place%/}" timeout=0.2
        ! understand || return
        case $reason in
        'Malformed request: '* | 'No such GPU: '* | 'Cannot be satisfied: '*)
            leave "$(printf %.300s "$reason")${CUDA_VISIBLE_DEVICES+ (CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES)}"
            ;;
        esac
    done
    plan_from_files
}
plan_from_files() { # sets cpulist (near all GPUs of the container, as this rank's are unknown), locality, allowed
    cpulist='' locality=local allowed=$mask blanks=$IFS IFS=,
    for name in $granted; do
        place=''
        IFS=' ' read -r cpus place <"$here/gpu/$name"
        { is_cpulist "$cpus" && [ "$place" = local ]; } || leave "$trouble, and $here/gpu has no near CPUs of GPU $name"
        cpulist=${cpulist:+$cpulist,}$cpus
    done
    IFS=$blanks least=${AFFINITYD_CPUS:-$AFFINITYD_JOB_CPUS}
    is_number "$least" || least=0
    say "$trouble; planned from $here/gpu"
}

affinityd_closed='' affinityd_usage='usage: run [--fail-closed] [--] COMMAND [ARGUMENT...]'
[ "${1-}" != --fail-closed ] || { affinityd_closed='was not started' && shift; }
[ "${1-}" != -- ] || shift
case ${1--} in -*) echo "$affinityd_usage" >&2; exit 125 ;; esac
if [ -z "$affinityd_closed" ]; then
    trap 'exec "$@"' EXIT # the shell may be unable even to fork
    trap 'trap - EXIT TERM && kill -TERM $$' TERM # else bash would run the trap of EXIT, too
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
    'unpinned '*) export AFFINITYD_UNPINNED="${affinityd_place#* }" ;;
    *)
        unset AFFINITYD_UNPINNED
        # shellcheck disable=SC2163 # NAME=value, several times
        export $affinityd_place
        ;;
    esac
else # in a subshell, as SIGPIPE may end it
    affinityd_place="${affinityd_place:-the script broke off}; the command ${affinityd_closed:-runs unpinned}"
    (printf 'affinityd run: %s\n' "$affinityd_place" >&2)
    [ -z "$affinityd_closed" ] || exit 125
fi
# The command replaces this shell. Some shells drop variables with odd names: env sets those of one line.
affinityd_odd=$(
    exec 2>/dev/null
    tr '\0\n' '\n\1' <"/proc/$$/environ" | while IFS= read -r entry; do
        case $entry in *[[:cntrl:]]*) continue ;; esac
        case ${entry%%=*} in *[!A-Za-z0-9_]* | [0-9]*) printf '%s\n' "$entry" ;; esac
    done
)
case $1 in *=*) affinityd_odd='' ;; esac # env would take it for a variable
if [ -n "$affinityd_odd" ] && command -v env >/dev/null; then
    set -f
    IFS='
'
    set -- env $affinityd_odd "$@"
fi
trap - EXIT
exec "$@"
