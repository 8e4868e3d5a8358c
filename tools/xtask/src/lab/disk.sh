#!/bin/busybox sh
# The first process of the lab's guest with NVMe disks: sets it up, and does what the console's other end
# says. Its commands: run COMMAND (of this shell), faults, complaints, off.

/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
# What the kernel says goes to its buffer only: the console is for the log.
dmesg -n 1
stty -echo

# For the slots of a few workers.
echo 16 > /proc/sys/vm/nr_hugepages

while read -r file arguments; do
    insmod "/modules/$file" $arguments || echo "lab: no module $file"
done < /modules/order

# Disks appear a moment after their driver.
for turn in $(seq 100); do
    [ -b /dev/nvme0n1 ] && [ -b /dev/nvme1n1 ] && break
    sleep 0.1
done

echo "lab: up, $(uname -r), $(cat /proc/cmdline)"

while read -r command arguments; do
    case "$command" in
    run)
        # What the kernel's threads wait for, in the log, before the console's other end gives up.
        (sleep 40; echo w > /proc/sysrq-trigger; dmesg | tail -n 90) &
        watch=$!
        sh -c "$arguments" > /tmp/out 2>&1
        code=$?
        kill "$watch"
        sed 's/^/lab: says /' /tmp/out
        echo "lab: ended with $code"
        ;;
    # What the IOMMU has stopped since this was last asked.
    faults)
        dmesg | grep -E 'DMAR:.*(fault|Request)' | sed 's/^/lab: says /'
        dmesg -c > /tmp/said
        cat /tmp/said >> /tmp/all
        echo "lab: no more faults"
        ;;
    complaints)
        dmesg >> /tmp/all
        grep -E 'WARNING|BUG|Oops|I/O error|blocked for more' /tmp/all | sed 's/^/lab: says /'
        echo "lab: no more complaints"
        ;;
    off) poweroff -f ;;
    esac
done
