#!/bin/sh
# affinityd 0.3.0
# TaskProlog= of slurm.conf: pins a task near its GPUs, as this node's affinityd says.
# It runs as the user, beside the task, before the program. Slurm reads its output, on stderr too, and
# kills the task if this script fails: so it prints only `export`, `unset` and `print` lines, and exits with 0
# within a second. After any error the task stays where Slurm put it, and AFFINITYD_UNPINNED says why.
# shellcheck disable=SC1090,SC2034,SC2086,SC2154 # a file that is sourced, variables that eval sets, words

set +e +f +u +v +x
trap 'exit 0' EXIT
exec 2>/dev/null
run=/run/affinityd

for name in CPULIST LOCALITY ALLOWED JOB_GPUS WARNINGS UNPINNED RDMA GPUS PINNED_FOR; do # a batch script's pin set these
    eval "[ -z \"\${AFFINITYD_$name+inherited}\" ]" || printf 'unset AFFINITYD_%s\n' "$name"
done
shared_file=${0%/*}/pinning.sh
# A batch script's NIC variables go, too: this may be another node, and a library fails if its list names missing NICs.
if [ -n "${AFFINITYD_RDMA-}" ] && [ -r "$shared_file" ]; then
    . "$shared_file"
    former_nics
fi

# A task without GPUs ends here: sh has not parsed the rest yet, which would take longer.
step_gpus=${SLURM_GPUS_ON_NODE-}
case ${CUDA_VISIBLE_DEVICES-${ROCR_VISIBLE_DEVICES:-${step_gpus#0}}} in '' | NoDevFiles) exit 0 ;; esac
# The submitting shell's environment can name GPUs on a node without GPUs.
found=${AFFINITYD_SOCKET-}
for file in "$run" /dev/nvidiactl /dev/nvidia0 /dev/kfd /dev/davinci_manager /dev/dri/renderD* /dev/accel/accel*; do
    [ ! -e "$file" ] || found=$file
done
[ -n "$found" ] || exit 0

trap '' XFSZ # for a shell that writes here-documents to files
unset LD_PRELOAD LD_LIBRARY_PATH LD_AUDIT
export LC_ALL=C

settings=/etc/affinityd.conf
proc=/proc sys=/sys dev=/dev
curl=/usr/bin/curl taskset=/usr/bin/taskset python=/usr/bin/python3
limit=/usr/bin/timeout affinityd=/usr/bin/affinityd
clean='/usr/bin/env -i' # the environment may make libraries read files that hang
[ -x /usr/bin/env ] || clean=''

leave() { # REASON
    printf 'export AFFINITYD_UNPINNED=%.200s\n' "$1"
    tell "unpinned: $1"
    exit 0
}
tell() { # LINE: prints it in the node's first task, if the user or the site wants to see it
    { [ "${SLURM_LOCALID-}" = 0 ] && is_on "${AFFINITYD_VERBOSE-}"; } || return
    printf 'print affinityd: %s, task %s: %.400s\n' "${SLURMD_NODENAME-}" "${SLURM_PROCID-}" "$1"
}

has_answer() { # whether the daemon answered with a plan, or with a refusal that node.json would repeat
    understand && return
    case $reason in
    'Malformed request: '* | 'No such GPU: '* | 'Cannot be satisfied: '* | 'Left as it is: '*) ;;
    *) return 1 ;;
    esac
}

[ -r "$shared_file" ] || leave "$shared_file cannot be read"
. "$shared_file"
switch=on no_switch='is none of on, observe and off' site_AFFINITYD=''
heed "${AFFINITYD-}" || leave "AFFINITYD $no_switch"
[ "$switch" != off ] || leave AFFINITYD=off

read_mask "${SLURM_TASK_PID-}" || leave "/proc/${SLURM_TASK_PID-}/status cannot be read"

read_settings "$settings" || leave "$fault"
heed "$site_AFFINITYD" || leave "AFFINITYD in $settings $no_switch"
[ "$switch" != off ] || leave "AFFINITYD=off in $settings"
for name in $plan_variables AFFINITYD_CHOOSE_GPU AFFINITYD_GPU_ORDER AFFINITYD_NICS AFFINITYD_SOCKET AFFINITYD_VERBOSE; do
    eval "$name=\${$name:-\${site_$name-}}"
done

socket=${AFFINITYD_SOCKET:-$run/affinityd.sock}
case $socket in /*) ;; *) leave "AFFINITYD_SOCKET=$socket is not an absolute path" ;; esac
file=${socket%/*}/node.json # left by a daemon that has ended
nothing="no daemon answers at $socket, and no node.json is beside it"
[ ! -f "$file" ] || nothing="no daemon answers at $socket, and without $affinityd and $limit node.json is not read"
{ has "$affinityd" && has "$limit" && [ -f "$file" ]; } || file=''
[ -S "$socket" ] || [ -n "$file" ] || leave "$nothing"

note=/run/affinityd-jobs/${SLURM_JOB_ID-} job_gpus='' # in the node's numbering
[ ! -f "$note" ] || read_lines job <"$note"
find_devices /dev/nvidia minor
[ -n "$granted" ] || [ -e /dev/nvidiactl ] || find_devices /dev/davinci davinci
[ -n "$granted" ] || [ -e /dev/nvidiactl ] || find_devices /dev/dri/renderD drm
[ -n "$granted" ] || [ -e /dev/nvidiactl ] || find_devices /dev/accel/accel accel
job=$job_gpus
passed="CUDA_VISIBLE_DEVICES CUDA_DEVICE_ORDER CUDA_MPS_PIPE_DIRECTORY ROCR_VISIBLE_DEVICES HIP_VISIBLE_DEVICES
    ASCEND_RT_VISIBLE_DEVICES ZE_AFFINITY_MASK ZE_FLAT_DEVICE_HIERARCHY ONEAPI_DEVICE_SELECTOR HABANA_VISIBLE_MODULES SLURM_JOB_ID SLURM_STEP_ID SLURM_LOCALID
    SLURM_GTIDS SLURM_NTASKS SLURM_CPUS_PER_TASK SLURM_JOB_CPUS_PER_NODE SLURM_GPUS_ON_NODE
    SLURM_CPUS_ON_NODE"
[ -z "$AFFINITYD_CHOOSE_GPU" ] || passed="$passed AFFINITYD_CHOOSE_GPU" # if unset, an earlier daemon need not know it
[ -z "$AFFINITYD_GPU_ORDER" ] || passed="$passed AFFINITYD_GPU_ORDER"
# Variables about bindings count only in a step: a batch script inherits those of the submitting shell.
[ -z "${SLURM_STEP_ID-}" ] || passed="$passed SLURM_CPU_BIND_TYPE SLURM_CPU_BIND_LIST SLURM_MEM_BIND_TYPE
    SLURM_TRES_BIND SLURM_STEP_TASKS_PER_NODE SLURM_NODEID"
# Both tries together take at most 0.9 s: the daemon may be busy with other users' requests.
asked=7 first=0.7 second=0.85
[ -z "$file" ] || first=0.5
[ ! -S "$socket" ] || ask "$socket" "$first" "$passed"
[ "$asked" = 7 ] || second=0.4
has_answer || [ -z "$file" ] || ask "$file" "$second" "$passed"
case $asked in
7) trouble=$nothing ;;
28 | 137 | 142) trouble="no answer in time from $address" ;; # curl's time-out, or a process that was killed
*) trouble="no plan from $address (status $asked)" ;;
esac
understand || leave "${reason:-$trouble}"
[ "$switch" != off ] || leave "AFFINITYD=off, from the daemon at $socket"
apply "$SLURM_TASK_PID"
printf 'export %s\n' "AFFINITYD_CPULIST=$mask" "AFFINITYD_LOCALITY=$locality" \
    "AFFINITYD_ALLOWED=$allowed" ${job_gpus:+"AFFINITYD_JOB_GPUS=$job_gpus"} \
    ${warnings:+"AFFINITYD_WARNINGS=$warnings"}
for name in $visible_variables; do
    eval "value=\${plan_$name-}"
    [ -z "$value" ] || printf 'export %s=%s\nexport AFFINITYD_GPUS=%s\n' "$name" "$value" "$plan_AFFINITYD_GPUS"
done
few=''
[ -n "${SLURM_CPUS_PER_TASK-}" ] || ! [ "${SLURM_CPUS_ON_NODE-}" -lt "${SLURM_JOB_CPUS_PER_NODE-}" ] ||
    few="; its step has $SLURM_CPUS_ON_NODE of the job's $SLURM_JOB_CPUS_PER_NODE CPUs: give -c"
case $locality,$AFFINITYD_MODE$AFFINITYD_SCOPE in
mixed,*socket* | mixed,*even*) ;; # the task asked for far CPUs
remote,* | mixed,*)
    few="$few; Slurm gave it far CPUs: --gpu-bind=closest, -c, or Cores= with --gres-flags=enforce-binding"
    ;;
esac
# Variables by which another binder undoes the pin, each with the variable that prevents it (request/environment.py).
second=''
for row in GOMP_CPU_AFFINITY:OMP_PROC_BIND=false OMP_PROC_BIND:OMP_PROC_BIND=false OMP_PLACES:OMP_PROC_BIND=false \
    KMP_AFFINITY:KMP_AFFINITY=none ACCELERATE_CPU_AFFINITY:ACCELERATE_CPU_AFFINITY=0 \
    AMD_CPU_AFFINITY:AMD_CPU_AFFINITY=0; do
    name=${row%%:*} switch=${row#*:}
    eval "value=\${$name-} now=\${${switch%%=*}-}"
    [ -z "$value" ] || [ "$now" = "${switch#*=}" ] || second="; $name binds it, too"
done
tell "CPUs $mask ($locality)$few${warnings:+; $warnings}$second"
nic_variables 'export '
