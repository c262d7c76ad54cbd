#!/bin/sh
# Spark needs Java 17 or newer. Looks for it, installs Debian's as root where there is apt, else says how to get it.
# Never fails: without Java all but Spark works, and the tests of Spark are skipped.

major() {
    "$1" -version 2>&1 | sed -n 's/^[a-z]* version "\([0-9]*\).*/\1/p' | head -n 1
}

found() {
    java="${JAVA_HOME:+$JAVA_HOME/bin/}java"
    command -v "$java" >/dev/null 2>&1 && [ "$(major "$java")" -ge 17 ] 2>/dev/null
}

found && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "java: installing openjdk-17-jre-headless, which Spark needs"
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
        openjdk-17-jre-headless; } >/dev/null 2>&1
    found && exit 0
fi
echo "java: Spark needs Java 17 or newer, and there is none: apt install openjdk-17-jre-headless, or brew install openjdk@17 (all but Spark works without)"
