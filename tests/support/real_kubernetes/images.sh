#!/usr/bin/env bash
# Makes the images of BUILD/images: images.sh BUILD CHECKOUT PYSPARK-FOLDER SPARK-VERSION
#
# pause is what holds a pod. spark is made like Spark's own image, from Debian's packages and an installed pyspark, since no
# registry of images is asked. tfos is deploy/Dockerfile on it, as it stands. Needs Debian's buildah and debootstrap, and root.
set -euo pipefail
build=$(realpath "$1") checkout=$(realpath "$2") pyspark=$(realpath "$3") spark=$4 here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$build/images" "$build/pause"
in_store() { buildah --root "$build/store" --runroot "$build/store-run" --storage-driver overlay "$@"; }
to_file() {
  rm -f "$build/images/$1.tar"
  in_store push "localhost/$2" "docker-archive:$build/images/$1.tar:localhost/$2"
}

cp "$here/pause.go" "$build/pause/main.go"
(cd "$build/pause" && { [ -e go.mod ] || go mod init pause; } && CGO_ENABLED=0 go build -ldflags "-s -w" -o pause .)
id=$(in_store from scratch)
in_store copy -q "$id" "$build/pause/pause" /pause
in_store config --entrypoint '["/pause"]' --user 65535:65535 "$id"
in_store commit -q --rm "$id" localhost/pause:1
to_file pause pause:1

if ! in_store inspect "localhost/spark:$spark" >/dev/null 2>&1; then
  id=$(in_store from scratch)
  root=$(in_store mount "$id")
  mirror=$(sed -n 's/^URIs: //p' /etc/apt/sources.list.d/debian.sources | head -1)
  debootstrap --variant=minbase --include=bash,tini,procps,ca-certificates,python3,python3-pip,python3-venv bookworm "$root" "$mirror"
  mount -t proc proc "$root/proc"
  trap 'umount "$root/proc"' EXIT
  cp /etc/apt/sources.list.d/debian.sources "$root/etc/apt/sources.list.d/"
  : >"$root/etc/apt/sources.list"
  mkdir -p "$root/usr/share/man/man1"  # which Java's package wants
  chroot "$root" apt-get update -q
  chroot "$root" apt-get install -qy --no-install-recommends openjdk-17-jre-headless
  chroot "$root" apt-get clean
  rm -rf "$root"/var/lib/apt/lists/* "$root"/usr/lib/python3*/EXTERNALLY-MANAGED
  umount "$root/proc"
  trap - EXIT
  chroot "$root" groupadd -g 185 spark
  chroot "$root" useradd -u 185 -g 185 -d /home/spark -M spark
  mkdir -p "$root/opt/spark/work-dir" "$root/opt/spark/python"
  cp -r "$pyspark"/{bin,sbin,jars,licenses} "$root/opt/spark/"
  cp -r "$pyspark/python/lib" "$root/opt/spark/python/"
  cp -r "$pyspark" "$root/opt/spark/python/pyspark"
  rm -rf "$root"/opt/spark/python/pyspark/{jars,bin,sbin,licenses,examples,python}
  cp "$here/entrypoint.sh" "$root/opt/entrypoint.sh"
  chroot "$root" chown -R spark:spark /opt/spark/work-dir
  chmod g+w "$root/opt/spark/work-dir"
  in_store umount "$id" >/dev/null
  in_store config --user spark --workingdir /opt/spark/work-dir --entrypoint '["/opt/entrypoint.sh"]' \
    --env SPARK_HOME=/opt/spark --env JAVA_HOME=/usr/lib/jvm/java-17-openjdk-amd64 \
    --env PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$id"
  in_store commit -q --rm "$id" "localhost/spark:$spark"
fi

options=()
for each in /etc/pip.conf /etc/ssl/certs; do [ ! -e "$each" ] || options+=(--volume "$each:$each:ro"); done
in_store bud -q --layers --isolation chroot --network host "${options[@]}" --build-arg BASE="localhost/spark:$spark" \
  --build-arg SPARK="$spark" -f "$checkout/deploy/Dockerfile" -t localhost/tfos:cpu "$checkout"
to_file tfos tfos:cpu
