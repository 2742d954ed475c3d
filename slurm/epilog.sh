#!/bin/sh
# Epilog= of slurm.conf: removes the note of an ended job's GPUs. It runs as root, on each node.

case ${SLURM_JOB_ID-} in '' | *[!0-9]*) exit 0 ;; esac
[ ! -e "/run/affinityd-jobs/$SLURM_JOB_ID" ] || /bin/rm -f "/run/affinityd-jobs/$SLURM_JOB_ID"
exit 0
