#!/bin/sh
# Epilog= of slurm.conf: removes the note of an ended job's GPUs. It runs as root, on each node.

case ${SLURM_JOB_ID-} in '' | *[!0-9]*) exit 0 ;; esac
cd /run/affinityd-jobs 2>/dev/null && /bin/rm -f "${SLURM_HET_JOB_ID:-$SLURM_JOB_ID}" "$SLURM_JOB_ID"
exit 0
