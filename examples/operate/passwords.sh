#!/bin/sh
# Makes a password for each of the ten tenants: its digest for Redis in made/users.acl, itself for the engine in made/passwords.env.
# Passwords that are there stay.
set -eu
cd "$(dirname "$0")"
[ ! -e made/users.acl ] || exit 0
mkdir -p made
umask 077
# The commands that the backend sends. The last line is for `kv-store ls`, `du` and `gc`.
changes="+set +del +rename +expire +pexpire +persist +setrange +rpush +eval +evalsha"
reads="+get +mget +exists +getrange +strlen +lindex +type +time +select +info"
lists="+scan +object|idletime +memory|usage"
: > made/passwords.env
{
    echo "user default off"
    for number in 01 02 03 04 05 06 07 08 09 10; do
        password=$(od -An -tx1 -N16 /dev/urandom | tr -d ' \n')
        digest=$(printf %s "$password" | sha256sum | cut -d ' ' -f 1)
        echo "user team-$number on #$digest resetchannels ~team-$number:* -@all $reads $changes $lists"
        echo "TEAM_${number}_PASSWORD=$password" >> made/passwords.env
    done
} > made/users.acl.new
# The server in the container is another user.
chmod 644 made/users.acl.new
mv made/users.acl.new made/users.acl
