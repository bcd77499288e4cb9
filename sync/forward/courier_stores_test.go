package forward_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"scanonce/idem"
	"scanonce/internal/storetest"
	"scanonce/internal/testenv"
	"scanonce/sync/claimstate"
	"scanonce/sync/forward"
	"scanonce/sync/ledger"
	"scanonce/sync/pacase"
	"scanonce/window"
)

// site is a store that an agent reaches through what can fail.
type site struct {
	refuse, hole, slow, pass func()
	lose                     func(op idem.EventID) (sprung <-chan struct{}) // the reply to it
	lag                      time.Duration                                  // a round trip while it is slow
}

// behindProxies is a site of servers.
func behindProxies(t testing.TB, lossy *testenv.Proxy, part func(op idem.EventID) string, all ...*testenv.Proxy) *site {
	each := func(f func(p *testenv.Proxy)) func() {
		return func() {
			for _, p := range all {
				f(p)
			}
		}
	}
	const late = 1100 * time.Millisecond // each way: longer together than a caller's patience
	return &site{
		refuse: each(func(p *testenv.Proxy) { p.Set(t, testenv.Refuse) }),
		hole:   each(func(p *testenv.Proxy) { p.Set(t, testenv.BlackHole) }),
		slow:   each(func(p *testenv.Proxy) { p.Delay(late) }),
		pass:   each(func(p *testenv.Proxy) { p.Delay(0); p.Set(t, testenv.Pass) }),
		lose:   func(op idem.EventID) <-chan struct{} { return lossy.Swallow(part(op)) },
		lag:    2 * late,
	}
}

// gated is a site in this process.
func gated(g *gate) *site {
	const lag = 2200 * time.Millisecond
	return &site{
		refuse: func() { g.shut(errAway) },
		hole:   func() { g.set(func(g *gate) { g.hang = true }) },
		slow:   func() { g.set(func(g *gate) { g.slow = lag }) },
		pass:   func() { g.set(func(g *gate) { g.hang, g.away, g.slow = false, nil, 0 }) },
		lose: func(idem.EventID) <-chan struct{} {
			sprung := make(chan struct{})
			g.set(func(g *gate) {
				g.lose = func(what string) bool {
					if strings.HasPrefix(what, "get ") || what == "ping" || g.lose == nil {
						return false
					}
					g.lose = nil
					close(sprung)
					return true
				}
			})
			return sprung
		},
		lag: lag,
	}
}

// How long a call may take: long enough for a store that is slow, or short for one that does not answer.
const (
	callTime   = 20 * time.Second
	outageTime = 3 * time.Second
)

func realNow() window.UTC { return window.FromTime(time.Now()) }

func must[T any](t testing.TB) func(v T, err error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// claimSites are the stores of claim state: each as the agent reaches it, and beside all faults.
func claimSites(t *testing.T) map[string]func(t *testing.T) (far, near claimstate.Store, s *site) {
	user := testenv.ShippedRedisUser(t)
	dynamo := testenv.StartDynamo(t)
	redis := func(t *testing.T) (r *testenv.Redis, p *testenv.Proxy, far, near claimstate.RedisConfig) {
		r = testenv.StartRedis(t, user.File(t)...)
		p = testenv.NewProxy(t, r.Addr)
		far = claimstate.RedisConfig{Mode: idem.RedisSingle, Addrs: []string{p.Addr()}, Username: user.Name, Password: testenv.RedisPassword, Timeout: callTime, Lives: claimLives, Now: realNow}
		near = far
		near.Addrs = []string{r.Addr}
		return r, p, far, near
	}
	table := func(t *testing.T) (p *testenv.Proxy, far, near claimstate.DynamoConfig) {
		p = testenv.NewProxy(t, dynamo.Addr)
		near = claimstate.DynamoConfig{Endpoint: dynamo.URL(), Region: "us-east-1", Table: fmt.Sprint("claims_", time.Now().UnixNano()), CreateTable: true,
			CredentialsFile: dynamo.Credentials, Timeout: callTime, Lives: claimLives, Now: realNow}
		far = near
		far.Endpoint = "http://" + p.Addr()
		return p, far, near
	}
	opID := func(op idem.EventID) string { return op.String() }
	return map[string]func(t *testing.T) (far, near claimstate.Store, s *site){
		"Redis": func(t *testing.T) (claimstate.Store, claimstate.Store, *site) {
			_, p, far, near := redis(t)
			return must[*claimstate.Redis](t)(claimstate.NewRedis(far)), must[*claimstate.Redis](t)(claimstate.NewRedis(near)), behindProxies(t, p, opID, p)
		},
		"DynamoDB": func(t *testing.T) (claimstate.Store, claimstate.Store, *site) {
			p, far, near := table(t)
			return must[*claimstate.Dynamo](t)(claimstate.NewDynamo(t.Context(), far)), must[*claimstate.Dynamo](t)(claimstate.NewDynamo(t.Context(), near)), behindProxies(t, p, opID, p)
		},
		"split": func(t *testing.T) (claimstate.Store, claimstate.Store, *site) {
			_, rp, fastFar, fastNear := redis(t)
			dp, far, near := table(t)
			return must[*claimstate.Split](t)(claimstate.NewSplit(t.Context(), fastFar, far)), must[*claimstate.Split](t)(claimstate.NewSplit(t.Context(), fastNear, near)), behindProxies(t, rp, opID, rp, dp)
		},
		"embedded": func(t *testing.T) (claimstate.Store, claimstate.Store, *site) {
			e := must[*claimstate.Embedded](t)(claimstate.OpenEmbedded(filepath.Join(t.TempDir(), "claims.db"), claimLives, realNow))
			g := &gate{}
			return gatedClaims{e, g}, e, gated(g)
		},
	}
}

// caseSites are the stores of cases.
func caseSites(t *testing.T) map[string]func(t *testing.T) (far, near pacase.Store, s *site) {
	pg := testenv.NewPostgres(t, testenv.PostgresOptions{NoFsync: true})
	return map[string]func(t *testing.T) (far, near pacase.Store, s *site){
		"PostgreSQL": func(t *testing.T) (pacase.Store, pacase.Store, *site) {
			db, cfg := storetest.PACasePostgres(t, pg)
			p := testenv.NewProxy(t, pg.Addr())
			near := must[*pacase.Postgres](t)(pacase.OpenPostgres(cfg))
			cfg.DSN, cfg.ConnectTimeout = pg.DSNAt(p.Addr(), testenv.PostgresLogin, db), callTime
			return must[*pacase.Postgres](t)(pacase.OpenPostgres(cfg)), near, behindProxies(t, p, func(op idem.EventID) string { return string(op[:]) }, p)
		},
		"embedded": func(t *testing.T) (pacase.Store, pacase.Store, *site) {
			e := must[*pacase.Embedded](t)(pacase.OpenEmbedded(filepath.Join(t.TempDir(), "pa.db"), realNow))
			g := &gate{}
			return gatedCases{e, g}, e, gated(g)
		},
	}
}

// station is a running agent with real time, its other stores embedded.
func station(t *testing.T, timeout time.Duration, rows ledger.Ledger, claims claimstate.Store, cases pacase.Store) *depot {
	t.Helper()
	dir := t.TempDir()
	s := newShelf(t, dir, newMoment(), claimLives)
	if rows == nil {
		rows = s.ledger
	}
	if claims == nil {
		claims = s.claims
	}
	if cases == nil {
		cases = s.cases
	}
	d := newDepot(t, filepath.Join(dir, "agent"), "agent-1", must[window.OS](t)(window.Host()), rows, claims, cases)
	d.cfg.Timeout = timeout
	d.renew()
	d.run()
	return d
}

// Bounds of what a caller and an operation are promised, with room for the tests beside it.
const (
	atOnce     = time.Second
	byPatience = 2*time.Second + atOnce
	soonUsed   = 5*time.Second + 2*atOnce
)

// answers checks that operations have come to their outcomes, in this order for those with a common first word.
func answers(t *testing.T, d *depot, want ...string) {
	t.Helper()
	d.told.mu.Lock()
	defer d.told.mu.Unlock()
	got := map[string][]string{}
	for i := range d.told.outcomes {
		o := &d.told.outcomes[i]
		got[o.Target] = append(got[o.Target], saidOf(o))
	}
	var all []string
	for target, w := range got {
		all = append(all, target+": "+strings.Join(w, "; "))
	}
	slices.Sort(all)
	slices.Sort(want)
	if !slices.Equal(all, want) {
		t.Errorf("told\n\t%s\nwant\n\t%s", strings.Join(all, "\n\t"), strings.Join(want, "\n\t"))
	}
}

// rests checks that nothing waits and nothing is a conflict.
func rests(t *testing.T, d *depot) {
	t.Helper()
	d.emptied()
	if n := len(d.spool.Journal().Conflicts()); n != 0 {
		t.Errorf("%d conflicts", n)
	}
}

// down waits until the lane's store is known to be away.
func (d *depot) down(l forward.Lane) {
	d.t.Helper()
	d.told.until(d.t, "the outage", func() bool { cause, _ := d.courier.Down(l); return cause != nil })
}

func TestClaimStores(t *testing.T) {
	t.Parallel()
	for name, open := range claimSites(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, fault := range []string{"refused", "black hole"} {
				t.Run(fault, func(t *testing.T) {
					t.Parallel()
					far, near, s := open(t)
					d := station(t, outageTime, nil, far, nil)
					want(t, "put", d.put("c-0", claimToken(0)), "created")
					map[string]func(){"refused": s.refuse, "black hole": s.hole}[fault]()
					testenv.Within(t, "an operation that meets the outage", byPatience, func() { want(t, "put", d.put("c-1", claimToken(1)), "queued") })
					d.down(forward.Claims)
					testenv.Within(t, "operations while it is known", 4*atOnce, func() {
						want(t, "advance", d.advance("c-0", 1, claimstate.Normalized), "queued")
						want(t, "put", d.put("c-2", claimToken(2)), "queued")
						want(t, "advance", d.advance("c-1", 1, claimstate.Normalized), "queued")
						want(t, "advance", d.advance("c-1", 2, claimstate.TaxonomyResolved), "queued")
					})
					if n := d.spool.Journal().Pending(); n != 5 {
						t.Errorf("%d wait, want 5", n)
					}
					d.again() // with a full journal
					d.run()
					d.down(forward.Claims)
					testenv.Within(t, "an operation after the restart", atOnce, func() { want(t, "put", d.put("c-3", claimToken(3)), "queued") })
					s.pass()
					testenv.Within(t, "the way back", soonUsed, func() {
						d.told.until(t, "the outcomes", func() bool { return len(d.told.outcomes) >= 6 })
					})
					answers(t, d, "c-0: claim_advance done, NORMALIZED v2", "c-1: claim_put done, INGESTED v1; claim_advance done, NORMALIZED v2; claim_advance done, TAXONOMY_RESOLVED v3",
						"c-2: claim_put done, INGESTED v1", "c-3: claim_put done, INGESTED v1")
					rests(t, d)
					d.claims = near
					want(t, "c-1", d.claim("c-1"), "TAXONOMY_RESOLVED v3")
					testenv.Within(t, "the next one", byPatience, func() { want(t, "advance", d.advance("c-1", 3, claimstate.EligibilityVerified), "advanced") })
				})
			}
			t.Run("slow", func(t *testing.T) {
				t.Parallel()
				far, _, s := open(t)
				d := station(t, callTime, nil, far, nil)
				want(t, "put", d.put("c-0", claimToken(0)), "created")
				s.slow()
				testenv.Within(t, "the first one", byPatience, func() { want(t, "put", d.put("c-1", claimToken(1)), "queued") })
				d.down(forward.Claims)
				testenv.Within(t, "one behind it", atOnce, func() { want(t, "advance", d.advance("c-1", 1, claimstate.Normalized), "queued") })
				d.told.until(t, "the outcomes, though it is slow", func() bool { return len(d.told.outcomes) == 2 })
				s.pass()
				answers(t, d, "c-1: claim_put done, INGESTED v1; claim_advance done, NORMALIZED v2")
				rests(t, d)
			})
			t.Run("lost replies", func(t *testing.T) {
				t.Parallel()
				far, near, s := open(t)
				d := station(t, callTime, nil, far, nil)
				want(t, "put", d.put("c-0", claimToken(0)), "created")
				want(t, "advance", d.advance("c-0", 1, claimstate.Normalized), "advanced") // the scripts are known
				told := 0
				lost := func(op idem.EventID, done func() string, stands string) {
					t.Helper()
					sprung := s.lose(op)
					word := done()
					<-sprung
					if word == "queued" {
						told++
					} else if word != "already mine" { // a client that has asked again by itself
						t.Errorf("told %s", word)
					}
					d.told.until(t, "the outcome", func() bool { return len(d.told.outcomes) == told })
					d.claims = near
					want(t, "the claim", d.claim("c-1"), stands)
					d.claims = far
				}
				lost(eventOf("put", "c-1"), func() string { return d.put("c-1", claimToken(1)) }, "INGESTED v1")
				lost(eventOf("advance", "c-1", 1, claimstate.Normalized), func() string { return d.advance("c-1", 1, claimstate.Normalized) }, "NORMALIZED v2")
				// And a reply to what the journal carries.
				s.refuse()
				d.put("c-2", claimToken(2))
				want(t, "advance", d.advance("c-1", 2, claimstate.TaxonomyResolved), "queued")
				sprung := s.lose(eventOf("advance", "c-1", 2, claimstate.TaxonomyResolved))
				s.pass()
				<-sprung
				d.told.until(t, "the outcomes", func() bool { return len(d.told.outcomes) == told+2 })
				d.claims = near
				want(t, "the claim", d.claim("c-1"), "TAXONOMY_RESOLVED v3")
				rests(t, d)
			})
		})
	}
}

func TestCaseStores(t *testing.T) {
	t.Parallel()
	const day1, day2 = "2026-07-17", "2026-07-18"
	a, b := question("a", day1).DerivedID(), question("b", day1).DerivedID()
	for name, open := range caseSites(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, fault := range []string{"refused", "black hole"} {
				t.Run(fault, func(t *testing.T) {
					t.Parallel()
					far, near, s := open(t)
					d := station(t, outageTime, nil, nil, far)
					_, word := d.pend(eventOf(0), "a", day1)
					want(t, "pend", word, "created")
					map[string]func(){"refused": s.refuse, "black hole": s.hole}[fault]()
					testenv.Within(t, "an operation that meets the outage", byPatience, func() { want(t, "move", d.move(eventOf(1), a, 1, pacase.InReview), "queued") })
					d.down(forward.Cases)
					testenv.Within(t, "operations while it is known", 3*atOnce, func() {
						_, word := d.pend(eventOf(2), "b", day1)
						want(t, "pend", word, "queued")
						want(t, "move", d.move(eventOf(3), b, 1, pacase.InReview), "queued")
						want(t, "move", d.move(eventOf(4), a, 2, pacase.Approved), "queued")
					})
					d.again()
					d.run()
					d.down(forward.Cases)
					_, word = d.pend(eventOf(5), "b", day2)
					want(t, "pend", word, "queued")
					s.pass()
					testenv.Within(t, "the way back", soonUsed, func() {
						d.told.until(t, "the outcomes", func() bool { return len(d.told.outcomes) >= 5 })
					})
					d.told.mu.Lock()
					want(t, "told", saidAll(d.told.outcomes), "pa_transition done, IN_REVIEW v2; pa_pend done, PENDING v1, created; pa_transition done, IN_REVIEW v2; "+
						"pa_transition done, APPROVED v3; pa_pend done, IN_REVIEW v2")
					d.told.mu.Unlock()
					rests(t, d)
					for _, id := range []string{b, question("b", day2).DerivedID()} {
						if c, ok, err := near.Get(t.Context(), id); err != nil || !ok || c.ID != b {
							t.Errorf("%s leads to %+v, %v, %v", id, c, ok, err)
						}
					}
				})
			}
			t.Run("slow", func(t *testing.T) {
				t.Parallel()
				far, _, s := open(t)
				d := station(t, callTime, nil, nil, far)
				_, word := d.pend(eventOf(0), "a", day1)
				want(t, "pend", word, "created")
				s.slow()
				testenv.Within(t, "the first one", byPatience, func() { want(t, "move", d.move(eventOf(1), a, 1, pacase.InReview), "queued") })
				d.down(forward.Cases)
				_, word = d.pend(eventOf(2), "b", day1)
				want(t, "pend", word, "queued")
				d.told.until(t, "the outcomes, though it is slow", func() bool { return len(d.told.outcomes) == 2 })
				s.pass()
				d.told.mu.Lock()
				want(t, "told", saidAll(d.told.outcomes), "pa_transition done, IN_REVIEW v2; pa_pend done, PENDING v1, created")
				d.told.mu.Unlock()
				rests(t, d)
			})
			t.Run("lost replies", func(t *testing.T) {
				t.Parallel()
				far, near, s := open(t)
				d := station(t, callTime, nil, nil, far)
				_, word := d.pend(eventOf(0), "a", day1)
				want(t, "pend", word, "created")
				told := 0
				lost := func(op idem.EventID, done func() string, id, stands string) {
					t.Helper()
					told++
					sprung := s.lose(op)
					want(t, "without a reply", done(), "queued")
					<-sprung
					d.told.until(t, "the outcome", func() bool { return len(d.told.outcomes) == told })
					c, ok, err := near.Get(t.Context(), id)
					if got := fmt.Sprintf("%s v%d", c.State, c.Version); err != nil || !ok || got != stands {
						t.Errorf("%s stands, %v, %v, want %s", got, ok, err, stands)
					}
				}
				lost(eventOf(1), func() string { _, word := d.pend(eventOf(1), "b", day1); return word }, b, "PENDING v1")
				lost(eventOf(2), func() string { return d.move(eventOf(2), b, 1, pacase.InReview) }, b, "IN_REVIEW v2")
				d.told.mu.Lock()
				want(t, "told", saidAll(d.told.outcomes), "pa_pend done, PENDING v1, created; pa_transition done, IN_REVIEW v2") // its own effects are known
				d.told.mu.Unlock()
				rests(t, d)
			})
		})
	}
}

// A mistake in a store's set-up is told with its own error, and what waited is carried once it is mended.
func TestStoreMistakes(t *testing.T) {
	user := testenv.ShippedRedisUser(t)
	dynamo := testenv.StartDynamo(t)
	open := testenv.NewPostgres(t, testenv.PostgresOptions{NoFsync: true})
	locked := testenv.NewPostgres(t, testenv.PostgresOptions{NoFsync: true, Password: true})
	claimsMistake := func(err error) string {
		var c *claimstate.ConfigError
		if !errors.As(err, &c) {
			return ""
		}
		return c.Error()
	}
	pgMistake := func(err error) string {
		var c *ledger.ConfigError
		if !errors.As(err, &c) {
			return ""
		}
		return c.Error()
	}
	put := func(d *depot) string { return d.put("c-1", claimToken(1)) }
	pends := func(d *depot) string { _, word := d.pend(eventOf("p"), "a", "2026-07-17"); return word }
	for _, m := range []struct {
		name    string
		lane    forward.Lane
		mistake func(error) string
		says    string
		unasked bool // it is found without an operation
		set     func(t *testing.T) (rows ledger.Ledger, claims claimstate.Store, cases pacase.Store, mend func())
		act     func(d *depot) string
	}{
		{"Redis, wrong password", forward.Claims, claimsMistake, "password", true, func(t *testing.T) (ledger.Ledger, claimstate.Store, pacase.Store, func()) {
			r := testenv.StartRedis(t, user.File(t)...)
			r.Do("ACL", "SETUSER", user.Name, "resetpass", ">another")
			s := must[*claimstate.Redis](t)(claimstate.NewRedis(claimstate.RedisConfig{Mode: idem.RedisSingle, Addrs: []string{r.Addr}, Username: user.Name,
				Password: testenv.RedisPassword, Timeout: callTime, Lives: claimLives, Now: realNow}))
			return nil, s, nil, func() { r.Do("ACL", "SETUSER", user.Name, ">"+testenv.RedisPassword) }
		}, put},
		{"DynamoDB, no table", forward.Claims, claimsMistake, "table", true, func(t *testing.T) (ledger.Ledger, claimstate.Store, pacase.Store, func()) {
			cfg := claimstate.DynamoConfig{Endpoint: dynamo.URL(), Region: "us-east-1", Table: "not_there", CredentialsFile: dynamo.Credentials, Timeout: callTime, Lives: claimLives, Now: realNow}
			s := must[*claimstate.Dynamo](t)(claimstate.NewDynamo(t.Context(), cfg))
			return nil, s, nil, func() {
				cfg.CreateTable = true
				if err := must[*claimstate.Dynamo](t)(claimstate.NewDynamo(t.Context(), cfg)).Ping(t.Context()); err != nil {
					t.Error(err)
				}
			}
		}, put},
		{"PostgreSQL, no schema", forward.Cases, pgMistake, "migrate", true, func(t *testing.T) (ledger.Ledger, claimstate.Store, pacase.Store, func()) {
			db := open.NewDatabase(t)
			s := must[*pacase.Postgres](t)(pacase.OpenPostgres(pacase.PostgresConfig{DSN: open.AgentDSN(t, db)}))
			return nil, nil, s, func() { migrate(t, open, db) }
		}, pends},
		{"PostgreSQL, a table is gone", forward.Cases, pgMistake, "migrate", false, func(t *testing.T) (ledger.Ledger, claimstate.Store, pacase.Store, func()) {
			db, cfg := storetest.PACasePostgres(t, open)
			open.Exec(t, db, "ALTER TABLE pa_pend RENAME TO pa_pend_away")
			return nil, nil, must[*pacase.Postgres](t)(pacase.OpenPostgres(cfg)), func() { open.Exec(t, db, "ALTER TABLE pa_pend_away RENAME TO pa_pend") }
		}, pends},
		{"PostgreSQL, wrong password", forward.Cases, pgMistake, "password", true, func(t *testing.T) (ledger.Ledger, claimstate.Store, pacase.Store, func()) {
			db := locked.NewDatabase(t)
			migrate(t, locked, db)
			cfg := pacase.PostgresConfig{DSN: locked.AgentDSN(t, db), PasswordFile: locked.PasswordFile(t, "another")}
			return nil, nil, must[*pacase.Postgres](t)(pacase.OpenPostgres(cfg)), func() {
				locked.Exec(t, testenv.PostgresSuperuser, "ALTER ROLE "+testenv.PostgresLogin+" PASSWORD 'another'")
			}
		}, pends},
		{"PostgreSQL, no claim_ingest", forward.Ingests, pgMistake, "migrate", false, func(t *testing.T) (ledger.Ledger, claimstate.Store, pacase.Store, func()) {
			db, l := newPostgresLedger(t, open)
			open.Exec(t, db, "ALTER TABLE claim_ingest RENAME TO claim_ingest_away")
			return l, nil, nil, func() { open.Exec(t, db, "ALTER TABLE claim_ingest_away RENAME TO claim_ingest") }
		}, func(d *depot) string {
			d.scan("B1", claimToken(1), window.Dispense)
			d.settle()
			return "queued"
		}},
	} {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			rows, claims, cases, mend := m.set(t)
			d := station(t, callTime, rows, claims, cases)
			told := func() bool {
				return len(d.told.lanes) > 0 && d.told.lanes[0].lane == m.lane && strings.Contains(m.mistake(d.told.lanes[0].cause), m.says)
			}
			if m.unasked {
				d.told.until(t, "the mistake", told)
			}
			want(t, "the operation", m.act(d), "queued")
			d.told.until(t, "the mistake", told)
			if cause, since := d.courier.Down(m.lane); m.mistake(cause) == "" || since == 0 {
				t.Errorf("down since %v: %v", since, cause)
			}
			mend()
			testenv.Within(t, "the way back", soonUsed, func() {
				d.told.until(t, "the outcome and the end of the outage", func() bool {
					return len(d.told.outcomes) == 1 && d.told.lanes[len(d.told.lanes)-1].cause == nil
				})
			})
			d.told.mu.Lock()
			defer d.told.mu.Unlock()
			if d.told.outcomes[0].Conflict || len(d.told.lanes) != 2 {
				t.Errorf("told %s, lanes %v", saidAll(d.told.outcomes), d.told.lanes)
			}
		})
	}
}

func migrate(t testing.TB, p *testenv.Postgres, db string) {
	t.Helper()
	if _, _, err := ledger.Migrate(t.Context(), ledger.PostgresConfig{DSN: p.OwnerDSN(db), PasswordFile: p.PasswordFile(t, testenv.PostgresPassword)}, 0); err != nil {
		t.Fatal(err)
	}
}

// A claim that was tampered with is a conflict; the others in the same store go on.
func TestStoreDamagedClaim(t *testing.T) {
	user := testenv.ShippedRedisUser(t)
	r := testenv.StartRedis(t, user.File(t)...)
	p := testenv.NewProxy(t, r.Addr)
	s := must[*claimstate.Redis](t)(claimstate.NewRedis(claimstate.RedisConfig{Mode: idem.RedisSingle, Addrs: []string{p.Addr()}, Username: user.Name,
		Password: testenv.RedisPassword, Timeout: callTime, Lives: claimLives, Now: realNow}))
	d := station(t, callTime, nil, s, nil)
	want(t, "put", d.put("bad", claimToken(1)), "created")
	p.Set(t, testenv.Refuse)
	want(t, "advance", d.advance("bad", 1, claimstate.Normalized), "queued")
	want(t, "behind it", d.advance("bad", 2, claimstate.TaxonomyResolved), "queued")
	want(t, "put", d.put("good", claimToken(2)), "queued")
	r.Do("HSET", "claim:bad", "node", "NOWHERE")
	p.Set(t, testenv.Pass)
	d.told.until(t, "the outcomes", func() bool { return len(d.told.outcomes) == 3 })
	d.emptied() // an outcome is told before it leaves the journal
	conflicts, err := forward.Conflicts(d.spool.Journal())
	if err != nil || len(conflicts) != 2 || conflicts[0].Target != "bad" || !strings.Contains(conflicts[0].Detail, "claim:bad") {
		t.Errorf("conflicts %+v, %v", conflicts, err)
	}
	want(t, "the other", d.claim("good"), "INGESTED v1")
	if got := d.advanceAs(eventOf("x"), "bad", 1, claimstate.Normalized); !strings.Contains(got, "claim:bad") {
		t.Errorf("at once: %s", got)
	}
}
