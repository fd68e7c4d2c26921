#!/usr/bin/env bash
# Builds Kubernetes' components as one program, BUILD/bin/hyper, from their Go modules: build.sh BUILD [VERSION]
# It takes an hour on two cores, once per machine.
set -euo pipefail
build=$1 version=${2:-1.32.3} here=$(cd "$(dirname "$0")" && pwd)
export GOTOOLCHAIN=local CGO_ENABLED=0 GOFLAGS="-buildvcs=false ${GOFLAGS:-}"
mkdir -p "$build/bin" "$build/hyper"
cp "$here/hyper.go" "$build/hyper/main.go"
cd "$build/hyper"
module=$(go mod download -json "k8s.io/kubernetes@v$version" | python3 -c 'import json, sys; print(json.load(sys.stdin)["GoMod"])')
# Its go.mod replaces its staging modules by folders, which the module lacks: they are published at a version of their own.
python3 - "$module" "$version" >go.mod <<'PY'
import pathlib
import re
import sys

path, version = sys.argv[1:]
staging = f"v0.{version.partition('.')[2]}"
text = pathlib.Path(path).read_text()
for name in sorted(set(re.findall(r"=> \./staging/src/(k8s\.io/sample-\S+)", text))):  # imported by nothing here
    empty = pathlib.Path("empty", name)
    empty.mkdir(parents=True, exist_ok=True)
    (empty / "go.mod").write_text(f"module {name}\n\ngo 1.23.0\n")
    text = text.replace(f"=> ./staging/src/{name}", f"=> ./empty/{name}")
text = re.sub(r"=> \./staging/src/(\S+)", rf"=> \1 {staging}", text)
text = text.replace("module k8s.io/kubernetes\n", "module hyper\n")
sys.stdout.write(text.replace("require (\n", f"require k8s.io/kubernetes v{version}\n\nrequire (\n", 1))
PY
package=k8s.io/component-base/version
minor=$(cut -d. -f2 <<<"$version")
go build -mod=mod -ldflags "-s -w -X $package.gitVersion=v$version -X $package.gitMajor=1 -X $package.gitMinor=$minor" \
  -o "$build/bin/hyper.new" .
mv "$build/bin/hyper.new" "$build/bin/hyper"
