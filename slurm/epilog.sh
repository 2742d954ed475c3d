#!/bin/sh
# Epilog= of slurm.conf: removes the note of an ended job's GPUs. It runs as root, on each node.

case ${SLURM_JOB_ID-} in '' | *[!0-9]*) exit 0 ;; esac
for job in ${SLURM_HET_JOB_ID-} "$SLURM_JOB_ID"; do # a link to the note first
    [ ! -e "/run/affinityd-jobs/$job" ] || /bin/rm -f "/run/affinityd-jobs/$job"
done
exit 0
