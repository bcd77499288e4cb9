package claimstate_test

import (
	"errors"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"scanonce/internal/redisconn"
	"scanonce/internal/storetest"
	"scanonce/internal/testenv"
	"scanonce/sync/claimstate"
)

// What a common recipe for such a store does wrong, each beside what this package does. If the recipe's half stops
// failing, the test has lost its premise.

const token = claimstate.Token("rx1.0a1b2c3d.00112233445566778899aabbccddeeff")

func fresh(id, op string) claimstate.New {
	return claimstate.New{CorrelationID: id, RxRefToken: token, IngredientCost: "42.10", OpID: op}
}

// created makes a claim and wants it new.
func created(t *testing.T, s claimstate.Store, n claimstate.New) (made claimstate.State) {
	t.Helper()
	p, err := s.PutNew(t.Context(), n)
	if err != nil {
		t.Fatal(err)
	}
	p.Match(func(s claimstate.State) { made = s }, func(claimstate.State) { t.Fatal("already mine") }, func(s claimstate.State) { t.Fatalf("exists %+v", s) })
	return made
}

// answered moves a claim and returns the answer's name.
func answered(t *testing.T, s claimstate.Store, m claimstate.Move) (word string, at claimstate.State) {
	t.Helper()
	a, err := s.Advance(t.Context(), m)
	if err != nil {
		t.Fatal(err)
	}
	is := func(w string) func(claimstate.State) { return func(x claimstate.State) { word, at = w, x } }
	a.Match(is("advanced"), is("already mine"), is("conflict"), func() { word = "missing" })
	return word, at
}

const recipeCAS = `
if redis.call('HGET', KEYS[1], 'version') == ARGV[1] then
  redis.call('HSET', KEYS[1], 'version', ARGV[2], 'node', ARGV[3], 'cost', ARGV[4])
  return 1
end
return 0`

func TestCreateIsOneCommand(t *testing.T) {
	r := testenv.StartRedis(t)
	// A lock key, the hash, its time to live: a crash after the first leaves a claim that can never be made, one
	// after the second a claim that never ends.
	if v := r.Do("SET", "claim:c-1:lock", "tok", "NX", "EX", 900); v != "OK" {
		t.Fatal(v)
	}
	if again, there := r.Do("SET", "claim:c-1:lock", "tok", "NX", "EX", 900), r.Do("EXISTS", "claim:c-1"); again != nil || there != int64(0) {
		t.Fatalf("the recipe recovers (%v, %v)", again, there)
	}
	r.Do("HSET", "claim:c-1", "version", 0, "node", "INGESTED", "cost", "42.10")
	if ttl := r.Do("PTTL", "claim:c-1"); ttl != int64(-1) {
		t.Fatalf("the recipe's claim lives for %v", ttl)
	}
	flush([]*testenv.Redis{r})
	s := newRedis(t, claimstate.RedisConfig{Mode: redisconn.Single, Addrs: []string{r.Addr}})
	created(t, s, fresh("c-1", "op-1"))
	keys := r.Do("KEYS", "*").([]any)
	if ttl, _ := r.Do("PTTL", "claim:c-1").(int64); len(keys) != 1 || ttl <= 0 {
		t.Errorf("keys %v, to live %d ms", keys, ttl)
	}
	if calls := r.Do("HLEN", "claim:c-1"); calls != int64(6) {
		t.Errorf("the hash has %v fields", calls)
	}
}

func TestMissingIsNoConflict(t *testing.T) {
	r := testenv.StartRedis(t)
	r.Do("HSET", "claim:c-1", "version", 5)
	lost := r.Do("EVAL", recipeCAS, 1, "claim:c-1", 0, 1, "NORMALIZED", "42.10")
	gone := r.Do("EVAL", recipeCAS, 1, "claim:c-2", 0, 1, "NORMALIZED", "42.10")
	if lost != gone {
		t.Fatalf("the recipe tells a lost race (%v) from a claim that is gone (%v)", lost, gone)
	}
	flush([]*testenv.Redis{r})
	s := newRedis(t, claimstate.RedisConfig{Mode: redisconn.Single, Addrs: []string{r.Addr}})
	c := created(t, s, fresh("c-1", "op-1"))
	if w, _ := answered(t, s, c.Move(claimstate.Normalized, "", "", "op-2")); w != "advanced" {
		t.Errorf("told %q", w)
	}
	if w, _ := answered(t, s, c.Move(claimstate.Normalized, "", "", "op-3")); w != "conflict" {
		t.Errorf("a lost race is told %q", w)
	}
	c.CorrelationID = "c-2"
	if w, _ := answered(t, s, c.Move(claimstate.Normalized, "", "", "op-3")); w != "missing" || r.Do("EXISTS", "claim:c-2") != int64(0) {
		t.Errorf("a claim that is gone is told %q", w)
	}
}

func TestAdvanceRenewsTheLife(t *testing.T) {
	r := testenv.StartRedis(t)
	r.Do("HSET", "claim:c-1", "version", 0, "node", "INGESTED")
	r.Do("PEXPIRE", "claim:c-1", 60_000)
	r.Do("EVAL", recipeCAS, 1, "claim:c-1", 0, 1, "NORMALIZED", "42.10")
	if left, _ := r.Do("PTTL", "claim:c-1").(int64); left > 60_000 {
		t.Fatalf("the recipe renews the life to %d ms", left)
	}
	flush([]*testenv.Redis{r})
	s := newRedis(t, claimstate.RedisConfig{Mode: redisconn.Single, Addrs: []string{r.Addr}})
	c := created(t, s, fresh("c-1", "op-1"))
	r.Do("PEXPIRE", "claim:c-1", 60_000)
	answered(t, s, c.Move(claimstate.Normalized, "", "", "op-2"))
	if left, _ := r.Do("PTTL", "claim:c-1").(int64); left < 14*60_000 {
		t.Errorf("after a move the claim lives for %d ms", left)
	}
}

// A claim ends by the server's clock, too.
func TestRedisEndsAClaim(t *testing.T) {
	r := testenv.StartRedis(t)
	s := newRedis(t, claimstate.RedisConfig{Mode: redisconn.Single, Addrs: []string{r.Addr}, Lives: claimstate.Lives{TTL: time.Second, Pend: time.Second}})
	c := created(t, s, fresh("c-1", "op-1"))
	r.WaitFor("the end of the claim", func() bool { _, ok, err := s.Get(t.Context(), "c-1"); return err == nil && !ok })
	if w, _ := answered(t, s, c.Move(claimstate.Normalized, "", "", "op-2")); w != "missing" {
		t.Errorf("told %q", w)
	}
}

func TestExpiredItemIsNoClaim(t *testing.T) {
	ctx := t.Context()
	d := testenv.StartDynamo(t)
	c := new(clock)
	cfg := dynamoConfig(d, c)
	s := newDynamo(t, cfg)
	first := created(t, s, fresh("c-1", "op-1"))
	c.forward(storetest.ClaimLives.TTL + margin)

	chain, err := config.LoadDefaultConfig(ctx, config.WithRegion("us-east-1"), config.WithSharedCredentialsFiles([]string{d.Credentials}))
	if err != nil {
		t.Fatal(err)
	}
	recipe := dynamodb.NewFromConfig(chain, func(o *dynamodb.Options) { o.BaseEndpoint = aws.String(d.URL()) })
	key := map[string]types.AttributeValue{"pk": &types.AttributeValueMemberS{Value: "c-1"}}
	_, err = recipe.PutItem(ctx, &dynamodb.PutItemInput{TableName: &cfg.Table, Item: key, ConditionExpression: aws.String("attribute_not_exists(pk)")})
	var blocked *types.ConditionalCheckFailedException
	if !errors.As(err, &blocked) {
		t.Fatalf("the recipe creates over an expired item: %v", err)
	}
	if out, err := recipe.GetItem(ctx, &dynamodb.GetItemInput{TableName: &cfg.Table, Key: key}); err != nil || len(out.Item) == 0 {
		t.Fatalf("the recipe does not serve it: %v", err)
	}

	if got, ok, err := s.Get(ctx, "c-1"); err != nil || ok {
		t.Errorf("it is served as %+v, %v", got, err)
	}
	if w, _ := answered(t, s, first.Move(claimstate.Normalized, "", "", "op-2")); w != "missing" {
		t.Errorf("a move is told %q", w)
	}
	created(t, s, fresh("c-1", "op-3"))
	out, err := recipe.GetItem(ctx, &dynamodb.GetItemInput{TableName: &cfg.Table, Key: key})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"pk": "S", "version": "N", "node": "S", "cost": "S", "rx_ref": "S", "reject_code": "S", "op_id": "S", "expires_at": "N"} {
		kind := "none"
		switch out.Item[name].(type) {
		case *types.AttributeValueMemberS:
			kind = "S"
		case *types.AttributeValueMemberN:
			kind = "N"
		}
		if kind != want || len(out.Item) != 8 {
			t.Errorf("attribute %s of %d is %s, want %s", name, len(out.Item), kind, want)
		}
	}
}

// Within five minutes of its end another agent's clock may still call an item alive: it is not overwritten.
func TestJustExpiredItemStandsInTheWay(t *testing.T) {
	d := testenv.StartDynamo(t)
	c := new(clock)
	s := newDynamo(t, dynamoConfig(d, c))
	created(t, s, fresh("c-1", "op-1"))
	c.forward(storetest.ClaimLives.TTL + 4*time.Minute)
	p, err := s.PutNew(t.Context(), fresh("c-1", "op-2"))
	if err != nil {
		t.Fatal(err)
	}
	p.Match(func(claimstate.State) { t.Error("created") }, func(claimstate.State) { t.Error("already mine") }, func(got claimstate.State) {
		if got.OpID != "op-1" {
			t.Errorf("exists %+v", got)
		}
	})
}
