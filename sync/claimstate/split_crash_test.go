package claimstate

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"scanonce/internal/redisconn"
	"scanonce/internal/testenv"
	"scanonce/window"
)

// crash lets some calls of the two stores through; the next one fails, before or after it took effect, and so
// does every later one: the agent is gone.
type crash struct {
	through int
	after   bool
	gone    bool
}

func (c *crash) around(f func() error) error {
	switch {
	case c.gone:
		return errCrash
	case c.through > 0:
		c.through--
		return f()
	}
	c.gone = true
	if c.after {
		f()
	}
	return errCrash
}

type crashFast struct {
	fastStore
	c *crash
}

func (x crashFast) reserve(ctx context.Context, n New, mark string) (made bool, e entry, err error) {
	err = x.c.around(func() (err error) { made, e, err = x.fastStore.reserve(ctx, n, mark); return err })
	return made, e, err
}

func (x crashFast) move(ctx context.Context, m Move, mark string) (made, ok bool, e entry, err error) {
	err = x.c.around(func() (err error) { made, ok, e, err = x.fastStore.move(ctx, m, mark); return err })
	return made, ok, e, err
}

func (x crashFast) look(ctx context.Context, id string) (e entry, ok bool, err error) {
	err = x.c.around(func() (err error) { e, ok, err = x.fastStore.look(ctx, id); return err })
	return e, ok, err
}

func (x crashFast) rest(ctx context.Context, e entry) (s State, done bool, err error) {
	err = x.c.around(func() (err error) { s, done, err = x.fastStore.rest(ctx, e); return err })
	return s, done, err
}

func (x crashFast) drop(ctx context.Context, e entry) error {
	return x.c.around(func() error { return x.fastStore.drop(ctx, e) })
}

type crashDurable struct {
	durableStore
	c *crash
}

func (x crashDurable) find(ctx context.Context, id string) (s State, live, occupied bool, err error) {
	err = x.c.around(func() (err error) { s, live, occupied, err = x.durableStore.find(ctx, id); return err })
	return s, live, occupied, err
}

func (x crashDurable) install(ctx context.Context, s State) (made bool, current State, err error) {
	err = x.c.around(func() (err error) { made, current, err = x.durableStore.install(ctx, s); return err })
	return made, current, err
}

func (x crashDurable) step(ctx context.Context, m Move) (a Advance, err error) {
	err = x.c.around(func() (err error) { a, err = x.durableStore.step(ctx, m); return err })
	return a, err
}

// An agent that crashes at any step of a creation or a move leaves a claim that another agent reads and moves on,
// on real servers; the crashed one's operation, asked again, is done exactly once.
func TestSplitCrashAtEveryStep(t *testing.T) {
	ctx := context.Background()
	r, d := testenv.StartRedis(t), testenv.StartDynamo(t)
	now := func() window.UTC { return window.UTC(time.Now().UnixMilli()) }
	sound, err := NewSplit(ctx, RedisConfig{Mode: redisconn.Single, Addrs: []string{r.Addr}, Timeout: 10 * time.Second, Lives: modelLives, Now: now},
		DynamoConfig{Endpoint: d.URL(), Region: "us-east-1", Table: "claims", CreateTable: true, CredentialsFile: d.Credentials, Timeout: 10 * time.Second, Now: now})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { sound.Close() })
	if err := sound.Ping(ctx); err != nil {
		t.Fatal(err)
	}
	fresh := func(id string) New {
		return New{CorrelationID: id, RxRefToken: modelToken, IngredientCost: "42.10", OpID: "op-1"}
	}
	at := func(id string, node Node) State {
		t.Helper()
		var s State
		p, err := sound.PutNew(ctx, fresh(id))
		if err != nil {
			t.Fatal(err)
		}
		p.Match(func(st State) { s = st }, func(State) {}, func(State) {})
		for s.Node != node {
			a, err := sound.Advance(ctx, s.Move(transitions[s.Node][0], "", "", fmt.Sprintf("op-%d", s.Version+1)))
			if err != nil {
				t.Fatal(err)
			}
			a.Match(func(st State) { s = st }, func(State) {}, func(State) {}, func() { t.Fatal("missing") })
		}
		return s
	}
	crashes := 0
	for through := 0; ; through++ {
		finished := true
		for _, after := range []bool{false, true} {
			broken := func() (*Split, *crash) {
				c := &crash{through: through, after: after}
				return &Split{fast: crashFast{sound.fast, c}, durable: crashDurable{sound.durable, c}}, c
			}
			check := func(name, id string, c *crash, op string, before int64, node Node, again func() (string, error)) {
				t.Helper()
				if c.gone {
					crashes++
					finished = false
				}
				name = fmt.Sprintf("%s, crash after %d steps (%v)", name, through, after)
				s, ok, err := sound.Get(ctx, id)
				if err != nil || before > 0 && !ok || ok && s.Version != before && (s.Version != before+1 || s.OpID != op) {
					t.Fatalf("%s: another agent reads %+v, %v, %v", name, s, ok, err)
				}
				if w, err := again(); err != nil || w != "made" && w != "mine" {
					t.Fatalf("%s: asked again it is told %q, %v", name, w, err)
				}
				if s, ok, err = sound.Get(ctx, id); err != nil || !ok || s.Version != before+1 || s.OpID != op || s.Node != node {
					t.Fatalf("%s: at the end %+v, %v, %v", name, s, ok, err)
				}
				if e, ok, err := sound.fast.look(ctx, id); err != nil || ok && (e.mark != "" || node == PAPended || before > 6) {
					t.Fatalf("%s: in Redis there is %+v, %v", name, e, err)
				}
			}
			word := func(a Advance, err error) (w string, _ error) {
				if err == nil {
					is := func(s string) func(State) { return func(State) { w = s } }
					a.Match(is("made"), is("mine"), is("conflict"), func() { w = "missing" })
				}
				return w, err
			}
			id := fmt.Sprintf("c-%d-%v", through, after)

			split, c := broken()
			if _, err := split.PutNew(ctx, fresh(id+"-new")); c.gone && !errors.Is(err, errCrash) {
				t.Fatalf("a crash is told as %v", err)
			}
			check("create", id+"-new", c, "op-1", 0, Ingested, func() (w string, _ error) {
				p, err := sound.PutNew(ctx, fresh(id+"-new"))
				if err == nil {
					is := func(s string) func(State) { return func(State) { w = s } }
					p.Match(is("made"), is("mine"), is("exists"))
				}
				return w, err
			})

			s := at(id, PAEvaluated)
			m := s.Move(PAPended, "7.00", "75", "op-pend")
			split, c = broken()
			w, err := word(split.Advance(ctx, m))
			if told := err == nil; told && w != "made" {
				t.Fatalf("the pend is told %q", w)
			}
			check("pend", id, c, "op-pend", 6, PAPended, func() (string, error) { return word(sound.Advance(ctx, m)) })

			s.Version, s.Node = 7, PAPended
			m = s.Move(PAEvaluated, "", "", "op-back")
			split, c = broken()
			word(split.Advance(ctx, m))
			check("back", id, c, "op-back", 7, PAEvaluated, func() (string, error) { return word(sound.Advance(ctx, m)) })

			s.Version, s.Node = 8, PAEvaluated
			m = s.Move(ResponseDispatched, "", "", "op-end")
			split, c = broken()
			word(split.Advance(ctx, m))
			check("dispatch", id, c, "op-end", 8, ResponseDispatched, func() (string, error) { return word(sound.Advance(ctx, m)) })
		}
		if finished {
			break
		}
	}
	if crashes < 20 {
		t.Errorf("%d crashes are not all", crashes)
	}
	if got := sound.Stats(); got.Moved == 0 || got.AlreadyMine == 0 {
		t.Errorf("stats %+v", got)
	}
}

// A new claim waits under its mark while the durable store is away. Whenever that answers, the claim has its whole life
// before it, and whoever made it is told so.
func TestSplitNewClaimLivesFromItsRest(t *testing.T) {
	ctx := context.Background()
	r, d := testenv.StartRedis(t), testenv.StartDynamo(t)
	var ahead time.Duration
	now := func() window.UTC { return window.UTC(time.Now().UnixMilli()).Add(ahead) }
	sound, err := NewSplit(ctx, RedisConfig{Mode: redisconn.Single, Addrs: []string{r.Addr}, Timeout: 10 * time.Second, Lives: modelLives, Now: now},
		DynamoConfig{Endpoint: d.URL(), Region: "us-east-1", Table: "claims", CreateTable: true, CredentialsFile: d.Credentials, Timeout: 10 * time.Second, Now: now})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { sound.Close() })
	if err := sound.Ping(ctx); err != nil {
		t.Fatal(err)
	}
	age := func(id string) { // until little is left
		ahead += modelLives.TTL - 30*time.Second
		if r.Do("PEXPIRE", redisKey+id, int64(30*time.Second/time.Millisecond)) != int64(1) {
			t.Fatalf("there is no %s in Redis", id)
		}
	}
	whole := func(name, id string, s State) {
		t.Helper()
		left, _ := r.Do("PTTL", redisKey+id).(int64)
		least := modelLives.TTL - 20*time.Second
		if told := time.Duration(s.ExpiresAt-now()) * time.Millisecond; told < least || time.Duration(left)*time.Millisecond < least {
			t.Errorf("%s: told to live for %v, and lives for %v", name, told, time.Duration(left)*time.Millisecond)
		}
	}
	fresh := func(id string) New {
		return New{CorrelationID: id, RxRefToken: modelToken, IngredientCost: "42.10", OpID: "op-1"}
	}
	put := func(s *Split, id string) (made State) {
		t.Helper()
		p, err := s.PutNew(ctx, fresh(id))
		if err != nil {
			t.Fatal(err)
		}
		is := func(st State) { made = st }
		p.Match(is, is, func(State) { t.Errorf("%s: another is there", id) })
		return made
	}
	for _, through := range []int{1, 2} { // gone before the durable store has answered, and before the claim is at rest
		id := fmt.Sprintf("c-%d", through)
		c := &crash{through: through}
		if _, err := (&Split{fast: crashFast{sound.fast, c}, durable: crashDurable{sound.durable, c}}).PutNew(ctx, fresh(id)); !errors.Is(err, errCrash) {
			t.Fatal(err)
		}
		age(id)
		whole(fmt.Sprintf("crash after %d steps", through), id, put(sound, id))
	}
	// The answer of the durable store takes long.
	whole("a slow answer", "c-slow", put(&Split{fast: sound.fast, durable: slowDurable{sound.durable, func() { age("c-slow") }}}, "c-slow"))
}

// slowDurable answers late: meanwhile passes comes about.
type slowDurable struct {
	durableStore
	passes func()
}

func (x slowDurable) find(ctx context.Context, id string) (s State, live, occupied bool, err error) {
	x.passes()
	return x.durableStore.find(ctx, id)
}

// A pended claim is found while Redis is away, and what a server that took over in Redis still has does not hide it.
func TestSplitRedisForgets(t *testing.T) {
	ctx := context.Background()
	w, s := atPAEvaluated()
	behind := w.fast["c-1"]
	store := splitOver(steps{w, func() fate { return goOn }})
	a, err := store.Advance(ctx, s.Move(PAPended, "", "75", "op-pend"))
	if err != nil {
		t.Fatal(err)
	}
	a.Match(func(State) {}, func(State) { t.Error("already mine") }, func(State) { t.Error("conflict") }, func() { t.Error("missing") })

	away := &Split{fast: crashFast{modelFast{steps{w, nil}}, &crash{gone: true}}, durable: modelDurable{steps{w, func() fate { return goOn }}}}
	if got, ok, err := away.Get(ctx, "c-1"); err != nil || !ok || got.Version != 7 {
		t.Errorf("without Redis: %+v, %v, %v", got, ok, err)
	}
	if _, _, err := away.Get(ctx, "c-2"); !errors.Is(err, errCrash) {
		t.Errorf("without Redis an unknown claim is told with %v", err)
	}

	w.fast["c-1"], w.flaws = behind, nil // the replica had not heard of the move
	if got, ok, err := store.Get(ctx, "c-1"); err != nil || !ok || got.Version != 7 {
		t.Errorf("after a failover: %+v, %v, %v", got, ok, err)
	}
	a, err = store.Advance(ctx, s.Move(ResponseDispatched, "", "", "op-late"))
	if err != nil {
		t.Fatal(err)
	}
	word := ""
	a.Match(func(State) { word = "advanced" }, func(State) { word = "mine" }, func(State) { word = "conflict" }, func() { word = "missing" })
	if word != "conflict" {
		t.Errorf("after a failover a dispatch of the old state is told %q", word)
	}
}
