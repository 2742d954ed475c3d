# shellcheck shell=sh
# Mounts what an fstab names, as enroot does: makes each target, and fails, unless `nofail` is set.
set -e
mount -t tmpfs tmpfs "$ROOT"
cd "$ROOT"
mkdir -p etc proc dev run usr/bin
for libraries in /usr/lib*; do
    mkdir ".$libraries"
    mount --rbind "$libraries" ".$libraries"
done
ln -s usr/bin usr/lib* .
mount --rbind /proc proc
mount --rbind /dev dev
mount -t tmpfs -o nosuid,nodev,mode=755 tmpfs run
for program in $IMAGE; do # NAME=PROGRAM
    : >"usr/bin/${program%=*}"
    mount --bind "/usr/bin/${program#*=}" "usr/bin/${program%=*}"
done
for folder in $MISSING; do mount -t tmpfs tmpfs "$folder"; done
while read -r source target _ options _; do
    case $source in '#'*) continue ;; esac
    mkdir -p ".${target%/*}"
    if [ -d "$source" ]; then mkdir ".$target"; elif [ -e "$source" ]; then : >".$target"; fi
    mount --no-mtab -o "$options" "$source" ".$target" || case ,$options, in
    *,nofail,*) ;;
    *) exit 1 ;;
    esac
done <"$FSTAB"
exec chroot . "$INSTALLED"/task_prolog.sh
