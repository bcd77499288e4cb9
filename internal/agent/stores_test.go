package agent

import (
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"scanonce/internal/config"
	"scanonce/internal/testenv"
	"scanonce/sync/claimstate"
	"scanonce/sync/forward"
	"scanonce/window"
)

// Of the two stores of claims the status and the metrics blame the one that is away.
func TestStatusBlamesTheStoreThatIsAway(t *testing.T) {
	r, d := testenv.StartRedis(t), testenv.StartDynamo(t)
	now := func() window.UTC { return window.UTC(time.Now().UnixMilli()) }
	states, err := claimstate.NewSplit(t.Context(), claimstate.RedisConfig{Mode: "single", Addrs: []string{r.Addr}, Timeout: 10 * time.Second,
		Lives: claimstate.Lives{TTL: time.Hour, Pend: time.Hour}, Now: now},
		claimstate.DynamoConfig{Endpoint: d.URL(), Region: "us-east-1", Table: "claims", CreateTable: true, CredentialsFile: d.Credentials, Timeout: 10 * time.Second, Now: now})
	if err != nil {
		t.Fatal(err)
	}
	var synced atomic.Bool
	synced.Store(true)
	cfg := config.Default()
	cfg.Agent.FacilityUUID, cfg.Agent.StateDir, cfg.Agent.AgentID, cfg.ClaimState.Backend = "F", t.TempDir(), "agent-a", "split"
	a, err := core(cfg, Options{Log: slog.New(slog.DiscardHandler)}, Edges{OS: bubbleOS{time.Now(), &synced}, ClaimState: states})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.close(true); states.Close() })
	a.courier.Begin()
	expect := func(when, redis, dynamo string) {
		t.Helper()
		for _, turned := range []bool{false, true} {
			switch {
			case turned:
				a.courier.Turn(t.Context(), forward.Claims)
			case redis+dynamo != "":
				op := forward.OperationID("test", when)
				_, queued, err := a.courier.PutClaim(t.Context(), claimstate.New{CorrelationID: op.String(), RxRefToken: "rx1.0a1b2c3d.00112233445566778899aabbccddeeff", IngredientCost: "1.00", OpID: op.String()})
				if err != nil || !queued {
					t.Fatalf("%s: a put is queued: %v, %v", when, queued, err)
				}
			}
			s := a.stores()
			for _, x := range []struct {
				name, want string
				ok         bool
				said       *string
				since      bool
			}{{"redis", redis, s.Redis.OK, s.Redis.LastError, s.Redis.Since != nil}, {"dynamodb", dynamo, s.DynamoDB.OK, s.DynamoDB.LastError, s.DynamoDB.Since != nil}} {
				if x.ok != (x.want == "") || !x.ok && (!strings.Contains(*x.said, x.want) || strings.Contains(*x.said, "\n") || !x.since) {
					t.Errorf("%s, turned %v: %s is up: %v, %v since %v, want %q", when, turned, x.name, x.ok, orNone(x.said), x.since, x.want)
				}
			}
		}
	}
	expect("both are there", "", "")
	r.Kill()
	expect("without Redis", "cannot reach Redis", "")
	r.Start()
	for a.spool.Journal().Pending() > 0 {
		a.courier.Turn(t.Context(), forward.Claims)
	}
	expect("Redis is back", "", "")
	d.Kill()
	expect("without DynamoDB", "", "cannot reach DynamoDB")
	both := errors.Join(&claimstate.StoreError{Store: claimstate.InRedis, Err: errors.New("a")}, &claimstate.StoreError{Store: claimstate.InDynamoDB, Err: errors.New("b")})
	if x, y := claimstate.Blame(both, claimstate.InRedis), claimstate.Blame(both, claimstate.InDynamoDB); x.Error() != "a" || y.Error() != "b" {
		t.Errorf("both: %v, %v", x, y)
	}
	if x := claimstate.Blame(errStoreClosed, claimstate.InRedis); !errors.Is(x, errStoreClosed) {
		t.Errorf("an error of neither: %v", x)
	}
}

func orNone(s *string) string {
	if s == nil {
		return "nothing"
	}
	return *s
}
