#!/bin/sh
# control_plane.sh ROOT FOLDER COMMAND...
# Runs a command in a network of its own, in which the API server at http://127.0.0.1:8001 trusts every
# client. The server runs natively: an emulated CPU would be too slow. All processes end with the command
# if `unshare --net --pid --fork --kill-child` runs this script.
# ROOT has Debian's etcd and kubectl, and Kubernetes in one program as kubelet; FOLDER is written to.
set -eu
root=$1 folder=$2
shift 2
exec 3>&1 4>&2 >"$folder/control-plane" 2>&1
ip link set lo up
ln -s "$root/usr/local/bin/kubelet" "$folder/kube-apiserver"
echo 'token,admin,admin,system:masters' >"$folder/tokens"
"$root/lib64/ld-linux-x86-64.so.2" --library-path "$root/usr/lib/x86_64-linux-gnu" "$root/usr/bin/etcd" \
    --data-dir "$folder/etcd" --unsafe-no-fsync &
key=$folder/certificates/apiserver.key # the API server makes this key
"$folder/kube-apiserver" --etcd-servers=http://127.0.0.1:2379 --cert-dir="${key%/*}" \
    --bind-address=127.0.0.1 --advertise-address=192.0.2.1 --endpoint-reconciler-type=none \
    --token-auth-file="$folder/tokens" --authorization-mode=RBAC --service-account-issuer=https://rig \
    --service-account-key-file="$key" --service-account-signing-key-file="$key" \
    --service-cluster-ip-range=10.96.0.0/24 --disable-admission-plugins=ServiceAccount &
"$root/usr/bin/kubectl" --server=https://127.0.0.1:6443 --token=token --insecure-skip-tls-verify \
    proxy --accept-hosts='.*' --reject-methods= &
"$@" >&3 2>&4
