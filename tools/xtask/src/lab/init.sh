#!/bin/busybox sh
# The first process of the lab's guest: sets it up, and does what the console's other end says.
# Its commands: start CHOICE (of zero_copy), counters, stop, complaints, off.

/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
# What the kernel says goes to its buffer only: the console is for the log.
dmesg -n 1
stty -echo

while read -r file arguments; do
    insmod "/modules/$file" $arguments || echo "lab: no module $file"
done < /modules/order

# Devices appear a moment after their drivers.
interface=
for turn in $(seq 100); do
    interface=$(ls /sys/class/net | grep -v '^lo$' | head -n 1)
    [ -b /dev/nvme0n1 ] && [ -n "$interface" ] && break
    sleep 0.1
done
driver=$(basename "$(readlink -f "/sys/class/net/$interface/device/driver")")

ip link set lo up
ip address add 10.77.0.1/24 dev "$interface"
ip address add fd77::1/64 dev "$interface"
ip link set "$interface" up
mount -t ext4 -o ro /dev/nvme0n1 /srv || echo "lab: no disk"

# A pipe, for a terminal would get colours.
mkfifo /log
while :; do cat /log; done &
echo "lab: up, $(uname -r), $driver"

while read -r command choice; do
    case "$command" in
    start)
        atlas serve /srv --config /etc/atlas.toml --link "packet:$interface" \
            --zero-copy "$choice" > /log 2>&1 &
        server=$!
        ;;
    counters) kill -USR1 "$server" ;;
    stop)
        kill -TERM "$server"
        wait "$server"
        code=$?
        # Its last lines are still in the pipe.
        sleep 1
        echo "lab: ended with $code"
        ;;
    complaints)
        dmesg | grep -E 'WARNING|BUG|Oops|NETDEV WATCHDOG|Unit Hang|I/O error' | sed 's/^/lab: says /'
        echo "lab: no more complaints"
        ;;
    off) poweroff -f ;;
    esac
done
