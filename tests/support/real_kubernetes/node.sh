#!/usr/bin/env bash
# The first process in the namespaces of up.sh, and the parent of all that runs on the node: node.sh BUILD FOLDER PYTHON
set -euo pipefail
build=$1 folder=$2 python=$3 here=$(cd "$(dirname "$0")" && pwd) hyper=$1/bin/hyper address=10.10.0.1
cd "$folder"
mount --make-rshared /
mkdir -p log cni etcd kubelet containerd state pki /run/netns /var/lib/cni
for each in /run/netns /var/lib/cni; do mount -t tmpfs tmpfs "$each"; done
mount --bind log /var/log

# The kubelet demands these settings of the kernel, and changes those that differ: it is shown what it demands.
shown() {
  mkdir -p "sys/$(dirname "$1")"
  echo "$2" >"sys/$1"
  mount --bind "sys/$1" "/proc/sys/$1"
}
shown vm/overcommit_memory 1
shown vm/panic_on_oom 0
shown kernel/panic 10
shown kernel/panic_on_oops 1
shown kernel/keys/root_maxkeys 1000000
shown kernel/keys/root_maxbytes 25000000

hostname node
ip link set lo up
ip link add node0 type bridge
ip address add "$address/24" dev node0
ip link set node0 up
echo 1 >/proc/sys/net/ipv4/ip_forward
replaced() {
  cat >"$(basename "$1")"
  mount --bind "$(basename "$1")" "$1"
}
replaced /etc/resolv.conf <<<"nameserver $address"
replaced /etc/hosts <<<"127.0.0.1 localhost
$address node"
replaced /etc/hostname <<<node

if [ ! -e pki/token ]; then
  openssl req -x509 -newkey rsa:2048 -nodes -days 3650 -subj /CN=kubernetes-ca -keyout pki/ca.key -out pki/ca.crt
  openssl req -newkey rsa:2048 -nodes -subj /CN=kube-apiserver -keyout pki/server.key -out pki/server.csr
  names=DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local
  openssl x509 -req -in pki/server.csr -CA pki/ca.crt -CAkey pki/ca.key -CAcreateserial -days 3650 -out pki/server.crt \
    -extfile <(echo "subjectAltName=$names,IP:10.96.0.1,IP:$address,IP:127.0.0.1")
  openssl genrsa -out pki/accounts.key 2048
  openssl rsa -in pki/accounts.key -pubout -out pki/accounts.pub
  openssl rand -hex 16 >pki/token
fi
echo "$(cat pki/token),admin,admin,system:masters" >pki/tokens.csv
cat >kubeconfig <<YAML
apiVersion: v1
kind: Config
clusters: [{name: local, cluster: {server: "https://$address:6443", certificate-authority-data: $(base64 -w0 pki/ca.crt)}}]
users: [{name: admin, user: {token: $(cat pki/token)}}]
contexts: [{name: local, context: {cluster: local, user: admin}}]
current-context: local
YAML
chmod 600 kubeconfig
export KUBECONFIG=$folder/kubeconfig

cat >cni/10-bridge.conflist <<JSON
{"cniVersion": "0.4.0", "name": "pods", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isGateway": true, "isDefaultGateway": true, "hairpinMode": true, "ipMasq": false,
   "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.244.0.0/24"}]]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
JSON
cat >containerd.toml <<TOML
version = 2
root = "$folder/containerd"
state = "$folder/state"
[grpc]
  address = "$folder/state/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:1"
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "$folder/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
TOML
: >empty-resolv.conf
cat >kubelet.yaml <<YAML
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
cgroupDriver: cgroupfs
failSwapOn: false
clusterDNS: [$address]
clusterDomain: cluster.local
resolvConf: $folder/empty-resolv.conf
containerRuntimeEndpoint: unix://$folder/state/containerd.sock
podLogsDir: $folder/log/pods
evictionHard: {memory.available: 100Mi, nodefs.available: 1%, imagefs.available: 1%, nodefs.inodesFree: 1%}
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
oomScoreAdj: 0
maxPods: 60
nodeStatusUpdateFrequency: 5s
YAML

started() {
  local name=$1
  shift
  "$@" >"log/$name.log" 2>&1 &
}
answers() { until "$@" >/dev/null 2>&1; do sleep 0.5; done; }
etcd=http://127.0.0.1:2379
started etcd etcd --data-dir etcd --listen-client-urls $etcd --advertise-client-urls $etcd \
  --listen-peer-urls http://127.0.0.1:2380 --unsafe-no-fsync
started containerd containerd --config containerd.toml
# Debian's etcd 3.4 can't serve lists that are streamed.
issuer=https://kubernetes.default.svc.cluster.local
started apiserver "$hyper" kube-apiserver --etcd-servers=$etcd --advertise-address=$address --feature-gates=WatchList=false \
  --service-cluster-ip-range=10.96.0.0/16 --token-auth-file=pki/tokens.csv --authorization-mode=RBAC \
  --tls-cert-file=pki/server.crt --tls-private-key-file=pki/server.key --allow-privileged=true \
  --service-account-issuer=$issuer --service-account-key-file=pki/accounts.pub --service-account-signing-key-file=pki/accounts.key
answers kubectl get --raw /readyz
started manager "$hyper" kube-controller-manager --kubeconfig="$KUBECONFIG" --use-service-account-credentials=false \
  --service-account-private-key-file=pki/accounts.key --root-ca-file=pki/ca.crt --leader-elect=false \
  --controllers='*,-ttl' --allocate-node-cidrs=false
started scheduler "$hyper" kube-scheduler --kubeconfig="$KUBECONFIG" --leader-elect=false
# In place of kube-proxy a rule for the API's own service, and in place of CoreDNS names.py.
for chain in PREROUTING OUTPUT; do
  iptables -t nat -A $chain -d 10.96.0.1 -p tcp --dport 443 -j DNAT --to-destination "$address:6443"
done
started names "$python" -u "$here/names.py" "$address"
images() { ctr -a state/containerd.sock -n k8s.io images "$@"; }
answers images list
for image in "$build"/images/*.tar; do  # again only if it was made again
  seen=containerd/$(basename "$image").seen
  [ "$seen" -nt "$image" ] || { images import "$image" && touch "$seen"; }
done
started kubelet "$hyper" kubelet --config=kubelet.yaml --kubeconfig="$KUBECONFIG" --root-dir="$folder/kubelet" \
  --hostname-override=node --node-ip=$address --cert-dir="$folder/pki/kubelet"
answers kubectl wait --for=condition=Ready node/node --timeout=1s
answers kubectl get serviceaccount default
touch ready
wait
