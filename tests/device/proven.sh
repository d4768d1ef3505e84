#!/usr/bin/env bash
# proven.sh record: keep which sources `make test-xla` has just passed on, if they are committed.
# proven.sh check: status 0 if these are the sources of HEAD.
set -euo pipefail
cd "$(dirname "$0")/../.."
sources=(replicas tests/device/xla tests/reference)
kept=tests/device/proven_trees.txt
trees() { for source in "${sources[@]}"; do echo "$source $(git rev-parse "HEAD:$source")"; done; }
case "$1" in
    record) if git diff --quiet HEAD -- "${sources[@]}"; then trees > "$kept"; fi ;;
    check) [ -f "$kept" ] && [ "$(trees)" = "$(cat "$kept")" ] ;;
esac
