package world

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"

	"scanonce/idem"
)

// network is an agent's way to the simulated Redis by the program's own client: connections in memory, and a
// server that speaks the protocol.
func (s *redisStore) network(n *node) *idem.Redis {
	r, err := idem.NewRedis(idem.RedisConfig{Mode: idem.RedisSingle, Addrs: []string{"127.0.0.1:6379"}, TTL: s.w.plan.ttl, Timeout: time.Second,
		Dial: func(context.Context, string, string) (net.Conn, error) {
			if s.request().away == refuses {
				return nil, errRefused
			}
			client, server := net.Pipe()
			go s.serve(server)
			return client, nil
		}})
	if err != nil {
		panic(err)
	}
	return r
}

// request is the world as a client's call finds it. The server's goroutines know no other.
type request struct {
	now  time.Duration
	away outage
	lost bool // it does not arrive
}

// send tells the server of a call that begins.
func (s *redisStore) send(lost bool) {
	r := request{s.w.now, s.state(), lost}
	s.mu.Lock()
	s.under = r
	s.mu.Unlock()
}

func (s *redisStore) request() request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.under
}

// serve answers on one connection until its other end closes.
func (s *redisStore) serve(c net.Conn) {
	defer c.Close()
	in := bufio.NewReader(c)
	for {
		args, err := command(in)
		if err != nil {
			return
		}
		var out strings.Builder
		batch := [][]string{args}
		for in.Buffered() > 0 {
			if args, err = command(in); err != nil {
				return
			}
			batch = append(batch, args)
		}
		r := s.request()
		if r.away == refuses {
			return
		}
		if r.lost { // a request of which nobody hears
			io.Copy(io.Discard, in)
			return
		}
		for _, args := range batch {
			s.execute(args, r, &out)
		}
		if r.away == loses {
			return
		}
		if r.away == silently {
			io.Copy(io.Discard, in)
			return
		}
		if _, err := io.WriteString(c, out.String()); err != nil {
			return
		}
	}
}

// command reads an array of strings.
func command(in *bufio.Reader) ([]string, error) {
	number := func(mark byte) (int, error) {
		line, err := in.ReadString('\n')
		if err != nil || line[0] != mark {
			return 0, io.ErrUnexpectedEOF
		}
		return strconv.Atoi(strings.TrimSpace(line[1:]))
	}
	n, err := number('*')
	if err != nil {
		return nil, err
	}
	args := make([]string, n)
	for i := range args {
		size, err := number('$')
		if err != nil {
			return nil, err
		}
		b := make([]byte, size+2)
		if _, err := io.ReadFull(in, b); err != nil {
			return nil, err
		}
		args[i] = string(b[:size])
	}
	return args, nil
}

func (s *redisStore) execute(args []string, r request, out *strings.Builder) {
	switch name := strings.ToUpper(args[0]); {
	case name == "PING":
		out.WriteString("+PONG\r\n")
	case name == "CONFIG":
		out.WriteString("*2\r\n$16\r\nmaxmemory-policy\r\n$10\r\nnoeviction\r\n")
	case name == "SET" && r.away == full:
		out.WriteString("-OOM command not allowed when used memory > 'maxmemory'.\r\n")
	case name == "SET" && len(args) == 7 && args[3] == "NX" && args[4] == "PX" && args[6] == "GET":
		// The jitter of the ttl is the program's own: a seed cannot know it.
		if holder := s.setNX(args[1], args[2], r.now); holder != "" {
			fmt.Fprintf(out, "$%d\r\n%s\r\n", len(holder), holder)
		} else {
			out.WriteString("$-1\r\n")
		}
	default: // what the client tries at the beginning of a connection
		fmt.Fprintf(out, "-ERR unknown command '%s'\r\n", name)
	}
}
