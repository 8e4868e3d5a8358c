// The client of `cargo xtask interop` with gVisor's TCP/IP stack.
//
//	client MAC CLIENT_V4 CLIENT_V6 SERVER_V4 SERVER_V6 PORT CONNECTIONS NAME:SEED:SIZE...
//
// Ethernet frames come and go through descriptor 0, one a read or write. All connections run at
// once, every second over IPv6; each fetches all files in order and compares every byte. Then one line
// of JSON says what the stack counted, and it stays, to answer segments that are sent again, until a
// signal ends it. It exits with 1 at the first thing that is not as it is to be, and bounds every wait
// by `patience`.
package main

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/fdbased"
	"gvisor.dev/gvisor/pkg/tcpip/network/arp"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
)

const (
	// How long a connection may take for everything.
	patience = 40 * time.Second

	mtuBytes   = 1500
	nic        = 1
	prefixBits = 24 // of IPv4
	// The receive buffer of a connection, and how far the stack may let it grow.
	receiveBytes    = 1 << 20
	receiveBytesMax = 4 << 20
)

// file is one object of the server and what it holds.
type file struct {
	name string
	content
}

// report is what is said at the end.
type report struct {
	Connections      uint64 `json:"connections"`
	Replies          uint64 `json:"replies"`
	Bytes            uint64 `json:"bytes"`
	ChecksumErrors   uint64 `json:"checksum_errors"`
	InvalidSegments  uint64 `json:"invalid_segments"`
	MalformedPackets uint64 `json:"malformed_packets"`
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) < 8 {
		return fmt.Errorf("8 arguments or more are needed, %d were given", len(args))
	}
	mac, err := net.ParseMAC(args[0])
	if err != nil {
		return err
	}
	port, err := strconv.ParseUint(args[5], 10, 16)
	if err != nil {
		return fmt.Errorf("port: %w", err)
	}
	connections, err := strconv.Atoi(args[6])
	if err != nil {
		return fmt.Errorf("connections: %w", err)
	}
	files, err := parseFiles(args[7:])
	if err != nil {
		return err
	}
	host, err := newHost(mac, net.ParseIP(args[1]), net.ParseIP(args[2]))
	if err != nil {
		return err
	}
	servers := []tcpip.FullAddress{
		{NIC: nic, Addr: address(net.ParseIP(args[3])), Port: uint16(port)},
		{NIC: nic, Addr: address(net.ParseIP(args[4])), Port: uint16(port)},
	}
	total, err := fetchAll(host, servers, connections, files)
	if err != nil {
		return err
	}
	if err := say(host, total); err != nil {
		return err
	}
	select {}
}

func parseFiles(args []string) ([]file, error) {
	var files []file
	for _, arg := range args {
		parts := strings.Split(arg, ":")
		if len(parts) != 3 {
			return nil, fmt.Errorf("not NAME:SEED:SIZE: %s", arg)
		}
		seed, err := strconv.ParseUint(parts[1], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("seed: %w", err)
		}
		size, err := strconv.ParseUint(parts[2], 10, 32)
		if err != nil {
			return nil, fmt.Errorf("size: %w", err)
		}
		files = append(files, file{parts[0], content{seed, size}})
	}
	return files, nil
}

// newHost is a stack with one interface, an address of each version, and every option of TCP.
func newHost(mac net.HardwareAddr, v4, v6 net.IP) (*stack.Stack, error) {
	// No duplicate address detection: the address is usable at once.
	withoutDAD := ipv6.Options{DADConfigs: stack.DADConfigurations{}}
	host := stack.New(stack.Options{
		NetworkProtocols: []stack.NetworkProtocolFactory{
			arp.NewProtocol, ipv4.NewProtocol, ipv6.NewProtocolWithOptions(withoutDAD),
		},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol},
	})
	sack := tcpip.TCPSACKEnabled(true)
	room := tcpip.TCPReceiveBufferSizeRangeOption{
		Min: 1 << 12, Default: receiveBytes, Max: receiveBytesMax,
	}
	options := []tcpip.SettableTransportProtocolOption{&sack, &room}
	for _, option := range options {
		if err := host.SetTransportProtocolOption(tcp.ProtocolNumber, option); err != nil {
			return nil, fmt.Errorf("setting %T: %v", option, err)
		}
	}
	link, err := fdbased.New(&fdbased.Options{
		FDs:            []int{0},
		MTU:            mtuBytes,
		EthernetHeader: true,
		Address:        tcpip.LinkAddress(mac),
	})
	if err != nil {
		return nil, fmt.Errorf("opening descriptor 0: %w", err)
	}
	if err := host.CreateNIC(nic, link); err != nil {
		return nil, fmt.Errorf("making an interface: %v", err)
	}
	for _, own := range []struct {
		protocol tcpip.NetworkProtocolNumber
		ip       net.IP
		bits     int
		route    tcpip.Subnet
	}{
		{ipv4.ProtocolNumber, v4, prefixBits, header.IPv4EmptySubnet},
		{ipv6.ProtocolNumber, v6, 64, header.IPv6EmptySubnet},
	} {
		with := tcpip.ProtocolAddress{
			Protocol: own.protocol,
			AddressWithPrefix: tcpip.AddressWithPrefix{
				Address: address(own.ip), PrefixLen: own.bits,
			},
		}
		if err := host.AddProtocolAddress(nic, with, stack.AddressProperties{}); err != nil {
			return nil, fmt.Errorf("adding %v: %v", own.ip, err)
		}
		host.AddRoute(tcpip.Route{Destination: own.route, NIC: nic})
	}
	return host, nil
}

// address is an IP address as the stack has it.
func address(ip net.IP) tcpip.Address {
	if v4 := ip.To4(); v4 != nil {
		return tcpip.AddrFromSlice(v4)
	}
	return tcpip.AddrFromSlice(ip.To16())
}

// fetchAll runs all connections and counts what they fetched.
func fetchAll(
	host *stack.Stack, servers []tcpip.FullAddress, connections int, files []file,
) (report, error) {
	var group sync.WaitGroup
	failures := make([]error, connections)
	for index := range connections {
		group.Go(func() {
			err := fetch(host, servers[index%2], files, index/2%2 == 0)
			if err != nil {
				failures[index] = fmt.Errorf("connection %d: %w", index, err)
			}
		})
	}
	group.Wait()
	var total report
	for _, failure := range failures {
		if failure != nil {
			return total, failure
		}
		total.Connections++
		for _, file := range files {
			total.Replies++
			total.Bytes += file.size
		}
	}
	return total, nil
}

// say prints the report.
func say(host *stack.Stack, total report) error {
	stats := host.Stats()
	total.ChecksumErrors = stats.TCP.ChecksumErrors.Value()
	total.InvalidSegments = stats.TCP.InvalidSegmentsReceived.Value()
	total.MalformedPackets = stats.IP.MalformedPacketsReceived.Value()
	return json.NewEncoder(os.Stdout).Encode(total)
}
