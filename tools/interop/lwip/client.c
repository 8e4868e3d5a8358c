/* The client of `cargo xtask interop` with lwIP as Debian builds it.
 *
 *     client MAC CLIENT_V4 CLIENT_V6 SERVER_V4 SERVER_V6 PORT CONNECTIONS NAME:SEED:SIZE...
 *
 * Ethernet frames come and go through descriptor 0, one a read or write. All connections run at
 * once, every second over IPv6; each fetches all files in order and compares every byte. Then one
 * line of JSON says how much that was, and it stays, to answer segments that are sent again, until a
 * signal ends it. It exits with 1 at the first thing that is not as it is to be. Bounded by PATIENCE_MS for each wait, CONNECTIONS_MAX, FILES_MAX and HEAD_BYTES_MAX.
 */

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "lwip/api.h"
#include "lwip/etharp.h"
#include "lwip/ethip6.h"
#include "lwip/init.h"
#include "lwip/netif.h"
#include "lwip/tcpip.h"
#include "netif/ethernet.h"

enum {
	PATIENCE_MS = 30000,
	CONNECTIONS_MAX = 64,
	FILES_MAX = 16,
	HEAD_BYTES_MAX = 4096,
	MTU_BYTES = 1500,
	FRAME_BYTES_MAX = 14 + MTU_BYTES,
};

struct file {
	char name[64];
	uint64_t seed, size;
};

/* The bytes of one connection that have arrived and were not read yet. */
struct reader {
	struct netconn *connection;
	struct pbuf *arrived;
	size_t offset;
};

struct task {
	pthread_t thread;
	int index;
};

static struct file files[FILES_MAX];
static int file_count;
static ip_addr_t servers[2];
static uint16_t port;
static struct netif interface;

static void fail(const char *format, ...)
{
	va_list values;
	va_start(values, format);
	vfprintf(stderr, format, values);
	va_end(values);
	fputc('\n', stderr);
	exit(1);
}

/* The interface: frames to and from descriptor 0. */

static err_t send_frame(struct netif *netif, struct pbuf *frame)
{
	char bytes[FRAME_BYTES_MAX];
	(void)netif;
	if (frame->tot_len > sizeof bytes)
		return ERR_BUF;
	pbuf_copy_partial(frame, bytes, frame->tot_len, 0);
	/* A frame that finds no room is lost, as on any link. */
	(void)!write(0, bytes, frame->tot_len);
	return ERR_OK;
}

static err_t start_interface(struct netif *netif)
{
	netif->name[0] = 'w';
	netif->name[1] = 'i';
	netif->mtu = MTU_BYTES;
	netif->hwaddr_len = ETH_HWADDR_LEN;
	netif->flags = NETIF_FLAG_BROADCAST | NETIF_FLAG_ETHARP | NETIF_FLAG_ETHERNET
		| NETIF_FLAG_LINK_UP | NETIF_FLAG_MLD6;
	netif->output = etharp_output;
	netif->output_ip6 = ethip6_output;
	netif->linkoutput = send_frame;
	return ERR_OK;
}

/* Each frame is worked on here, under the stack's lock: its own queue between threads has 128 places,
 * and would lose what finds none. */
static void *receive_frames(void *unused)
{
	char bytes[FRAME_BYTES_MAX];
	(void)unused;
	for (;;) {
		ssize_t count = read(0, bytes, sizeof bytes);
		if (count < 0 && errno == EINTR)
			continue;
		if (count <= 0)
			return NULL;
		struct pbuf *frame = pbuf_alloc(PBUF_RAW, (u16_t)count, PBUF_RAM);
		if (frame == NULL)
			continue;
		pbuf_take(frame, bytes, (u16_t)count);
		LOCK_TCPIP_CORE();
		if (interface.input(frame, &interface) != ERR_OK)
			pbuf_free(frame);
		UNLOCK_TCPIP_CORE();
	}
}

static void start_stack(const char *mac, const char *v4, const char *v6)
{
	unsigned octets[6];
	ip4_addr_t own_v4, mask, gateway;
	ip6_addr_t own_v6;
	s8_t slot;
	pthread_t thread;
	if (sscanf(mac, "%x:%x:%x:%x:%x:%x", &octets[0], &octets[1], &octets[2], &octets[3],
		   &octets[4], &octets[5]) != 6)
		fail("not a MAC address: %s", mac);
	for (int index = 0; index < 6; index++)
		interface.hwaddr[index] = (u8_t)octets[index];
	if (!ip4addr_aton(v4, &own_v4) || !ip6addr_aton(v6, &own_v6))
		fail("not addresses: %s, %s", v4, v6);
	IP4_ADDR(&mask, 255, 255, 255, 0);
	ip4_addr_set_any(&gateway);
	tcpip_init(NULL, NULL);
	LOCK_TCPIP_CORE();
	if (netif_add(&interface, &own_v4, &mask, &gateway, NULL, start_interface, ethernet_input) == NULL)
		fail("no interface");
	if (netif_add_ip6_address(&interface, &own_v6, &slot) != ERR_OK)
		fail("no room for an IPv6 address");
	/* No duplicate address detection: the address is usable at once. */
	netif_ip6_addr_set_state(&interface, slot, IP6_ADDR_PREFERRED);
	netif_set_default(&interface);
	netif_set_up(&interface);
	UNLOCK_TCPIP_CORE();
	if (pthread_create(&thread, NULL, receive_frames, NULL) != 0)
		fail("no thread");
}

/* The content of a file: word n is number n of SplitMix64 from the seed times a constant, least byte
 * first. */

static uint64_t word(uint64_t seed, uint64_t index)
{
	uint64_t z = seed * UINT64_C(0xD1B54A32D192ED03) + (index + 1) * UINT64_C(0x9E3779B97F4A7C15);
	z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
	return z ^ (z >> 31);
}

static unsigned char byte_at(const struct file *file, uint64_t at)
{
	return (unsigned char)(word(file->seed, at / 8) >> (at % 8 * 8));
}

/* The bytes at hand, at least one; 0: the server has closed the connection. */
static size_t peek(struct reader *reader, const unsigned char **bytes, int index)
{
	struct pbuf *part;
	size_t offset;
	if (reader->arrived != NULL && reader->offset == reader->arrived->tot_len) {
		pbuf_free(reader->arrived);
		reader->arrived = NULL;
	}
	if (reader->arrived == NULL) {
		err_t error = netconn_recv_tcp_pbuf(reader->connection, &reader->arrived);
		reader->offset = 0;
		if (error == ERR_CLSD)
			return 0;
		if (error != ERR_OK)
			fail("connection %d: receiving: %s", index, lwip_strerr(error));
	}
	offset = reader->offset;
	for (part = reader->arrived; offset >= part->len; part = part->next)
		offset -= part->len;
	*bytes = (const unsigned char *)part->payload + offset;
	return part->len - offset;
}

static void ask(struct netconn *connection, const struct file *file, int is_last, int index)
{
	char text[256];
	int length = snprintf(text, sizeof text, "GET /%s HTTP/1.1\r\nHost: atlas.test\r\n%s\r\n",
			      file->name, is_last ? "Connection: close\r\n" : "");
	err_t error = netconn_write(connection, text, (size_t)length, NETCONN_COPY);
	if (error != ERR_OK)
		fail("connection %d: asking: %s", index, lwip_strerr(error));
}

/* Reads a head to its empty line, and checks the status and the length. */
static void read_head(struct reader *reader, const struct file *file, int index)
{
	char head[HEAD_BYTES_MAX];
	size_t length = 0;
	uint64_t size = UINT64_MAX;
	const unsigned char *bytes;
	while (length < 4 || memcmp(head + length - 4, "\r\n\r\n", 4) != 0) {
		if (length + 1 == sizeof head || peek(reader, &bytes, index) == 0)
			fail("connection %d: no whole head of %s", index, file->name);
		head[length++] = (char)*bytes;
		reader->offset++;
	}
	head[length] = '\0';
	if (strncmp(head, "HTTP/1.1 200 ", 13) != 0)
		fail("connection %d: %s: %.40s", index, file->name, head);
	for (char *line = strstr(head, "\r\n"); line != NULL; line = strstr(line + 2, "\r\n"))
		if (strncasecmp(line + 2, "content-length:", 15) == 0)
			size = strtoull(line + 17, NULL, 10);
	if (size != file->size)
		fail("connection %d: %s: Content-Length is not %" PRIu64, index, file->name, file->size);
}

static void read_body(struct reader *reader, const struct file *file, int index)
{
	uint64_t at = 0;
	while (at < file->size) {
		const unsigned char *bytes;
		size_t count = peek(reader, &bytes, index);
		if (count == 0)
			fail("connection %d: %s ends at byte %" PRIu64, index, file->name, at);
		for (size_t step = 0; step < count && at < file->size; step++, at++) {
			if (bytes[step] != byte_at(file, at))
				fail("connection %d: %s: wrong byte at offset %" PRIu64, index, file->name, at);
			reader->offset++;
		}
	}
}

static void *fetch(void *argument)
{
	const struct task *task = argument;
	int index = task->index, server_closes = index / 2 % 2 == 0;
	const unsigned char *bytes;
	const ip_addr_t *server = &servers[index % 2];
	struct reader reader = { 0 };
	err_t error;
	reader.connection = netconn_new(IP_IS_V6(server) ? NETCONN_TCP_IPV6 : NETCONN_TCP);
	if (reader.connection == NULL)
		fail("connection %d: no memory", index);
	netconn_set_recvtimeout(reader.connection, PATIENCE_MS);
	error = netconn_connect(reader.connection, server, port);
	if (error != ERR_OK)
		fail("connection %d: connecting: %s", index, lwip_strerr(error));
	for (int number = 0; number < file_count; number++) {
		int is_last = number + 1 == file_count;
		ask(reader.connection, &files[number], is_last && server_closes, index);
		read_head(&reader, &files[number], index);
		read_body(&reader, &files[number], index);
	}
	if (!server_closes && netconn_shutdown(reader.connection, 0, 1) != ERR_OK)
		fail("connection %d: closing", index);
	if (peek(&reader, &bytes, index) != 0)
		fail("connection %d: bytes behind the last reply", index);
	/* Returns when the other side has acknowledged our FIN. */
	error = netconn_close(reader.connection);
	if (error != ERR_OK && error != ERR_CONN && error != ERR_CLSD)
		fail("connection %d: closing: %s", index, lwip_strerr(error));
	netconn_delete(reader.connection);
	return NULL;
}

int main(int count, char **arguments)
{
	static struct task tasks[CONNECTIONS_MAX];
	uint64_t bytes = 0;
	int connections;
	if (count < 9 || count - 8 > FILES_MAX)
		fail("wrong number of arguments: %d", count - 1);
	if (!ipaddr_aton(arguments[4], &servers[0]) || !ipaddr_aton(arguments[5], &servers[1]))
		fail("not addresses: %s, %s", arguments[4], arguments[5]);
	port = (uint16_t)atoi(arguments[6]);
	connections = atoi(arguments[7]);
	if (connections < 1 || connections > CONNECTIONS_MAX)
		fail("from 1 to %d connections", CONNECTIONS_MAX);
	for (file_count = 0; file_count < count - 8; file_count++) {
		struct file *file = &files[file_count];
		if (sscanf(arguments[8 + file_count], "%63[^:]:%" SCNu64 ":%" SCNu64, file->name,
			   &file->seed, &file->size) != 3)
			fail("not NAME:SEED:SIZE: %s", arguments[8 + file_count]);
		bytes += file->size;
	}
	start_stack(arguments[1], arguments[2], arguments[3]);
	for (int index = 0; index < connections; index++) {
		tasks[index].index = index;
		if (pthread_create(&tasks[index].thread, NULL, fetch, &tasks[index]) != 0)
			fail("no thread");
	}
	for (int index = 0; index < connections; index++)
		pthread_join(tasks[index].thread, NULL);
	printf("{\"connections\":%d,\"replies\":%d,\"bytes\":%" PRIu64 "}\n", connections,
	       connections * file_count, bytes * (uint64_t)connections);
	fflush(stdout);
	for (;;)
		pause();
}
