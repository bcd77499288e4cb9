package main

import (
	"bytes"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"scanonce/internal/redisconn"
	"scanonce/internal/testenv"
	"scanonce/sync/claimstate"
	"scanonce/window"
)

const (
	claimStateCallers = 64     // of the store, each with one call under way; the store sends what comes together in one pipeline
	claimStatePipes   = 2      // redis-benchmark's connections: as many as the store has pipelines under way
	claimStateRound   = 60_000 // claims a round, of each side
	// A round is cut into slices, in which the sides take turns: so close together they have the same neighbours on a
	// machine that does other work too.
	claimStateSlices = 2
	// claimStateSpread is how many claims there are for each that redis-benchmark moves: it draws them, so that a few
	// are drawn twice.
	claimStateSpread = 10
)

// claimState compares the store of claim state in Redis with redis-benchmark, which sends the store's own commands
// in pipelines like the store's, as many commands under way, and hardly looks at what comes back.
func (m *bench) claimState() ([]row, error) { return m.claimStateOf(claimStateRound) }

func (m *bench) claimStateOf(claims int) (rows []row, err error) {
	err = m.tb.attempt(func() error {
		ctx := context.Background()
		b := &claimBench{m: m, server: testenv.StartRedis(m.tb), claims: claims}
		b.admin = redis.NewClient(&redis.Options{Addr: b.server.Addr, MaxRetries: -1, DisableIdentity: true, ReadTimeout: time.Minute})
		defer b.admin.Close()
		b.store, err = claimstate.NewRedis(claimstate.RedisConfig{Mode: redisconn.Single, Addrs: []string{b.server.Addr}, Timeout: claimTimeout,
			Lives: claimstate.Lives{TTL: 15 * time.Minute, Pend: time.Hour}, Now: func() window.UTC { return window.UTC(m.host.Wall().UnixMilli()) }})
		if err != nil {
			return err
		}
		defer b.store.Close()
		for _, c := range []claimCall{
			{"make a claim in Redis, against its command sent by redis-benchmark", makeClaim, false},
			{"move it", moveClaim, true},
		} {
			command, err := b.command(ctx, c)
			if err != nil {
				return err
			}
			var ratios, ours, bare []float64
			for round := range m.rounds {
				if err := b.furnish(ctx, c.ready); err != nil {
					return err
				}
				var took [2]float64 // seconds
				for slice := range claimStateSlices {
					err := takingTurns(round+slice,
						func() error { return b.calls(ctx, c.call, slice, &took[0]) },
						func() error { return b.bare(ctx, command, slice, &took[1]) })
					if err != nil {
						return err
					}
				}
				ours, bare = append(ours, float64(claims)/took[0]), append(bare, float64(claims)/took[1])
				ratios = append(ratios, took[1]/took[0])
			}
			ratio := median(ratios)
			rows = append(rows, row{id: "C1", what: c.what, goal: "≥ 0.80x", stretch: "≥ 0.90x", measured: fmt.Sprintf("%.2fx", ratio),
				medians: fmt.Sprintf("%.0f/s against %.0f/s, %d at once", median(ours), median(bare), claimStateCallers), verdict: atLeast(ratio, 0.8, 0.9)})
		}
		return nil
	})
	return rows, err
}

// claimCall is a call of the store that is measured.
type claimCall struct {
	what  string
	call  func(ctx context.Context, s claimstate.Store, id string) error
	ready bool // the claims are there before
}

type claimBench struct {
	m      *bench
	server *testenv.Redis
	admin  *redis.Client
	store  *claimstate.Redis
	claims int
}

// claimNo is a claim's id: each slice has its own on either side, since redis-benchmark may draw the same ones in two
// runs. It puts 12 digits for claimRandom.
func claimNo(side byte, slice, n int) string { return fmt.Sprintf("%c%d-%012d", side, slice, n) }

const claimRandom, claimDrawn = "__rand_int__", "the claim"

// command is what the store sends for a call, from the server's own log, with a random number for the claim's. It
// leaves the script in the server.
func (b *claimBench) command(ctx context.Context, c claimCall) ([]string, error) {
	id := claimNo('a', 0, 0)
	for _, threshold := range []string{"-1", "0"} { // the first call may send the script's text
		if err := b.furnish(ctx, c.ready); err != nil {
			return nil, err
		}
		if err := b.admin.ConfigSet(ctx, "slowlog-log-slower-than", threshold).Err(); err != nil {
			return nil, err
		}
		if err := c.call(ctx, b.store, id); err != nil {
			return nil, err
		}
	}
	log, err := b.admin.SlowLogGet(ctx, -1).Result() // the last one first
	if err != nil {
		return nil, err
	}
	if err := b.admin.ConfigSet(ctx, "slowlog-log-slower-than", "-1").Err(); err != nil {
		return nil, err
	}
	for _, l := range log {
		if strings.EqualFold(l.Args[0], "evalsha") {
			for i, a := range l.Args {
				l.Args[i] = strings.ReplaceAll(a, id, claimDrawn)
			}
			return l.Args, nil
		}
	}
	return nil, errors.New("cannot measure: the store calls no script")
}

// furnish leaves in the server what both sides move in a round, if that is wanted, and nothing else.
func (b *claimBench) furnish(ctx context.Context, ready bool) error {
	if err := b.admin.FlushAll(ctx).Err(); err != nil || !ready {
		return err
	}
	if err := makeClaim(ctx, b.store, "first"); err != nil {
		return err
	}
	n := b.claims / claimStateSlices
	return b.admin.Eval(ctx, `local d = redis.call('DUMP', KEYS[1])
for slice = 0, ARGV[1] - 1 do
  for i = 0, ARGV[2] - 1 do redis.call('RESTORE', string.format('claim:a%d-%012d', slice, i), 900000, d) end
  for i = 0, ARGV[3] - 1 do redis.call('RESTORE', string.format('claim:b%d-%012d', slice, i), 900000, d) end
end
redis.call('DEL', KEYS[1])
return 1`, []string{"claim:first"}, claimStateSlices, n, n*claimStateSpread).Err()
}

// calls makes a slice's calls, and adds what they took.
func (b *claimBench) calls(ctx context.Context, call func(context.Context, claimstate.Store, string) error, slice int, seconds *float64) error {
	n := b.claims / claimStateSlices
	took, err := b.m.timed(func() error {
		return together(claimStateCallers, func(i int) error {
			for k := i; k < n; k += claimStateCallers {
				if err := call(ctx, b.store, claimNo('a', slice, k)); err != nil {
					return err
				}
			}
			return nil
		})
	})
	*seconds += took.Seconds()
	return err
}

// bare lets redis-benchmark send the command for a slice, and adds what that took by its own count. The server's
// count says that they did what the store's calls do.
func (b *claimBench) bare(ctx context.Context, command []string, slice int, seconds *float64) error {
	n := b.claims / claimStateSlices
	if err := b.admin.ConfigResetStat(ctx).Err(); err != nil {
		return err
	}
	_, port, err := net.SplitHostPort(b.server.Addr)
	if err != nil {
		return err
	}
	args := []string{"-p", port, "-c", strconv.Itoa(claimStatePipes), "-P", strconv.Itoa(claimStateCallers / claimStatePipes), "-n", strconv.Itoa(n), "-r", strconv.Itoa(n * claimStateSpread), "--csv"}
	for _, a := range command {
		args = append(args, strings.Replace(a, claimDrawn, fmt.Sprintf("b%d-%s", slice, claimRandom), 1))
	}
	cmd := exec.CommandContext(ctx, "redis-benchmark", args...)
	var complaints strings.Builder
	cmd.Stderr = &complaints
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("cannot run redis-benchmark (of redis-tools): %w: %s", err, complaints.String())
	}
	table, err := csv.NewReader(bytes.NewReader(out)).ReadAll()
	if err != nil || len(table) != 2 || len(table[1]) < 2 || table[0][1] != "rps" {
		return fmt.Errorf("cannot understand redis-benchmark: %q", out)
	}
	for name, least := range map[string]int{"evalsha": n, "hset": n * 9 / 10} {
		stats, err := b.admin.Info(ctx, "commandstats").Result()
		if err != nil {
			return err
		}
		_, stat, _ := strings.Cut(stats, "cmdstat_"+name+":")
		stat, _, _ = strings.Cut(stat, "\r\n")
		var calls int
		if _, err := fmt.Sscanf(stat, "calls=%d,", &calls); err != nil || calls < least || !strings.Contains(stat, "rejected_calls=0,failed_calls=0") {
			return fmt.Errorf("cannot measure: redis-benchmark's commands did other work: %s %s", name, stat)
		}
	}
	rate, err := strconv.ParseFloat(table[1][1], 64)
	*seconds += float64(n) / rate
	return err
}

const benchToken = claimstate.Token("rx1.0a1b2c3d.00112233445566778899aabbccddeeff")

func makeClaim(ctx context.Context, s claimstate.Store, id string) error {
	p, err := s.PutNew(ctx, claimstate.New{CorrelationID: id, RxRefToken: benchToken, IngredientCost: "42.10", OpID: "op-1"})
	if err != nil {
		return err
	}
	none := func(claimstate.State) { err = fmt.Errorf("cannot measure: claim %s is there already", id) }
	p.Match(func(claimstate.State) {}, none, none)
	return err
}

func moveClaim(ctx context.Context, s claimstate.Store, id string) error {
	a, err := s.Advance(ctx, claimstate.Move{CorrelationID: id, Version: 1, From: claimstate.Ingested, To: claimstate.Normalized, OpID: "op-2"})
	if err != nil {
		return err
	}
	none := func(claimstate.State) { err = fmt.Errorf("cannot measure: claim %s has moved already", id) }
	a.Match(func(claimstate.State) {}, none, none, func() { err = fmt.Errorf("cannot measure: claim %s is missing", id) })
	return err
}
