#!/bin/busybox sh
# The first process of the lab's guest: sets it up, and does what the console's other end says.
# Its commands: start LINK CHOICE (of zero_copy) CONFIG (a file of /etc) PATH, check (the same), bind, set (the
# interface up or down), resets, calm, pauses, counters, stop, complaints, off.

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
    controllers=$(grep -l 0x010802 /sys/bus/pci/devices/*/class | wc -l)
    disks=$(ls /dev/nvme*n1 2> /dev/null | wc -l)
    [ "$disks" = "$controllers" ] && [ -n "$interface" ] && break
    sleep 0.1
done
driver=$(basename "$(readlink -f "/sys/class/net/$interface/device/driver")")

ip link set lo up
ip link set "$interface" up
# Where the server is: with a VLAN, what has no tag is another network.
served="$interface"
vlan=$(sed -n 's/.*lab.vlan=\([0-9]*\).*/\1/p' /proc/cmdline)
if [ -n "$vlan" ]; then
    served="$interface.$vlan"
    ip link add link "$interface" name "$served" type vlan id "$vlan" || echo "lab: no VLAN"
    ip address add 10.78.0.1/24 dev "$interface"
    ip link set "$served" up
fi
ip address add 10.77.0.1/24 dev "$served"
ip address add fd77::1/64 dev "$served"
mount -t ext4 -o ro /dev/nvme0n1 /srv || echo "lab: no disk"

# Switches an e1000e's transmitter off and on (bit 1 of its register TCTL, at 0x400). While it is
# off, frames stay in the driver's ring and in their slots, not read by the device.
pauses() {
    bar=$(head -n 1 "/sys/class/net/$interface/device/resource" | cut -d ' ' -f 1)
    register=$(printf '0x%x' $((bar + 0x400)))
    on=$(devmem "$register" 32)
    off=$(printf '0x%x' $((on & ~2)))
    echo "lab: pauses, $register is $on"
    # Off for as long as it takes to start a program, some milliseconds: after 20 of them Atlas would
    # stop lending.
    while :; do
        devmem "$register" 32 "$off"
        devmem "$register" 32 "$on"
        usleep 5000
    done
}

# Resets a controller that vfio-pci has, again and again.
resets() {
    device=/sys/bus/pci/devices/0000:00:05.0
    echo "lab: resets $(basename "$device"), method $(cat "$device/reset_method")"
    while :; do
        echo 1 > "$device/reset"
        sleep 2
    done
}

# A pipe, for a terminal would get colours.
mkfifo /log
while :; do cat /log; done &
echo "lab: up, $(uname -r), $driver"

while read -r command link choice config path; do
    case "$command" in
    # Gives the disks to vfio-pci.
    bind)
        for controller in /sys/class/nvme/*; do
            atlas nvme bind "$(basename "$controller")" 2>&1 | sed 's/^/lab: says /'
        done
        echo "lab: bound"
        ;;
    check)
        said=$(atlas serve "$path" --config "/etc/$config.toml" --link "$link:$served" \
            --zero-copy "$choice" --check 2>&1 | tr '\n' ' ')
        echo "lab: checked, $said"
        ;;
    resets) resets & resetter=$! ;;
    calm)
        kill "$resetter"
        wait "$resetter"
        echo "lab: calm"
        ;;
    start)
        atlas serve "$path" --config "/etc/$config.toml" --link "$link:$served" \
            --zero-copy "$choice" > /log 2>&1 &
        server=$!
        ;;
    # Takes the interface that is served down, or up. Down, it loses its IPv6 addresses.
    set)
        ip link set "$served" "$link"
        [ "$link" = up ] && ip address add fd77::1/64 dev "$served"
        echo "lab: set $link"
        ;;
    pauses) pauses & renice -n -20 "$!" > /dev/null ;;
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
        dmesg | grep -E 'WARNING|BUG|Oops|NETDEV WATCHDOG|Unit Hang|I/O error|DMAR:.*(fault|Request)' | sed 's/^/lab: says /'
        echo "lab: no more complaints"
        ;;
    off) poweroff -f ;;
    esac
done
