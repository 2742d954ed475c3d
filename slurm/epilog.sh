#!/bin/sh
# Epilog= of slurm.conf: forgets the GPUs of a job that has ended. It runs as root, on each node.

case ${SLURM_JOB_ID-} in '' | *[!0-9]*) exit 0 ;; esac
[ ! -e "/run/affinityd/jobs/$SLURM_JOB_ID" ] || /bin/rm -f "/run/affinityd/jobs/$SLURM_JOB_ID"
exit 0
