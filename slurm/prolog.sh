#!/bin/sh
# Prolog= of slurm.conf: notes the job's GPUs for task_prolog.sh, and checks whether affinityd answers.
# It runs as root, on each node of a job, before its first task. Only a prolog always sees the job's GPUs
# in the node's own numbering. A job without GPUs needs neither note nor daemon. The exit status is 0, except if all of
# this is true: /etc/affinityd.conf has AFFINITYD_DRAIN=yes, no daemon listens, and no daemon has left a socket or
# node.json. Then Slurm drains the node.

gpus=${CUDA_VISIBLE_DEVICES:-${SLURM_JOB_GPUS:-${ROCR_VISIBLE_DEVICES-}}}
case $gpus in '' | NoDevFiles | *[!A-Za-z0-9_.:,/-]*) exit 0 ;; esac # sh has not parsed the rest yet

export PATH=/usr/sbin:/usr/bin:/sbin:/bin
notes=/run/affinityd-jobs # root owns this folder; another user may own the daemon's folder
settings=/etc/affinityd.conf

say() {
    printf 'affinityd: %s\n' "$1" >&2
    timeout 1 logger -t affinityd -p daemon.warning -- "$1" 2>/dev/null
}
case ${SLURM_JOB_ID-} in
'' | *[!0-9]*)
    say "SLURM_JOB_ID=${SLURM_JOB_ID-} is not a job; Prolog= of slurm.conf runs this"
    exit 0
    ;;
esac
umask 022
note=$notes/$SLURM_JOB_ID
mkdir -p "$notes"
rm -f "$note"
printf 'gpus=%s\n' "$gpus" >"$note" ||
    say "$note could not be written: tasks in unique modes take their GPU's block"
# Slurm numbers the tasks of a heterogeneous job by its leader, whose component is on other nodes.
leader=${SLURM_HET_JOB_ID:-$SLURM_JOB_ID}
[ "$leader" = "$SLURM_JOB_ID" ] || ln -sfn "$SLURM_JOB_ID" "$notes/$leader"

# With off or observe, a node without a daemon loses no pin.
site_AFFINITYD='' site_AFFINITYD_SOCKET='' site_AFFINITYD_DRAIN=''
script=$(readlink -f "$0") # it may be a link in a folder of prologs
fault="${script%/*}/pinning.sh cannot be read"
trap 'exit 0' EXIT # if the shell fails to parse pinning.sh
# shellcheck source=slurm/pinning.sh
[ ! -r "${script%/*}/pinning.sh" ] || . "${script%/*}/pinning.sh"
trap - EXIT
read_settings "$settings" || {
    say "$fault: affinityd pins nothing on this node"
    exit 0
}
case $site_AFFINITYD in '' | [Oo][Nn] | 1 | [Yy][Ee][Ss] | [Tt][Rr][Uu][Ee]) ;; *) exit 0 ;; esac
socket=${site_AFFINITYD_SOCKET:-/run/affinityd/affinityd.sock}
for _ in 1 2 3 4 5 6 7 8 9 10 11 12; do # each try takes some ms: curl does not wait for room in the queue, unix(7)
    problem=$(curl -q -sS --fail --noproxy '*' -m 1 -o /dev/null --unix-socket "$socket" \
        http://localhost/readyz 2>&1) && exit 0
    status=$?
    [ "$status" = 7 ] || break
done
say "no daemon is ready at $socket: tasks on this node are pinned by node.json, or not at all ($problem)"
case $site_AFFINITYD_DRAIN in yes | true | 1 | on) ;; *) exit 0 ;; esac
# A late or unready daemon counts as present: a node is drained only if nothing there can pin tasks.
# If the daemon's queue is full, curl fails as if no process listened at its socket.
{ [ "$status" != 7 ] || [ -S "$socket" ] || [ -f "${socket%/*}/node.json" ]; } && exit 0
# Slurm drains the node for the status, and keeps this reason.
timeout 2 scontrol update NodeName="${SLURMD_NODENAME-}" State=DRAIN Reason="affinityd: no daemon is ready at $socket"
exit 1
