package claimstate_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"scanonce/internal/storetest"
	"scanonce/internal/testenv"
	"scanonce/sync/claimstate"
)

// front stands before a server: it counts the actions, may answer some itself, and may add to a failed condition
// the item that failed it, which dynalite leaves out and DynamoDB does not.
type front struct {
	back *testenv.Dynamo
	item bool

	mu      sync.Mutex
	actions map[string]int
	fail    map[string]string // action → error that is answered in its place
	table   string            // the only one that may be named, if any
	foreign int               // requests that name another
}

// allow tells which table the following requests may name.
func (f *front) allow(table string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.table = table
}

func newFront(t *testing.T, back *testenv.Dynamo) (*front, string) {
	f := &front{back: back, actions: map[string]int{}, fail: map[string]string{}}
	s := httptest.NewServer(f)
	t.Cleanup(s.Close)
	return f, s.URL
}

func (f *front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	action := strings.TrimPrefix(r.Header.Get("X-Amz-Target"), "DynamoDB_20120810.")
	f.mu.Lock()
	f.actions[action]++
	failure := f.fail[action]
	if f.table != "" && !bytes.Contains(body, []byte(`"TableName":"`+f.table+`"`)) {
		f.foreign++
	}
	f.mu.Unlock()
	if failure != "" {
		w.Header().Set("Content-Type", "application/x-amz-json-1.0")
		w.WriteHeader(http.StatusBadRequest)
		json.NewEncoder(w).Encode(map[string]string{"__type": "com.amazonaws.dynamodb.v20120810#" + failure, "message": "no"})
		return
	}
	status, answer := f.ask(r, action, body)
	if f.item && bytes.Contains(answer, []byte("ConditionalCheckFailedException")) {
		var asked struct {
			TableName string
			Key, Item map[string]any
		}
		json.Unmarshal(body, &asked)
		id := asked.Key["pk"]
		if id == nil {
			id = asked.Item["pk"]
		}
		get, _ := json.Marshal(map[string]any{"TableName": asked.TableName, "Key": map[string]any{"pk": id}, "ConsistentRead": true})
		_, got := f.ask(r, "GetItem", get)
		var said, found map[string]any
		json.Unmarshal(answer, &said)
		json.Unmarshal(got, &found)
		if found["Item"] != nil {
			said["Item"] = found["Item"]
		}
		answer, _ = json.Marshal(said)
	}
	w.Header().Set("Content-Type", "application/x-amz-json-1.0")
	w.WriteHeader(status)
	w.Write(answer)
}

func (f *front) ask(r *http.Request, action string, body []byte) (int, []byte) {
	req, _ := http.NewRequestWithContext(r.Context(), http.MethodPost, f.back.URL(), bytes.NewReader(body))
	for _, h := range []string{"Authorization", "X-Amz-Date", "Content-Type"} {
		req.Header.Set(h, r.Header.Get(h))
	}
	req.Header.Set("X-Amz-Target", "DynamoDB_20120810."+action)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return http.StatusBadGateway, nil
	}
	defer resp.Body.Close()
	answer, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, answer
}

func (f *front) count(action string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.actions[action]
}

func (f *front) used() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Sorted(maps.Keys(f.actions))
}

// A server that tells which item failed a condition is not asked for it again.
func TestDynamoTellsTheItem(t *testing.T) {
	d := testenv.StartDynamo(t)
	for _, tells := range []bool{true, false} {
		f, url := newFront(t, d)
		f.item = tells
		cfg := dynamoConfig(d, new(clock))
		cfg.Endpoint = url
		s := newDynamo(t, cfg)
		c := created(t, s, fresh("c-1", "op-1"))
		p, err := s.PutNew(t.Context(), fresh("c-1", "op-2"))
		if err != nil {
			t.Fatal(err)
		}
		p.Match(func(claimstate.State) { t.Error("created") }, func(claimstate.State) { t.Error("mine") }, func(got claimstate.State) {
			if got != c {
				t.Errorf("exists %+v, want %+v", got, c)
			}
		})
		answered(t, s, c.Move(claimstate.Normalized, "", "", "op-3"))
		if w, at := answered(t, s, c.Move(claimstate.Normalized, "", "", "op-4")); w != "conflict" || at.OpID != "op-3" {
			t.Errorf("told %q, %+v", w, at)
		}
		if w, _ := answered(t, s, c.Move(claimstate.Normalized, "", "", "op-3")); w != "already mine" {
			t.Errorf("told %q", w)
		}
		want := 3
		if tells {
			want = 0
		}
		if n := f.count("GetItem"); n != want {
			t.Errorf("items are told: %v, and %d were read, want %d", tells, n, want)
		}
	}
}

// readPolicy reads the shipped policy's actions by statement. It allows them on one table and nothing else.
func readPolicy(t *testing.T) map[string][]string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", "..", "configs", "dynamodb-policy.json"))
	if err != nil {
		t.Fatal(err)
	}
	var policy struct {
		Version   string
		Statement []struct {
			Sid, Effect, Resource string
			Action                []string
		}
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&policy); err != nil || policy.Version != "2012-10-17" {
		t.Fatalf("version %q, %v", policy.Version, err)
	}
	actions := map[string][]string{}
	for _, st := range policy.Statement {
		if st.Effect != "Allow" || !regexp.MustCompile(`^arn:aws:dynamodb:[a-z0-9*-]+:[0-9*]+:table/scanonce_claims$`).MatchString(st.Resource) || actions[st.Sid] != nil {
			t.Errorf("statement %+v", st)
		}
		for _, a := range st.Action {
			name, ok := strings.CutPrefix(a, "dynamodb:")
			if !ok || strings.Contains(name, "*") {
				t.Errorf("the action %s", a)
			}
			actions[st.Sid] = append(actions[st.Sid], name)
		}
		slices.Sort(actions[st.Sid])
	}
	if len(actions) != 2 || actions["Claims"] == nil || actions["OnlyWithCreateTable"] == nil {
		t.Fatalf("statements %v", actions)
	}
	return actions
}

// Many agents may make the table at once.
func TestDynamoMakesTheTable(t *testing.T) {
	d := testenv.StartDynamo(t)
	cfg := dynamoConfig(d, new(clock))
	errs := make([]error, 8)
	var wg sync.WaitGroup
	for i := range errs {
		s := newDynamo(t, cfg)
		wg.Go(func() { errs[i] = s.Ping(t.Context()) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	cfg.Table = "absent"
	cfg.CreateTable = false
	s := newDynamo(t, cfg)
	var mistake *claimstate.ConfigError
	if _, err := s.PutNew(t.Context(), fresh("c-1", "op-1")); !errors.As(err, &mistake) || !strings.Contains(mistake.Detail, "no table absent") {
		t.Errorf("without a table: %v", err)
	}
}

func TestDynamoMistakes(t *testing.T) {
	d := testenv.StartDynamo(t)
	f, url := newFront(t, d)
	cfg := dynamoConfig(d, new(clock))
	cfg.Endpoint = url
	s := newDynamo(t, cfg)
	created(t, s, fresh("c-1", "op-1"))
	for code, says := range map[string]string{
		"AccessDeniedException": "do not allow", "UnrecognizedClientException": "does not know the credentials", "InvalidSignatureException": "signature",
		"ValidationException": "cannot use the DynamoDB table", "MissingAuthenticationTokenException": "wants credentials", "IncompleteSignatureException": "signature",
	} {
		f.mu.Lock()
		f.fail["GetItem"] = code
		f.mu.Unlock()
		_, _, err := s.Get(t.Context(), "c-1")
		var mistake *claimstate.ConfigError
		if !errors.As(err, &mistake) || !strings.Contains(mistake.Detail, says) || mistake.Hint == "" {
			t.Errorf("%s: %v", code, err)
		}
	}
	f.mu.Lock()
	f.fail["GetItem"] = "InternalServerError"
	f.mu.Unlock()
	_, _, err := s.Get(t.Context(), "c-1")
	var mistake *claimstate.ConfigError
	if err == nil || errors.As(err, &mistake) || !strings.HasPrefix(err.Error(), "cannot reach DynamoDB") {
		t.Errorf("an outage is told as %v", err)
	}

	for name, v := range map[string]string{"AWS_EC2_METADATA_DISABLED": "true", "AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "",
		"AWS_CONTAINER_CREDENTIALS_FULL_URI": "", "AWS_PROFILE": "", "AWS_CONFIG_FILE": filepath.Join(t.TempDir(), "none"), "AWS_SHARED_CREDENTIALS_FILE": filepath.Join(t.TempDir(), "none"), "AWS_REGION": "", "AWS_DEFAULT_REGION": ""} {
		t.Setenv(name, v)
	}
	cfg.CredentialsFile = ""
	if err := newDynamo(t, cfg).Ping(t.Context()); !errors.As(err, &mistake) || !strings.Contains(mistake.Detail, "cannot find credentials") {
		t.Errorf("without credentials: %v", err)
	}
	cfg.Endpoint, cfg.Region = "", ""
	if _, err := claimstate.NewDynamo(t.Context(), cfg); !errors.As(err, &mistake) || !strings.Contains(mistake.Hint, "dynamodb.region") {
		t.Errorf("without a region: %v", err)
	}
}

// The SDK's own second try after a lost reply meets its first one's write.
func TestDynamoRetriesKnowThemselves(t *testing.T) {
	d := testenv.StartDynamo(t)
	p := testenv.NewProxy(t, d.Addr)
	cfg := dynamoConfig(d, new(clock))
	cfg.Endpoint = "http://" + p.Addr()
	s := newDynamo(t, cfg)
	c := created(t, s, fresh("c-1", "op-1"))
	lost := p.Swallow("UpdateItem")
	w, at := answered(t, s, c.Move(claimstate.Normalized, "", "", "op-2"))
	select {
	case <-lost:
	default:
		t.Error("no reply was lost")
	}
	if w != "already mine" || at.Version != 2 {
		t.Errorf("told %q, %+v", w, at)
	}
	lost = p.Swallow("PutItem")
	put, err := s.PutNew(t.Context(), fresh("c-2", "op-3"))
	<-lost
	if err != nil {
		t.Fatal(err)
	}
	put.Match(func(claimstate.State) { t.Error("created") }, func(claimstate.State) {}, func(claimstate.State) { t.Error("exists") })
}

func TestDynamoConfigIsChecked(t *testing.T) {
	good := claimstate.DynamoConfig{Region: "us-east-1", Table: "scanonce_claims", Timeout: time.Second, Lives: storetest.ClaimLives}
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for says, change := range map[string]func(*claimstate.DynamoConfig){
		"dynamodb.table":            func(c *claimstate.DynamoConfig) { c.Table = "" },
		"timeout":                   func(c *claimstate.DynamoConfig) { c.Timeout = 0 },
		"no URL of a server":        func(c *claimstate.DynamoConfig) { c.Endpoint = "127.0.0.1:8000" },
		"plaintext":                 func(c *claimstate.DynamoConfig) { c.Endpoint = "http://dynamodb.example:8000" },
		"there are credentials":     func(c *claimstate.DynamoConfig) { c.Endpoint = "https://a:hunter2@dynamodb.example" },
		"less than a second":        func(c *claimstate.DynamoConfig) { c.Lives.TTL = 0 },
		"less time than others":     func(c *claimstate.DynamoConfig) { c.Lives.Pend = time.Second },
		"for example https://dynam": func(c *claimstate.DynamoConfig) { c.Endpoint = "ftp://127.0.0.1" },
	} {
		c := good
		change(&c)
		err := c.Validate()
		var mistake *claimstate.ConfigError
		if !errors.As(err, &mistake) || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", says, err)
		}
	}
	for _, url := range []string{"http://127.0.0.1:8000", "http://[::1]:8000", "http://localhost:8000", "https://dynamodb.us-east-1.amazonaws.com"} {
		c := good
		c.Endpoint = url
		if err := c.Validate(); err != nil {
			t.Errorf("%s: %v", url, err)
		}
	}
}

// Neither the SDK's variables nor a server's redirect lead claims away in plaintext.
func TestDynamoStaysPrivate(t *testing.T) {
	d := testenv.StartDynamo(t)
	cfg := dynamoConfig(d, new(clock))
	elsewhere := 0
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere++ }))
	defer other.Close()
	for _, code := range []int{http.StatusFound, http.StatusTemporaryRedirect} {
		redirects := httptest.NewServer(http.RedirectHandler(other.URL, code))
		defer redirects.Close()
		cfg.Endpoint = redirects.URL
		if _, err := newDynamo(t, cfg).PutNew(t.Context(), fresh("c-1", "op-1")); err == nil || elsewhere != 0 {
			t.Errorf("%d: %d requests went elsewhere, %v", code, elsewhere, err)
		}
	}
	cfg.Endpoint = ""
	for _, name := range []string{"AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_DYNAMODB"} {
		t.Setenv(name, "http://dynamodb.example:8000")
		var mistake *claimstate.ConfigError
		if _, err := claimstate.NewDynamo(t.Context(), cfg); !errors.As(err, &mistake) || !strings.Contains(mistake.Detail, "to dynamodb.example in plaintext") || !strings.Contains(mistake.Hint, "https://") {
			t.Errorf("by %s: %v", name, err)
		}
		t.Setenv(name, d.URL())
		created(t, newDynamo(t, cfg), fresh("c-"+name, "op-1"))
		t.Setenv(name, "")
	}
}
