#!/bin/sh
# TaskProlog= of slurm.conf: pins a task near its GPUs, as this node's affinityd says.
#
# It runs as the user, beside the task, before the program. Slurm reads what it prints, on stderr
# too, and kills the task if it fails: so it prints nothing but `export` and `unset` lines, and ends
# with 0 within a second. Whatever is wrong, the task stays as Slurm made it, and AFFINITYD_UNPINNED
# says why.
# shellcheck disable=SC2034,SC2154 # variables that eval reads and sets

set +e +f +u +v +x
unset -f [ printf read cd # exported functions of the user, where sh is bash
trap 'exit 0' EXIT
exec 2>/dev/null
run=/run/affinityd

for name in CPULIST LOCALITY ALLOWED JOB_GPUS WARNINGS UNPINNED; do # a batch script's, not ours
    eval "[ -z \"\${AFFINITYD_$name+inherited}\" ]" || printf 'unset AFFINITYD_%s\n' "$name"
done

# A task without GPUs is left here: sh has not parsed the rest yet, which would take longer.
visible=''
if [ -n "${CUDA_VISIBLE_DEVICES+set}" ]; then
    visible=$CUDA_VISIBLE_DEVICES
    case $visible in '' | NoDevFiles) exit 0 ;; esac
elif [ -n "${ROCR_VISIBLE_DEVICES-}" ]; then
    visible=ROCR_VISIBLE_DEVICES=$ROCR_VISIBLE_DEVICES
elif [ "${SLURM_GPUS_ON_NODE:-0}" = 0 ]; then
    exit 0
fi
# The environment of the submitting shell can name GPUs on a node without.
has_gpus() { # the same in prolog.sh
    for device in /dev/nvidiactl /dev/nvidia0 /dev/kfd /dev/davinci_manager \
        /dev/dri/renderD* /dev/accel/accel*; do
        [ ! -e "$device" ] || return 0
    done
    return 1
}
[ -n "${AFFINITYD_SOCKET-}" ] || [ -e "$run" ] || has_gpus || exit 0

trap '' XFSZ # of a shell that makes files of its here-documents
unset LD_PRELOAD LD_LIBRARY_PATH LD_AUDIT
LC_ALL=C
export LC_ALL

settings=/etc/affinityd.conf
proc=/proc ls=/bin/ls id=/usr/bin/id
curl=/usr/bin/curl taskset=/usr/bin/taskset python=/usr/bin/python3
tries='1 2 3 4 5 6 7 8 9 10 11 12' # of ms: curl waits for no room in a queue, unix(7)
clean='/usr/bin/env -i' # what libraries read may hang
[ -x /usr/bin/env ] || clean=''

leave() { # [REASON]
    [ -z "${1-}" ] || printf 'export AFFINITYD_UNPINNED=%s\n' "$1"
    exit 0
}
heed() { # WORD: switch, the least of what it was and what AFFINITYD=WORD says
    case $1 in
    '' | [Oo][Nn] | 1 | [Yy][Ee][Ss] | [Tt][Rr][Uu][Ee]) ;;
    [Oo][Bb][Ss][Ee][Rr][Vv][Ee]) [ "$switch" = off ] || switch=observe ;;
    [Oo][Ff][Ff] | 0 | [Nn][Oo] | [Ff][Aa][Ll][Ss][Ee]) switch=off ;;
    *) return 1 ;;
    esac
}
is_number() { case $1 in '' | *[!0-9]*) return 1 ;; esac; }
is_few() { is_number "$1" && [ "${#1}" -lt 7 ]; } # within what sh counts
is_word() { case $1 in '' | *[!A-Za-z0-9_.:,/-]*) return 1 ;; esac && [ "${#1}" -lt 4096 ]; }
is_cpulist() {
    case $1 in '' | *[!0-9,-]* | [,-]* | *[,-] | *[,-][,-]*) return 1 ;; esac
    case $1 in *[0-9][0-9][0-9][0-9][0-9][0-9]*) return 1 ;; esac # nor has any machine
    [ "${#1}" -lt 32768 ]
}

count() { # LIST: count, how many entries it has
    set -f
    IFS=,
    # shellcheck disable=SC2086 # a word an entry
    set -- $1
    unset IFS
    set +f
    count=$#
}
read_mask() { # mask: the CPUs on which the task may run
    while read -r name mask; do
        [ "$name" != Cpus_allowed_list: ] || break
    done <"/proc/$SLURM_TASK_PID/status"
    is_cpulist "$mask"
}
read_settings() { # site_NAME: a setting of the site's; the last of a name counts
    while read -r line || [ -n "$line" ]; do
        name=${line%%[= ]*} value=${line#*=}
        case $line in AFFINITYD*=*) ;; *) continue ;; esac
        case $name in *[!A-Z_]*) continue ;; esac
        value=${value#"${value%%[! ]*}"} value=${value%[[:space:]]}
        value=${value#[\'\"]} value=${value%[\'\"]}
        [ "$name" = AFFINITYD ] || is_word "$value" || continue
        eval "site_$name=\$value"
    done <"$settings"
}
choose() { # NAME: chosen_NAME, as the job has it in AFFINITYD_NAME, else the site
    eval "value=\${AFFINITYD_$1:-\${site_AFFINITYD_$1-}}"
    [ -z "$value" ] || is_word "$value" || leave "AFFINITYD_$1 is no word that a plan knows"
    eval "chosen_$1=\$value"
}
read_note() { # job: its GPUs in the node's numbering; shared: those that other jobs have, too
    while IFS='=' read -r name value; do
        case $name in gpus) job=$value ;; shared) shared=$value ;; esac
    done <"$run/jobs/$SLURM_JOB_ID"
    is_word "$job" || job=''
}
find_devices() { # PREFIX KIND: granted, those that the task may open
    for device in "$1"[0-9]*; do
        [ -r "$device" ] && [ -w "$device" ] && granted=${granted:+$granted,}$2:${device#"$1"}
    done
}
ask() { # SECONDS --data-urlencode NAME=VALUE...
    seconds=$1
    shift
    if [ -x "$curl" ]; then
        for _ in $tries; do
            $clean "$curl" -q -s -G --noproxy '*' -m "$seconds" --max-filesize 65536 \
                --unix-socket "$socket" "$@" http://localhost/plan
            status=$?
            [ "$status" = 7 ] || break
        done
        return "$status"
    else
        $clean "$python" -I -S -c '
import signal, socket, sys, urllib.parse
signal.setitimer(signal.ITIMER_REAL, float(sys.argv[2]))  # and that is the end
query = urllib.parse.urlencode(dict(word.split("=", 1) for word in sys.argv[4::2]))
daemon = socket.socket(socket.AF_UNIX)
daemon.connect(sys.argv[1])
daemon.sendall(f"GET /plan?{query} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
print(daemon.makefile("rb").read(65536).partition(b"\r\n\r\n")[2].decode())
' "$socket" "$seconds" "$@"
    fi
}
pin() { # CPULIST
    if [ -x "$taskset" ]; then
        "$taskset" -cp "$1" "$SLURM_TASK_PID"
    else
        "$python" -I -S -c '
import os, sys
parts = [part.partition("-") for part in sys.argv[1].split(",")]
cpus = {cpu for part in parts for cpu in range(int(part[0]), int(part[2] or part[0]) + 1)}
os.sched_setaffinity(int(sys.argv[2]), cpus)
' "$1" "$SLURM_TASK_PID"
    fi >/dev/null
}

switch=on no_switch='is none of on, observe and off'
heed "${AFFINITYD-}" || leave "AFFINITYD $no_switch"
[ "$switch" != off ] || leave AFFINITYD=off
is_number "${SLURM_TASK_PID-}" || leave 'SLURM_TASK_PID is no number'
is_number "${SLURM_JOB_ID-}" || leave 'SLURM_JOB_ID is no number'

# Which GPUs. A task that is not bound may open its step's, or, where nothing keeps it, the node's.
job='' shared='' granted=''
[ ! -f "$run/jobs/$SLURM_JOB_ID" ] || read_note
find_devices /dev/nvidia minor
[ -n "$granted" ] || [ -e /dev/nvidiactl ] || find_devices /dev/dri/renderD drm
count "$granted"
[ -n "$visible" ] || [ "$count" = "$SLURM_GPUS_ON_NODE" ] || granted=${job:-$granted}

# On which CPUs. The masks that Slurm chose begin with 0x, a user's do not. Words such as cores only
# say how it is to choose.
masks=''
case ${SLURM_STEP_ID:+${SLURM_CPU_BIND_TYPE-}${SLURM_CPU_BIND_LIST-}} in
mask_cpu:0x*) masks=$SLURM_CPU_BIND_LIST ;;
none* | rank* | map_* | mask_*) leave 'its CPUs are bound by --cpu-bind, or by the CpuBind= of the site' ;;
esac
read_mask || leave "/proc/$SLURM_TASK_PID/status cannot be read"

# A container's image may have less than the node.
[ -x "$curl" ] || [ -x "$python" ] || leave 'neither curl nor python3 is here, to ask affinityd'
[ -x "$taskset" ] || [ -x "$python" ] || leave 'neither taskset nor python3 is here, to pin the task'

# What is chosen. The mode `node` is all of the node, whatever the scope.
site_AFFINITYD=''
[ ! -f "$settings" ] || read_settings
heed "$site_AFFINITYD" || leave "AFFINITYD in $settings $no_switch"
[ "$switch" != off ] || leave "AFFINITYD=off in $settings"
for name in SOCKET DAEMON_UID SHARE MODE SCOPE MULTITHREADING BALANCED STRICT MIN_PHYSICAL_CORES \
    MAX_PHYSICAL_CORES CPUS; do
    choose "$name"
done
socket=${chosen_SOCKET:-$run/affinityd.sock} share=$chosen_SHARE mode=$chosen_MODE
[ -n "$mode" ] || mode=${chosen_SCOPE:+all}

# Who is asked. A user's daemon could send the task anywhere.
case $socket in /*) ;; *) leave "AFFINITYD_SOCKET=$socket is no path from /" ;; esac
[ -S "$socket" ] || leave "no plan from $socket"
trust=${0%/*}/trust.sh
[ -r "$trust" ] || leave "$trust cannot be read"
# shellcheck source=slurm/trust.sh
. "$trust"
found=$(trusted_socket "$socket" "$chosen_DAEMON_UID") || leave "$found"
socket=$found

# The question. A task without others, as a batch script, has all that it sees.
count "${SLURM_GTIDS-}"
tasks=$count job_cpus=${SLURM_JOB_CPUS_PER_NODE-}
case $job_cpus in *,*) job_cpus='' ;; esac # other nodes have other numbers
job_cpus=${job_cpus%%\(*}

# What was asked for: -c where somebody said it, else a part of the step's CPUs. A batch script (no
# step) or an interactive one has what all of its tasks are to have.
task_cpus=1/$((tasks > 1 ? tasks : 1)) each=${SLURM_CPUS_PER_TASK-} scripts=1
case ${SLURM_STEP_ID:-4294967291} in 429496729[0-9]) scripts=${SLURM_NTASKS:-1} ;; esac
case $each,$scripts in
[1-9]*,[1-9]*) ! is_few "$each" || ! is_few "$scripts" || task_cpus=$((each * scripts)) ;;
esac
case $chosen_CPUS in
'') ;;
none) task_cpus='' ;;
*)
    if ! is_few "$chosen_CPUS" || [ "$chosen_CPUS" -eq 0 ]; then
        leave 'AFFINITYD_CPUS is neither none nor a number of CPUs'
    fi
    task_cpus=$chosen_CPUS
    ;;
esac

observed=''
[ "$switch" = on ] || observed=$mask
set -- --data-urlencode format=shell --data-urlencode "mode=${mode:-node}"
for fact in cpuset:mask observe:observed granted:granted visible:visible step_gpus:SLURM_GPUS_ON_NODE \
    job_cpus:job_cpus scope:chosen_SCOPE multithreading:chosen_MULTITHREADING \
    balanced:chosen_BALANCED strict:chosen_STRICT \
    min_physical_cores:chosen_MIN_PHYSICAL_CORES max_physical_cores:chosen_MAX_PHYSICAL_CORES \
    task_cpus:task_cpus ranks:tasks rank:SLURM_LOCALID gpu_bind:SLURMD_TRES_BIND cpu_bind:masks; do
    [ "$tasks" -gt 1 ] || [ "$fact" != ranks:tasks ] || break
    eval "value=\${${fact#*:}-}"
    [ -z "$value" ] || set -- "$@" --data-urlencode "${fact%%:*}=$value"
done

# Where no note fits the GPUs that the task has, each GPU of the node has cores of its own.
[ "$tasks" -lt 2 ] || [ -n "$job" ] || share=${share:-node}
answer=$(ask 0.7 "$@" ${job:+--data-urlencode "job=$job"} \
    ${share:+--data-urlencode "share=$share"}) || answer='' # a newer curl has printed the first of it
case $answer in
'No such GPU: job: '* | 'Malformed request: job: '*)
    job=''
    answer=$(ask 0.2 "$@" --data-urlencode "share=${share:-node}") || answer=''
    ;;
esac
[ "${#answer}" -lt 65536 ] || answer=''

cpulist='' locality='' allowed='' warnings=''
while IFS='=' read -r name value; do
    case $name in
    AFFINITYD) heed "$value" || switch=off ;;
    AFFINITYD_CPULIST) cpulist=$value ;;
    AFFINITYD_LOCALITY) locality=$value ;;
    AFFINITYD_ALLOWED) allowed=$value ;;
    AFFINITYD_WARNINGS) warnings=$value ;;
    esac
done <<END
$answer
END
case $locality in local | mixed | remote | unknown) ;; *) cpulist='' ;; esac
if ! is_cpulist "$cpulist" || ! is_cpulist "$allowed"; then
    read -r reason <<END
$answer
END
    case $reason in '' | AFFINITYD_* | *[![:print:]]*) reason="no plan from $socket" ;; esac
    leave "$(printf %.200s "$reason")"
fi

is_word "$warnings" || warnings=''
if [ "$tasks" -gt 1 ] && [ -z "$job" ]; then
    case ,$warnings, in *,share_unavailable,*) leave 'no note of the job, and fewer cores than GPUs' ;; esac
fi
[ "$switch" != off ] || leave "AFFINITYD=off, as the daemon at $socket has it"
[ "$switch" = on ] || leave "observe: would run on CPUs $cpulist ($locality)"
pin "$cpulist" || leave "CPUs $cpulist were refused"
read_mask || leave "CPUs $cpulist could not be read back"
printf 'export %s\n' "AFFINITYD_CPULIST=$mask" "AFFINITYD_LOCALITY=$locality" \
    "AFFINITYD_ALLOWED=$allowed" ${job:+"AFFINITYD_JOB_GPUS=$job"}
[ -z "$shared" ] || warnings=${warnings:+$warnings,}shared_gpu
[ -z "$warnings" ] || printf 'export AFFINITYD_WARNINGS=%s\n' "$warnings"
