// One connection: requests, replies, every byte compared.

package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// fetch asks for all files over one connection, and closes it first or has the server do so.
func fetch(host *stack.Stack, server tcpip.FullAddress, files []file, serverCloses bool) error {
	protocol := header.IPv4ProtocolNumber
	if server.Addr.Len() == header.IPv6AddressSize {
		protocol = header.IPv6ProtocolNumber
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	connection, err := gonet.DialContextTCP(ctx, host, server, protocol)
	if err != nil {
		return fmt.Errorf("connecting: %w", err)
	}
	defer connection.Close()
	if err := connection.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	reader := bufio.NewReaderSize(connection, 1<<16)
	for index, file := range files {
		isLast := index+1 == len(files)
		if err := request(connection, file.name, isLast && serverCloses); err != nil {
			return fmt.Errorf("asking for %s: %w", file.name, err)
		}
		if err := reply(reader, file); err != nil {
			return fmt.Errorf("%s: %w", file.name, err)
		}
	}
	if !serverCloses {
		if err := connection.CloseWrite(); err != nil {
			return fmt.Errorf("closing: %w", err)
		}
	}
	if _, err := reader.ReadByte(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("no end behind the last reply: %v", err)
	}
	return nil
}

func request(connection *gonet.TCPConn, name string, isLast bool) error {
	text := "GET /" + name + " HTTP/1.1\r\nHost: atlas.test\r\n"
	if isLast {
		text += "Connection: close\r\n"
	}
	_, err := io.WriteString(connection, text+"\r\n")
	return err
}

// reply reads one reply, whose body must be the file.
func reply(reader *bufio.Reader, file file) error {
	status, err := reader.ReadString('\n')
	if err != nil {
		return fmt.Errorf("reading the head: %w", err)
	}
	if !strings.HasPrefix(status, "HTTP/1.1 200 ") {
		return fmt.Errorf("status: %q", status)
	}
	length := ""
	for {
		line, err := reader.ReadString('\n')
		if err != nil {
			return fmt.Errorf("reading the head: %w", err)
		}
		line = strings.TrimRight(line, "\r\n")
		if line == "" {
			break
		}
		if name, value, ok := strings.Cut(line, ":"); ok && strings.EqualFold(name, "content-length") {
			length = strings.TrimSpace(value)
		}
	}
	if length != fmt.Sprint(file.size) {
		return fmt.Errorf("Content-Length: %q, not %d", length, file.size)
	}
	return file.read(reader)
}

// content is a stream of bytes that a seed names: word n is number n of SplitMix64 from the seed
// times a constant, least byte first.
type content struct {
	seed, size uint64
}

const (
	seedFactor = 0xD1B54A32D192ED03
	increment  = 0x9E3779B97F4A7C15
)

func (c content) word(index uint64) uint64 {
	z := c.seed*seedFactor + index*increment + increment
	z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
	z = (z ^ (z >> 27)) * 0x94D049BB133111EB
	return z ^ (z >> 31)
}

// read takes the whole content from a reader, and names the first byte that differs.
func (c content) read(reader io.Reader) error {
	piece := make([]byte, 1<<15)
	var word [8]byte
	for at := uint64(0); at < c.size; {
		count, err := io.ReadFull(reader, piece[:min(uint64(len(piece)), c.size-at)])
		if err != nil {
			return fmt.Errorf("reading the body behind byte %d: %w", at+uint64(count), err)
		}
		for index, value := range piece[:count] {
			if index%8 == 0 {
				binary.LittleEndian.PutUint64(word[:], c.word((at+uint64(index))/8))
			}
			if value != word[index%8] {
				return fmt.Errorf("wrong byte at offset %d", at+uint64(index))
			}
		}
		at += uint64(count)
	}
	return nil
}
